"""An Iceberg table's columns and those of a copy, and how the former follow the latter.

Iceberg numbers columns itself. Which of its numbers is which column of the source is kept as a property of
the table, in the same commits as everything else.
"""

import json

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table import Transaction
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
)

from penstock.consumers.lakeschema import COLUMN_ID, KEY_PLACE, column_id, key_columns, parquet_type
from penstock.jobs.schema_changes import fits

__all__ = ["copied_columns", "file_schema", "follow", "new_schema", "numbering", "promotes", "stored_type"]

_FIELD_ID = b"PARQUET:field_id"
_TYPES: dict[pa.DataType, IcebergType] = {
    pa.int32(): IntegerType(),
    pa.int64(): LongType(),
    pa.float32(): FloatType(),
    pa.float64(): DoubleType(),
    pa.date32(): DateType(),
    pa.timestamp("us"): TimestampType(),
    pa.timestamp("us", tz="UTC"): TimestamptzType(),
    pa.string(): StringType(),
    pa.binary(): BinaryType(),
}


def stored_type(kind: pa.DataType) -> pa.DataType:
    """The type in which values of a type are kept: Iceberg has no integers below 32 bits."""
    kept = parquet_type(kind)
    return pa.int32() if pa.types.is_integer(kept) and kept.bit_width < 32 else kept


def promotes(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether Iceberg reads files with a column of one type as if it had always been of the other."""
    if pa.types.is_decimal(old) and pa.types.is_decimal(new):
        return bool(old.scale == new.scale) and fits(old, new)
    return fits(old, new)


def new_schema(schema: pa.Schema) -> Schema:
    """The columns of a new table."""
    numbers = iter(range(1, 2 * len(schema) + 1))
    return Schema(
        *(
            NestedField(next(numbers), each.name, _iceberg_type(each.type, next(numbers)), required=False)
            for each in schema
        )
    )


def _iceberg_type(kind: pa.DataType, element_id: int = -1) -> IcebergType:
    if pa.types.is_list(kind):
        return ListType(element_id, _iceberg_type(kind.value_type), element_required=False)
    if pa.types.is_decimal(kind):
        return DecimalType(kind.precision, kind.scale)
    return _TYPES[kind]


def _arrow_type(kind: pa.DataType) -> pa.DataType:
    """A type as Penstock has it, of what the library makes of it."""
    if pa.types.is_large_list(kind):
        return pa.list_(kind.value_field)
    large = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
    return large.get(kind, kind)


def numbering(schema: Schema, copied: pa.Schema) -> str:
    """Which column of the source each number of the table is, and which are the key: the property's text."""
    ids = {schema.find_field(each.name).field_id: column_id(each) for each in copied}
    keys = [schema.find_field(name).field_id for name in key_columns(copied)]
    return json.dumps({"columns": ids, "keys": keys})


def copied_columns(schema: Schema, numbering_text: str) -> pa.Schema:
    """The columns of a copy; those that somebody else added have ids that no column of the source has."""
    kept = json.loads(numbering_text)
    fields = []
    for each, as_arrow in zip(schema.fields, schema_to_pyarrow(schema), strict=True):
        metadata = {COLUMN_ID: str(kept["columns"].get(str(each.field_id), -each.field_id))}
        if each.field_id in kept["keys"]:
            metadata[KEY_PLACE] = str(kept["keys"].index(each.field_id))
        fields.append(pa.field(each.name, parquet_type(_arrow_type(as_arrow.type)), metadata=metadata))
    return pa.schema(fields)


def file_schema(schema: Schema, copied: pa.Schema) -> pa.Schema:
    """The columns of a copy as its files have them: with Iceberg's numbers."""
    numbered = schema_to_pyarrow(schema)
    return pa.schema(
        [
            pa.field(
                each.name,
                _arrow_type(numbered.field(each.name).type),
                metadata={_FIELD_ID: numbered.field(each.name).metadata[_FIELD_ID]},
            )
            for each in copied
        ]
    )


def follow(transaction: Transaction, there: pa.Schema, wanted: pa.Schema) -> None:
    """Stage what makes the columns of a table those of a copy. Values in files stay where a column does."""
    before = {column_id(each): each for each in there}
    after = {column_id(each) for each in wanted}
    fresh: list[pa.Field] = []
    with transaction.update_schema() as update:
        for old in there:
            if column_id(old) not in after:
                update.delete_column((old.name,))
        for new in wanted:
            old = before.get(column_id(new))
            if old is None or not promotes(old.type, new.type):
                fresh.append(new)
                if old is not None:
                    update.delete_column((old.name,))
                continue
            if old.type != new.type:
                update.update_column((old.name,), _iceberg_type(new.type))
            if old.name != new.name:
                update.rename_column((old.name,), new.name)
    with transaction.update_schema() as update:  # when the names of others are free
        for new in fresh:
            update.add_column((new.name,), _iceberg_type(new.type))
