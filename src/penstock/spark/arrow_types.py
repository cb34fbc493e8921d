"""Arrow batches in the types of Spark: the type of each column both ways, the same on every version of Spark.

Spark's own conversion is private, and versions of it differ in timestamps without a time zone. Only the types
that tables and changes have are listed (`penstock.tables.arrow`).
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from penstock.errors import Invalid
from penstock.tables.arrow import arrow_name, shown_name
from penstock.tables.columns import Tp

if TYPE_CHECKING:
    from penstock.tables.schema import TableInfo

__all__ = ["arrow_schema", "as_declared", "json_columns", "require_columns", "spark_schema"]

_SPARK_TYPES: Mapping[pa.DataType, DataType] = {
    pa.bool_(): BooleanType(),
    pa.int8(): ByteType(),
    pa.int16(): ShortType(),
    pa.int32(): IntegerType(),
    pa.int64(): LongType(),
    pa.float32(): FloatType(),
    pa.float64(): DoubleType(),
    pa.string(): StringType(),
    pa.binary(): BinaryType(),
    pa.date32(): DateType(),
    pa.timestamp("us", tz="UTC"): TimestampType(),
    pa.timestamp("us"): TimestampNTZType(),
    pa.duration("us"): DayTimeIntervalType(),
}
_ARROW_TYPES = {spark: arrow for arrow, spark in _SPARK_TYPES.items()}
_LARGE = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
_ELEMENT = "element"  # as Spark names the values of an array


def json_columns(table: "TableInfo") -> frozenset[str]:
    """Return the columns of a table that may be declared as VARIANT."""
    found = (column for column in table.stored_columns if column.type.tp == Tp.JSON)
    return frozenset(shown_name(arrow_name(column)) for column in found)


def spark_schema(schema: pa.Schema, variants: Collection[str] = (), *, own_names: bool = True) -> StructType:
    """Return the schema that Spark declares for batches of an Arrow schema: columns have their own names.

    Without `own_names` they keep those of the Arrow schema.
    Those of `variants`, which hold JSON, are VARIANT. Raises Invalid when a column of the table and a system
    column have one name.
    """
    names = [shown_name(name) if own_names else name for name in schema.names]
    for name in names:
        if names.count(name) > 1:
            raise Invalid(
                f"the table has a column {name} of its own; name one of the two in `columns`, the table's"
                " with a space at its end"
            )
    return StructType(
        [
            StructField(
                name, VariantType() if name in variants else _spark_type(field.type), nullable=field.nullable
            )
            for name, field in zip(names, schema, strict=True)
        ]
    )


def require_columns(
    declared: StructType, found: pa.Schema, *, table: str, json: Collection[str] = ()
) -> None:
    """Raise Invalid unless `found` has every column of a declared schema with its type.

    Columns of `json` may be declared as VARIANT.
    """
    types = {field.name: field.dataType for field in spark_schema(found)}
    for field in declared:
        kind = types.get(field.name)
        is_variant = isinstance(field.dataType, VariantType) and field.name in json
        if kind != field.dataType and not is_variant:
            actual = "not there" if kind is None else kind.simpleString()
            raise Invalid(
                f"column {field.name} of {table} is {actual}, not {field.dataType.simpleString()};"
                " leave the schema to the data source"
            )


def as_declared(batches: Iterable[pa.RecordBatch], declared: StructType) -> Iterator[pa.RecordBatch]:
    """Yield batches with exactly the columns that Spark expects; copy only batches that differ.

    Raises Corrupt when a column that is declared as VARIANT has a text that is not JSON.
    """
    expected = arrow_schema(declared)
    variants = [field.name for field in declared if isinstance(field.dataType, VariantType)]
    for stored in batches:
        if stored.num_rows:
            batch = stored
            if stored.schema.names != expected.names:
                batch = stored.rename_columns([shown_name(name) for name in stored.schema.names])
            for name in variants:
                from penstock.columnar.variant import encode_json  # imports pandas, as pa.array does

                at = batch.schema.get_field_index(name)
                batch = batch.set_column(at, expected.field(name), encode_json(batch.column(at)))
            yield batch if batch.schema.equals(expected) else batch.select(expected.names).cast(expected)


def arrow_schema(declared: StructType) -> pa.Schema:
    """Return the schema that Spark expects of the batches of a declared schema."""
    return pa.schema(
        [pa.field(field.name, _arrow_type(field.dataType), nullable=field.nullable) for field in declared]
    )


def _spark_type(kind: pa.DataType) -> DataType:
    if pa.types.is_decimal128(kind):
        return DecimalType(kind.precision, kind.scale)
    if pa.types.is_list(kind):
        return ArrayType(_spark_type(kind.value_type), containsNull=kind.value_field.nullable)
    if pa.types.is_struct(kind):
        fields = [StructField(field.name, _spark_type(field.type), field.nullable) for field in kind]
        return StructType(fields)
    found = _SPARK_TYPES.get(_LARGE.get(kind, kind))
    assert found is not None, f"no column has the type {kind}"
    return found


def _arrow_type(kind: DataType) -> pa.DataType:
    if isinstance(kind, DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, ArrayType):
        return pa.list_(pa.field(_ELEMENT, _arrow_type(kind.elementType), nullable=kind.containsNull))
    if isinstance(kind, VariantType):
        from penstock.columnar.variant import VARIANT

        return VARIANT
    if isinstance(kind, StructType):
        return pa.struct(
            [pa.field(field.name, _arrow_type(field.dataType), field.nullable) for field in kind]
        )
    return _ARROW_TYPES[kind]
