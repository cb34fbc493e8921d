"""The option `where`: conditions that every row of a read meets, applied to its rows and used to read less.

`parse_where` turns the text into filters as Spark has them. `ReadFilter` takes those whose result is exactly
Spark's, and applies them to batches. What it knows of columns becomes ranges for the event store, bounds of
handles, and bounds of time: they only save reading, so that a bound that is missing or too wide costs time
and never rows.

The filters of queries are not pushed into reads: up to version 4.3, Spark reads a frame with the filters of
another query over the same frame (ADR 91).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from functools import cached_property
from itertools import product
from math import isnan, prod
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import datasource

from penstock.errors import Invalid
from penstock.eventstore.read.pruning import ColumnRange, WantedRows
from penstock.spark.arrow_types import arrow_schema
from penstock.tables.arrow import shown_name
from penstock.tables.columns import INTEGER_BITS, ColumnInfo
from penstock.tables.keys import encode_handle
from penstock.tables.records import check_datum, handle_of, to_signed
from penstock.tables.schema import HandleKind, TableInfo

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType
    from sqlglot import exp

__all__ = ["ReadFilter", "handles_within", "parse_where"]

_WHERE = "where"
_KEYS_MAX = 1000  # combinations of values of a key that are encoded to find its bounds
_LAST_CHARACTER = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)
_NO_HANDLE = (b"\0", b"\0")  # a range without handles

Compare = Callable[[pa.Array, pa.Scalar], pa.Array]
_COMPARISONS: dict[str, Compare] = {
    "EqualTo": pc.equal,
    "EqualNullSafe": pc.equal,
    "GreaterThan": pc.greater,
    "GreaterThanOrEqual": pc.greater_equal,
    "LessThan": pc.less,
    "LessThanOrEqual": pc.less_equal,
}
_TEXTS: dict[str, Callable[..., pa.Array]] = {
    "StringStartsWith": pc.starts_with,
    "StringEndsWith": pc.ends_with,
    "StringContains": pc.match_substring,
}


class _RowCondition(NamedTuple):
    """A filter on one column, of a kind that Spark has; `values` are of the column's Arrow type."""

    column: str
    type: pa.DataType
    kind: str
    values: tuple[pa.Scalar, ...]
    negated: bool

    def mask(self, column: pa.Array) -> pa.Array:
        """Return which rows of the column pass: as in SQL, an unknown result does not."""
        found = self._evaluate(column)
        if self.negated:
            found = pc.invert(found)
        return pc.fill_null(found, fill_value=False) if found.null_count else found

    def _evaluate(self, column: pa.Array) -> pa.Array:
        match self.kind:
            case "IsNull":
                return column.is_null()
            case "IsNotNull":
                return column.is_valid()
            case "In":
                found = pc.is_in(column, value_set=pa.array(self.values, column.type))
                # NULL IN (...) is unknown, whatever the values
                return pc.if_else(column.is_valid(), found, None) if column.null_count else found
            case kind if kind in _TEXTS:
                return _TEXTS[kind](column, self.values[0].as_py())
        found = _COMPARISONS[self.kind](column, self.values[0])
        if pa.types.is_floating(column.type) and self.kind in {"GreaterThan", "GreaterThanOrEqual"}:
            found = pc.or_(found, pc.is_nan(column))  # Spark sorts NaN after all numbers
        return pc.fill_null(found, fill_value=False) if self.kind == "EqualNullSafe" else found

    def range(self) -> ColumnRange | None:
        """Return values that include all that pass; None when nothing is known of them."""
        if (self.kind == "IsNull") != (
            self.negated and self.kind in {"IsNull", "IsNotNull", "EqualNullSafe"}
        ):
            return None  # null passes
        of = self.type
        if self.negated or pa.types.is_floating(of):
            return ColumnRange(of)
        values = sorted(map(_number, self.values))
        match self.kind:
            case "EqualTo" | "EqualNullSafe" | "In":
                return ColumnRange(of, points=tuple(dict.fromkeys(values)))
            case "GreaterThan" | "GreaterThanOrEqual":
                return ColumnRange(of, low=values[0])
            case "LessThan" | "LessThanOrEqual":
                return ColumnRange(of, high=values[0])
            case "StringStartsWith":
                return ColumnRange(of, low=values[0], high=_after_prefix(values[0]))
        return ColumnRange(of)


def _number(value: pa.Scalar) -> Any:
    """Return a value as statistics have it."""
    return value.value if pa.types.is_temporal(value.type) else value.as_py()


