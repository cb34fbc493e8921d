"""Which rows of a table a changefeed replicates: a SQL predicate, evaluated on whole batches.

It understands comparisons of columns and constants (=, <>, !=, <, <=, >, >=, <=>), IN, BETWEEN, LIKE, IS
[NOT] NULL, IS [NOT] TRUE and FALSE, AND, OR, NOT and parentheses, with MySQL's quoting. It has SQL's unknown:
a row for which the predicate is unknown is not replicated. Text is compared by characters, whatever its
collation. Times are in UTC: a constant with an offset is converted.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from enum import Enum
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from penstock.changefeeds.codecs.row_changes import Mask
from penstock.columnar.text_lines import truths
from penstock.errors import Invalid
from penstock.eventstore.schema_version import SchemaVersion
from penstock.tables.arrow import arrow_schema
from penstock.tables.columns import INTEGER_BITS, PACKED_TIMES, FieldType, Tp
from penstock.tables.conditions import TIME_CASTS, parse_condition, refuse_unlisted
from penstock.tables.impossible_dates import hide_column
from penstock.tables.schema import TableInfo

Evaluate = Callable[[pa.RecordBatch], Any]
"""A column, or one value for all rows."""

_UNKNOWN = pa.scalar(None, pa.bool_())


@dataclass(frozen=True, slots=True)
class RowFilter:
    """A predicate on the rows of one table. `columns` are those that it reads, by the table's names."""

    columns: tuple[str, ...]
    predicate: Evaluate

    @classmethod
    def of(cls, schema: SchemaVersion, where: str) -> "RowFilter | None":
        """Compile a predicate; return None for an empty one. Raises Invalid, in one line, for a wrong one."""
        if not where.strip():
            return None
        try:
            columns, predicate = _compile(where, schema.name, schema.table)
            predicate(pa.RecordBatch.from_pylist([], arrow_schema(schema.table)))
        except pa.ArrowException as error:
            raise Invalid(
                f"row filter of {schema.name} has a constant that cannot be compared with its column; give a"
                " constant of the column's type and range"
            ) from error
        return cls(columns, predicate)

    def keeps(self, rows: pa.RecordBatch) -> Mask:
        """Return which rows satisfy the predicate; unknown counts as no."""
        result = self.predicate(rows)
        if isinstance(result, pa.Scalar):
            return np.full(rows.num_rows, bool(result.as_py()))
        return truths(result)


def check_predicate(where: str) -> None:
    """Raise Invalid for a text that is no SQL predicate; the columns are checked when a table is known."""
    _parse(where, "some tables")


def _compile(where: str, name: str, table: TableInfo) -> tuple[tuple[str, ...], Evaluate]:
    compiler = _Compiler(name, table)
    predicate = compiler.predicate(_parse(where, name))
    return tuple(dict.fromkeys(compiler.columns)), predicate


def _parse(where: str, name: str) -> exp.Expr:
    return parse_condition(where, f"row filter of {name}")


class _TypeFamily(Enum):
    """The kinds of values; only values of one kind can be compared."""

    NUMBER = "a number"
    TEXT = "text"
    BYTES = "bytes"
    TIME = "a time"
    NOTHING = "NULL"
    OTHER = "another type"


@dataclass(frozen=True, slots=True)
class _Operand:
    family: _TypeFamily
    value: Evaluate
    constant: Any = None  # its text, if it is a constant text


_COMPARISONS: Mapping[type[exp.Expr], Callable[[Any, Any], Any]] = {
    exp.EQ: pc.equal,
    exp.NEQ: pc.not_equal,
    exp.GT: pc.greater,
    exp.GTE: pc.greater_equal,
    exp.LT: pc.less,
    exp.LTE: pc.less_equal,
}
_NUMBERS = frozenset({*INTEGER_BITS, Tp.YEAR, Tp.BIT, Tp.FLOAT, Tp.DOUBLE, Tp.NEW_DECIMAL})
_FLOATS = frozenset({Tp.FLOAT, Tp.DOUBLE})


class _Compiler:
    """Compiles a parsed predicate to functions of Arrow; it refuses nodes that it does not understand."""

    def __init__(self, name: str, table: TableInfo) -> None:
        self._name = name
        self._table = table
        self.columns: list[str] = []

    def predicate(self, node: exp.Expr) -> Evaluate:
        """Compile a node that is true, false or unknown for a row."""
        self._check(node)
        if isinstance(node, exp.Paren):
            return self.predicate(node.this)
        if isinstance(node, exp.And | exp.Or):
            return self._join(node)
        if isinstance(node, exp.Not):
            inside = self.predicate(node.this)
            return lambda rows: pc.invert(inside(rows))
        if isinstance(node, exp.Is):
            return self._is(node)
        if isinstance(node, exp.Between):
            return self._between(node)
        if isinstance(node, exp.In):
            return self._in(node)
        if isinstance(node, exp.Like):
            return self._like(node)
        if isinstance(node, exp.NullSafeEQ):
            return self._same(self._operand(node.this), self._operand(node.expression))
        if type(node) in _COMPARISONS:
            return self._compare(type(node), self._operand(node.this), self._operand(node.expression))
        return self._truth(node)

    def _check(self, node: exp.Expr) -> None:
        refuse_unlisted(node, f"row filter of {self._name}")

    def _refusal(self, node: exp.Expr, hint: str = "") -> Invalid:
        what = " ".join(node.key.split())
        return Invalid(
            f"row filter of {self._name} has {what!r}, which is not supported"
            f"{hint}; use comparisons of columns and constants"
        )

    def _join(self, node: exp.And | exp.Or) -> Evaluate:
        join = pc.and_kleene if isinstance(node, exp.And) else pc.or_kleene
        parts = [self.predicate(part) for part in node.flatten(unnest=False)]
        return lambda rows: reduce(join, (part(rows) for part in parts))

    def _truth(self, node: exp.Expr) -> Evaluate:
        """Compile a number as a truth value: zero is false."""
        operand = self._operand(node)
        if operand.family is _TypeFamily.NOTHING:
            return lambda _: _UNKNOWN
        if operand.family is not _TypeFamily.NUMBER:
            raise self._refusal(node, " as a truth")
        return self._compare(exp.NEQ, operand, _number(Decimal(0)))

    def _is(self, node: exp.Is) -> Evaluate:
        wanted = node.expression
        if isinstance(wanted, exp.Null):
            value = self._operand(node.this).value
            return lambda rows: pc.is_null(value(rows))
        if isinstance(wanted, exp.Boolean):
            truth, positive = self.predicate(node.this), bool(wanted.this)
            check = _is_true if positive else _is_false
            return lambda rows: check(truth(rows))
        raise self._refusal(node)

    def _between(self, node: exp.Between) -> Evaluate:
        value = self._operand(node.this)
        low = self._compare(exp.GTE, value, self._operand(node.args["low"]))
        high = self._compare(exp.LTE, value, self._operand(node.args["high"]))
        return lambda rows: pc.and_kleene(low(rows), high(rows))

    def _in(self, node: exp.In) -> Evaluate:
        if not node.expressions:
            raise self._refusal(node, " but with a list")
        value = self._operand(node.this)
        parts = [self._compare(exp.EQ, value, self._operand(item)) for item in node.expressions]
        return lambda rows: reduce(pc.or_kleene, (part(rows) for part in parts))

    def _like(self, node: exp.Like) -> Evaluate:
        value, pattern = self._operand(node.this), self._operand(node.expression)
        if value.family is not _TypeFamily.TEXT or not isinstance(pattern.constant, str):
            raise self._refusal(node, " but of text and a constant pattern")
        if node.args.get("negate"):
            return lambda rows: pc.invert(pc.match_like(value.value(rows), pattern.constant))
        return lambda rows: pc.match_like(value.value(rows), pattern.constant)

    def _same(self, left: _Operand, right: _Operand) -> Evaluate:
        equal = self._compare(exp.EQ, left, right)

        def evaluate(rows: pa.RecordBatch) -> Any:
            both = pc.and_(pc.is_null(left.value(rows)), pc.is_null(right.value(rows)))
            return pc.or_(both, _is_true(equal(rows)))

        return evaluate

    def _compare(self, kind: type[exp.Expr], left: _Operand, right: _Operand) -> Evaluate:
        left, right = self._alike(left, right), self._alike(right, left)
        if _TypeFamily.NOTHING in {left.family, right.family}:
            return lambda _: _UNKNOWN
        if left.family is not right.family or left.family is _TypeFamily.OTHER:
            raise Invalid(
                f"row filter of {self._name} compares {left.family.value} with {right.family.value}; "
                "give constants of the columns' types"
            )
        compare = _COMPARISONS[kind]
        return lambda rows: compare(left.value(rows), right.value(rows))

    def _alike(self, operand: _Operand, other: _Operand) -> _Operand:
        """Return a constant text as a value of the kind that it is compared with."""
        if not isinstance(operand.constant, str) or other.family is operand.family:
            return operand
        if other.family is _TypeFamily.NUMBER:
            return _number(self._parse_number(operand.constant))
        if other.family is _TypeFamily.TIME:
            return _constant(_TypeFamily.TIME, self._parse_time(operand.constant))
        if other.family is _TypeFamily.BYTES:
            return _constant(_TypeFamily.BYTES, pa.scalar(operand.constant.encode(), pa.binary()))
        return operand

    def _operand(self, node: exp.Expr) -> _Operand:
        self._check(node)
        if isinstance(node, exp.Paren):
            return self._operand(node.this)
        if isinstance(node, exp.Column):
            return self._column(node)
        if isinstance(node, exp.Literal):
            return _text(str(node.this)) if node.is_string else _number(self._parse_number(str(node.this)))
        if isinstance(node, exp.Neg) and isinstance(node.this, exp.Literal) and not node.this.is_string:
            return _number(-self._parse_number(str(node.this.this)))
        if isinstance(node, exp.Boolean):
            return _number(Decimal(int(node.this)))
        if isinstance(node, exp.Null):
            return _Operand(_TypeFamily.NOTHING, lambda _: _UNKNOWN)
        if isinstance(node, exp.HexString):
            return _constant(_TypeFamily.BYTES, pa.scalar(_hex_bytes(str(node.this)), pa.binary()))
        if (
            isinstance(node, exp.Cast)
            and isinstance(node.this, exp.Literal)
            and node.to.this.name in TIME_CASTS
        ):
            return _constant(_TypeFamily.TIME, self._parse_time(str(node.this.this)))
        raise self._refusal(node)

    def _column(self, node: exp.Column) -> _Operand:
        if node.table and node.table.lower() != self._table.name.lower():
            raise Invalid(f"row filter of {self._name} names table {node.table}; leave the table out")
        column = self._table.column(node.name)
        self.columns.append(column.name)
        family, name = _family_of(column.type), column.name
        if family is _TypeFamily.TIME:
            return _Operand(family, lambda rows: hide_column(rows.column(name)).cast(pa.timestamp("us")))
        if column.type.tp in _FLOATS:
            return _Operand(family, lambda rows: rows.column(name).cast(pa.float64()))
        return _Operand(family, lambda rows: rows.column(name))

    def _parse_number(self, text: str) -> Decimal:
        try:
            return Decimal(text)
        except InvalidOperation:
            raise Invalid(
                f"row filter of {self._name} compares a number with a text that is no number; write a number"
            ) from None

    def _parse_time(self, text: str) -> pa.Scalar:
        """Parse a constant time. As in MySQL, an offset is converted to the session's zone, here UTC."""
        try:
            moment = datetime.fromisoformat(text)
            if moment.tzinfo is not None:
                moment = moment.astimezone(UTC).replace(tzinfo=None)
            return pa.scalar(moment, pa.timestamp("us"))
        except (ValueError, OverflowError):
            raise Invalid(
                f"row filter of {self._name} has a text that is no time;"
                " write 'YYYY-MM-DD[ HH:MM:SS[.ffffff][+HH:MM]]'"
            ) from None