def _after_prefix(prefix: str) -> str | None:
    """Return a text that is not below any text with the prefix; None when there is none."""
    while prefix and ord(prefix[-1]) == _LAST_CHARACTER:
        prefix = prefix[:-1]
    if not prefix:
        return None
    following = ord(prefix[-1]) + 1
    return prefix[:-1] + chr(_SURROGATES.stop if following in _SURROGATES else following)


@dataclass(frozen=True)
class ReadFilter:
    """Conditions that every row of a read meets. Can be pickled."""

    conditions: tuple[_RowCondition, ...] = ()

    @classmethod
    def where(cls, text: str, declared: "StructType") -> "ReadFilter":
        """Return the filter that the option `where` describes, for rows of a declared schema.

        Raises Invalid when the text is no such condition, or names another column.
        """
        schema = arrow_schema(declared)
        found, left = cls.of(parse_where(text, schema), declared)
        if left:
            column = getattr(getattr(left[0], "child", left[0]), "attribute", ("",))[0]
            raise Invalid(
                f"option {_WHERE}: column {column} is {schema.field(column).type}, which cannot be compared"
                " so; filter the rows that are read instead"
            )
        return found

    @classmethod
    def of(cls, filters: "Iterable[Filter]", declared: "StructType") -> "tuple[ReadFilter, list[Filter]]":
        """Return a filter for rows of a declared schema, and the filters that Spark has to apply itself."""
        schema = arrow_schema(declared)
        taken: list[_RowCondition] = []
        left: list[Filter] = []
        for given in filters:
            condition = _condition(given, schema)
            if condition is None:
                left.append(given)
            else:
                taken.append(condition)
        return cls(tuple(taken)), left

    @cached_property
    def ranges(self) -> Mapping[str, ColumnRange]:
        """By the declared name of a column: values that include those of all rows that pass."""
        ranges: dict[str, ColumnRange] = {}
        for condition in self.conditions:
            found = condition.range()
            if found is not None:
                known = ranges.get(condition.column)
                ranges[condition.column] = found if known is None else known.both(found)
        return ranges

    def handles(self, table: TableInfo, asked: tuple[bytes, bytes] = (b"", b"")) -> tuple[bytes, bytes]:
        """Return those of the `asked` handles [first, end) that rows which pass can have; b"": no bound."""
        found = handles_within(table, self.ranges)
        first = max(asked[0], found[0])
        end = min((end for end in (asked[1], found[1]) if end), default=b"")
        return _NO_HANDLE if end and end <= first else (first, end)

    def wanted_rows(self, table: TableInfo, columns: Iterable[str]) -> WantedRows:
        """Return what is known of rows that pass, for reads of some columns, by their Arrow names."""
        names = {shown_name(name): name for name in columns}
        return WantedRows(
            table, {names[name]: wanted for name, wanted in self.ranges.items() if name in names}
        )

    @property
    def passes_nothing(self) -> bool:
        """Whether it is known that no row passes."""
        return any(wanted.is_empty for wanted in self.ranges.values())

    def apply(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows that pass; nothing is copied where all do."""
        for batch in batches:
            mask: pa.Array | None = None
            for condition in self.conditions:
                found = condition.mask(batch.column(condition.column))
                mask = found if mask is None else pc.and_(mask, found)
            if mask is None or mask.true_count == len(mask):
                yield batch
            elif mask.true_count:
                yield batch.filter(mask)


def _condition(given: "Filter", schema: pa.Schema) -> _RowCondition | None:
    """Return the condition of a filter of Spark; None where we might choose other rows than Spark would."""
    negated = isinstance(given, datasource.Not)
    inner: Any = given.child if isinstance(given, datasource.Not) else given
    kind = type(inner).__name__
    path: Sequence[str] = getattr(inner, "attribute", ())
    if len(path) != 1 or schema.get_field_index(path[0]) < 0:
        return None
    column, of = path[0], schema.field(path[0]).type
    if kind in {"IsNull", "IsNotNull"}:
        return _RowCondition(column, of, kind, (), negated)
    if pa.types.is_nested(of):
        return None
    given_values = list(inner.value) if kind == "In" else [getattr(inner, "value", None)]
    if kind == "In" and not negated:
        given_values = [value for value in given_values if value is not None]
    if any(value is None or (isinstance(value, float) and isnan(value)) for value in given_values):
        return None
    is_known = (
        kind in _COMPARISONS
        or (kind in _TEXTS and pa.types.is_string(of))
        or (kind == "In" and not pa.types.is_floating(of))  # 0.0 and -0.0 may differ in a set
    )
    try:
        values = tuple(_scalar(value, of) for value in given_values) if is_known else ()
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return None
    return _RowCondition(column, of, kind, values, negated) if values else None


def _scalar(value: Any, of: pa.DataType) -> pa.Scalar:
    """Return a value of a filter in a column's type; raise when it does not have exactly that value there."""
    is_time = isinstance(value, datetime)
    if pa.types.is_timestamp(of) != is_time or pa.types.is_boolean(of) != isinstance(value, bool):
        raise TypeError("not a value of the column's type")
    if is_time and (value.tzinfo is None) != (of.tz is None):
        raise TypeError("a time with a zone cannot be compared with one without")
    if pa.types.is_temporal(of) and not isinstance(value, date | timedelta):
        raise TypeError("Arrow takes any number for a date or an interval")
    found = pa.scalar(bytes(value) if isinstance(value, bytearray) else value, of)
    if (pa.types.is_floating(of) or pa.types.is_integer(of)) and found.as_py() != value:
        raise ValueError("more digits than the column has")  # Arrow cuts them off
    return found


def handles_within(table: TableInfo, ranges: Mapping[str, ColumnRange]) -> tuple[bytes, bytes]:
    """Return the handles [first, end) that rows within some ranges can have; b"" where there is no bound.

    `ranges` are by the names of columns. Only a clustered primary key bounds handles.
    """
    keys = [(column, ranges.get(column.name)) for column in table.handle_columns]
    if not keys or keys[0][1] is None:
        return b"", b""
    if table.handle_kind is HandleKind.INT:
        return _integer_handles(keys[0][0], keys[0][1])
    return _encoded_handles(table, keys)


def _integer_handles(column: ColumnInfo, wanted: ColumnRange) -> tuple[bytes, bytes]:
    """Handles are signed: those of large unsigned keys are negative, and come first."""
    keys = range(1 << 64) if column.type.unsigned else range(-1 << 63, 1 << 63)
    if wanted.points is not None:
        if any(int(point) not in keys for point in wanted.points):  # the column is shown as a decimal
            return b"", b""
        numbers = [to_signed(int(point)) for point in wanted.points]
        return encode_handle(min(numbers)), _after(encode_handle(max(numbers)))
    low, high = (None if end is None else int(end) for end in wanted.ends)
    if column.type.unsigned:
        low = max(low or 0, 0)
        if high is None or high not in keys or (low >> 63) != (high >> 63):
            return b"", b""
        low, high = to_signed(low), to_signed(high)
    first = b"" if low is None else encode_handle(low)
    return first, b"" if high is None else _after(encode_handle(high))


def _encoded_handles(
    table: TableInfo, keys: Sequence[tuple[ColumnInfo, ColumnRange | None]]
) -> tuple[bytes, bytes]:
    """Encode the wanted keys if all are known and few; return the lowest and the end after the highest."""
    chosen: list[Sequence[Any]] = [
        () if wanted is None or not _is_plain(column) else wanted.points or () for column, wanted in keys
    ]
    if not 0 < prod(map(len, chosen)) <= _KEYS_MAX:
        return b"", b""
    ids = [column.id for column, _ in keys]
    try:
        columns = [
            [check_datum(column, point if column.type.is_string else int(point)) for point in points]
            for (column, _), points in zip(keys, chosen, strict=True)
        ]
        handles = [
            encode_handle(handle_of(table, dict(zip(ids, values, strict=True))))
            for values in product(*columns)
        ]
    except Invalid:  # no row has such a value
        return b"", b""
    return min(handles), _after(max(handles))


def _is_plain(column: ColumnInfo) -> bool:
    """Return whether the values of filters are those that rows of the column are written with."""
    return column.type.tp in INTEGER_BITS or column.type.is_string


def _after(handle: bytes) -> bytes:
    return handle + b"\0"


_FLIPPED = {
    "GreaterThan": "LessThan",
    "GreaterThanOrEqual": "LessThanOrEqual",
    "LessThan": "GreaterThan",
    "LessThanOrEqual": "GreaterThanOrEqual",
}
_OPERATORS = {
    "eq": "EqualTo",
    "neq": "EqualTo",  # negated
    "nullsafeeq": "EqualNullSafe",
    "gt": "GreaterThan",
    "gte": "GreaterThanOrEqual",
    "lt": "LessThan",
    "lte": "LessThanOrEqual",
}


def parse_where(text: str, schema: pa.Schema) -> "list[Filter]":
    """Return the conditions of a text, which AND joins, as filters on columns of a schema.

    Raises Invalid, without values of the text, when it has anything else.
    """
    from penstock.tables.conditions import parse_condition

    return list(_WhereParser(schema).filters(parse_condition(text, f"option {_WHERE}")))


class _WhereParser:
    """Turns the tree of a condition into filters, with constants of the types that its columns have."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._names = {name.lower(): name for name in reversed(schema.names)}

    def filters(self, node: "exp.Expr", *, negated: bool = False) -> "Iterator[Filter]":
        """Yield the conditions of a node."""
        from sqlglot import exp

        from penstock.tables.conditions import refuse_unlisted

        refuse_unlisted(node, f"option {_WHERE}")
        match node:
            case exp.Paren():
                yield from self.filters(node.this, negated=negated)
            case exp.And() if not negated:
                yield from self.filters(node.this)
                yield from self.filters(node.expression)
            case exp.Not():
                yield from self.filters(node.this, negated=not negated)
            case exp.Between() if not negated:
                path, of = self._column(node.this)
                yield datasource.GreaterThanOrEqual(path, self._value(node.args["low"], path, of))
                yield datasource.LessThanOrEqual(path, self._value(node.args["high"], path, of))
            case _:
                found = self._comparison(node)
                is_not = negated != (isinstance(node, exp.NEQ) or bool(node.args.get("negate")))
                yield datasource.Not(found) if is_not else found

    def _comparison(self, node: "exp.Expr") -> "Filter":
        from sqlglot import exp

        match node:
            case exp.Is(this=column, expression=exp.Null()):
                return datasource.IsNull(self._column(column)[0])
            case exp.In(this=column, expressions=[*values]) if values:
                path, of = self._column(column)
                return datasource.In(path, tuple(self._value(value, path, of) for value in values))
            case exp.Like(this=column, expression=exp.Literal(this=str(pattern), is_string=True)):
                return self._like(self._column(column)[0], pattern)
        kind = _OPERATORS.get(node.key)
        if kind is None:
            raise Invalid(
                f"option {_WHERE} has {node.key.upper()!r}; it takes comparisons of a column with a constant,"
                " joined by AND: filter the rows that are read for the rest"
            )
        column, constant = node.this, node.expression
        if isinstance(constant, exp.Column):
            column, constant, kind = constant, column, _FLIPPED.get(kind, kind)
        path, of = self._column(column)
        made: Filter = getattr(datasource, kind)(path, self._value(constant, path, of))
        return made

    def _column(self, node: "exp.Expr") -> tuple[tuple[str], pa.DataType]:
        from sqlglot import exp

        if not isinstance(node, exp.Column) or node.table:
            raise Invalid(
                f"option {_WHERE} compares something that is no column; write a column and a constant"
            )
        name = self._names.get(node.name.lower())
        if name is None:
            raise Invalid(
                f"option {_WHERE} names {node.name!r}, which is not read; there are"
                f" {', '.join(self._schema.names)}"
            )
        return (name,), self._schema.field(name).type

    def _like(self, path: tuple[str], pattern: str) -> "Filter":
        inner = pattern.strip("%")
        if any(mark in inner for mark in "%_\\") or not inner:
            raise Invalid(
                f"option {_WHERE}: LIKE takes a text with % before or after it, and no _ or backslash"
            )
        begins, ends = not pattern.startswith("%"), not pattern.endswith("%")
        if begins and ends:
            return datasource.EqualTo(path, inner)
        if begins:
            return datasource.StringStartsWith(path, inner)
        return (datasource.StringEndsWith if ends else datasource.StringContains)(path, inner)

    def _value(self, node: "exp.Expr", path: tuple[str], of: pa.DataType) -> Any:
        """Return a constant as a value of the column's type; raise Invalid when it is not one."""
        from sqlglot import exp

        from penstock.tables.conditions import TIME_CASTS

        sign = 1
        if isinstance(node, exp.Neg):
            sign, node = -1, node.this
        if isinstance(node, exp.Cast) and node.to.this.name in TIME_CASTS:
            node = node.this
        try:
            match node:
                case exp.HexString():
                    return bytes.fromhex(node.name)
                case exp.Boolean() if sign > 0:
                    return node.this
                case exp.Literal(this=str(text), is_string=True) if sign > 0:
                    return _typed_text(text, of)
                case exp.Literal(this=str(text)):
                    return float(text) * sign if pa.types.is_floating(of) else _whole(Decimal(text) * sign)
        except (InvalidOperation, ValueError):
            pass
        raise Invalid(f"option {_WHERE}: column {path[0]} is {of}; compare it with a constant of that type")


def _whole(number: Decimal) -> int | Decimal:
    return int(number) if number == number.to_integral_value() else number


def _typed_text(text: str, of: pa.DataType) -> Any:
    """Return a text as a value of a type; a time without an offset is UTC, as in other options."""
    if pa.types.is_date(of):
        return date.fromisoformat(text)
    if pa.types.is_timestamp(of):
        time = datetime.fromisoformat(text)
        return time.replace(tzinfo=UTC) if of.tz is not None and time.tzinfo is None else time
    return Decimal(text) if pa.types.is_decimal(of) else text