def _is_true(truth: Any) -> Any:
    return pc.fill_null(truth, fill_value=False)


def _is_false(truth: Any) -> Any:
    return pc.fill_null(pc.invert(truth), fill_value=False)


def _constant(family: _TypeFamily, value: pa.Scalar) -> _Operand:
    return _Operand(family, lambda _: value)


def _text(text: str) -> _Operand:
    value = pa.scalar(text, pa.string())
    return _Operand(_TypeFamily.TEXT, lambda _: value, constant=text)


def _number(number: Decimal) -> _Operand:
    return _constant(_TypeFamily.NUMBER, pa.scalar(number))


def _hex_bytes(digits: str) -> bytes:
    return bytes.fromhex(digits if len(digits) % 2 == 0 else f"0{digits}")


def _family_of(kind: FieldType) -> _TypeFamily:
    if kind.tp in PACKED_TIMES:
        return _TypeFamily.TIME
    if kind.is_string:
        return _TypeFamily.BYTES if kind.is_binary else _TypeFamily.TEXT
    if kind.tp in {Tp.ENUM, Tp.SET}:
        return _TypeFamily.TEXT
    wide = kind.tp is Tp.NEW_DECIMAL and kind.precision > 38
    return _TypeFamily.NUMBER if kind.tp in _NUMBERS and not wide else _TypeFamily.OTHER
