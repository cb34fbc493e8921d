"""SQL conditions that people write: parsed, and refused unless every part of them is listed here.

Listed are comparisons of columns and constants (=, <>, !=, <, <=, >, >=, <=>), IN with a list, BETWEEN, LIKE,
IS [NOT] NULL, TRUE and FALSE, AND, OR, NOT, parentheses, and constants of dates and times. Functions,
arithmetic, subqueries, variables and wildcards are not. So nothing that an engine offers beyond these can be
reached by a condition, whoever wrote it. Quoting is MySQL's.

The conditions of partial indexes are evaluated here too, a row at a time.
"""

import operator
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any

from sqlglot import exp
from sqlglot.errors import SqlglotError

from penstock.errors import Invalid
from penstock.tables.codec import collations
from penstock.tables.codec.datums import Datum, DatumKind
from penstock.tables.columns import INTEGER_BITS, ColumnInfo, FieldType, Tp
from penstock.tables.records import Record
from penstock.tables.schema import TableInfo
from penstock.tables.values import from_datum, parse_time

__all__ = ["COMPARISONS", "TIME_CASTS", "compile_condition", "parse_condition", "refuse_unlisted"]

COMPARISONS: tuple[type[exp.Expr], ...] = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE)
TIME_CASTS = frozenset({"DATE", "DATETIME", "TIMESTAMP", "TIMESTAMPTZ"})
"""Types that a constant text may be cast to, as in DATE '2026-01-01'."""

_TWO = frozenset({"this", "expression"})
_LISTED: Mapping[type[exp.Expr], frozenset[str]] = {
    **dict.fromkeys((exp.And, exp.Or, exp.Is, exp.NullSafeEQ, *COMPARISONS), _TWO),
    **dict.fromkeys((exp.Paren, exp.Not, exp.Neg, exp.Boolean), frozenset({"this"})),
    exp.Like: _TWO | {"negate"},
    exp.Between: frozenset({"this", "low", "high"}),
    exp.In: frozenset({"this", "expressions"}),
    exp.Column: frozenset({"this", "table"}),
    exp.Literal: frozenset({"this", "is_string"}),
    exp.HexString: frozenset({"this", "is_integer"}),
    exp.Cast: frozenset({"this", "to", "_type"}),
    exp.Null: frozenset(),
}
"""The arguments that may be given to each kind of node."""


@lru_cache(maxsize=256)
def parse_condition(text: str, subject: str) -> exp.Expr:
    """Parse a condition; raise Invalid, which names the `subject`, when the text cannot be parsed.

    The nodes of the tree are not checked yet: callers pass each to `refuse_unlisted` before they read it.
    """
    try:
        return exp.condition(text, dialect="mysql")
    except RecursionError:
        raise Invalid(f"{subject} is nested too deeply; write a simpler one") from None
    except (SqlglotError, ValueError) as error:
        raise Invalid(f"{subject} is no SQL predicate; write it as after WHERE") from error


def refuse_unlisted(node: exp.Expr, subject: str) -> None:
    """Raise Invalid for a kind of node that is not listed, or that has more than its listed arguments."""
    given = {name for name, value in node.args.items() if value}
    if not given <= _LISTED.get(type(node), frozenset()):
        what = " ".join(node.key.split())
        raise Invalid(
            f"{subject} has {what!r}, which is not supported; use comparisons of columns and constants"
        )


Truth = bool | None
"""Of SQL: None is unknown, because a value is NULL."""
RowPredicate = Callable[[Record], Truth]

_OPERATORS: Mapping[type[exp.Expr], Callable[[Any, Any], bool]] = {
    exp.EQ: operator.eq,
    exp.NEQ: operator.ne,
    exp.GT: operator.gt,
    exp.GTE: operator.ge,
    exp.LT: operator.lt,
    exp.LTE: operator.le,
}
_MIRRORED: Mapping[type[exp.Expr], type[exp.Expr]] = {
    exp.GT: exp.LT,
    exp.GTE: exp.LTE,
    exp.LT: exp.GT,
    exp.LTE: exp.GTE,
}
_AMBIGUOUS = re.compile(r"\\|!(?!=)")
"""A backslash is one in some SQL modes only, and `!` binds tighter than NOT."""
_MOMENT = FieldType(Tp.DATETIME, decimal=6)


def compile_condition(table: TableInfo, text: str, subject: str) -> RowPredicate:
    """Return what evaluates a condition on the rows of a table as MySQL does, NULLs included.

    It has AND, OR, NOT, IS [NOT] NULL, and columns compared with constants: by operators, BETWEEN and IN.
    Raise Invalid for any other condition.
    """
    if _AMBIGUOUS.search(text):
        raise Invalid(f"{subject} has a backslash or `!`, whose meaning depends on the SQL mode")
    try:
        return _RowCompiler(table, subject).predicate(parse_condition(text.strip(), subject))
    except (RecursionError, ValueError) as error:
        raise Invalid(f"{subject} is nested too deeply, or has a constant of another type") from error


class _RowCompiler:
    def __init__(self, table: TableInfo, subject: str) -> None:
        self._table = table
        self._subject = subject

    def predicate(self, node: exp.Expr) -> RowPredicate:
        """Compile a node that is true, false or unknown for a row."""
        refuse_unlisted(node, self._subject)
        if isinstance(node, exp.Paren):
            return self.predicate(node.this)
        if isinstance(node, exp.And | exp.Or):
            join = _both if isinstance(node, exp.And) else _either
            left, right = self.predicate(node.this), self.predicate(node.expression)
            return lambda record: join(left(record), right(record))
        if isinstance(node, exp.Not):
            inside = self.predicate(node.this)
            return lambda record: _opposite(inside(record))
        if isinstance(node, exp.Is) and isinstance(node.expression, exp.Null):
            column_id = self._column(node.this).id
            return lambda record: record[column_id].kind is DatumKind.NULL
        if isinstance(node, exp.Between):
            low = self._compare(exp.GTE, node.this, node.args["low"])
            high = self._compare(exp.LTE, node.this, node.args["high"])
            return lambda record: _both(low(record), high(record))
        if isinstance(node, exp.In):
            return self._is_in([self._compare(exp.EQ, node.this, value) for value in node.expressions])
        if isinstance(node, COMPARISONS):
            if isinstance(node.expression, exp.Column):
                return self._compare(_MIRRORED.get(type(node), type(node)), node.expression, node.this)
            return self._compare(type(node), node.this, node.expression)
        raise Invalid(f"{self._subject} has {node.key!r}, which is not supported here")

    @staticmethod
    def _is_in(equals: list[RowPredicate]) -> RowPredicate:
        def is_in(record: Record) -> Truth:
            found: Truth = False
            for equal in equals:
                found = _either(found, equal(record))
            return found

        return is_in

    def _compare(self, kind: type[exp.Expr], column: exp.Expr, constant: exp.Expr) -> RowPredicate:
        """Compile the comparison of a column with a constant."""
        found = self._column(column)
        if isinstance(constant, exp.Null):
            return lambda _: None
        read, value = _comparable(found, *self._constant(constant))
        compare, column_id = _OPERATORS[kind], found.id

        def holds(record: Record) -> Truth:
            datum = record[column_id]
            return None if datum.kind is DatumKind.NULL else compare(read(datum), value)

        return holds

    def _column(self, node: exp.Expr) -> ColumnInfo:
        if not isinstance(node, exp.Column):
            raise Invalid(f"{self._subject} compares something else than a column with a constant")
        column = self._table.column(node.name)
        if column.is_virtual:
            raise Invalid(f"{self._subject} has the generated column {column.name}")
        return column

    def _constant(self, node: exp.Expr) -> tuple[str | None, str | None]:
        """Return a constant as a number or as a text; the other is None."""
        sign = "-" if isinstance(node, exp.Neg) else ""
        inside = node.this if isinstance(node, exp.Neg) else node
        if isinstance(inside, exp.Introducer) and str(inside.this).lower() != "_binary":
            inside = inside.expression
        if not isinstance(inside, exp.Literal) or (sign and inside.is_string):
            raise Invalid(f"{self._subject} compares a column with something else than a constant")
        return (None, str(inside.this)) if inside.is_string else (f"{sign}{inside.this}", None)


def _both(left: Truth, right: Truth) -> Truth:
    if left is False or right is False:
        return False
    return None if left is None or right is None else True


def _either(left: Truth, right: Truth) -> Truth:
    if left is True or right is True:
        return True
    return None if left is None or right is None else False


def _opposite(value: Truth) -> Truth:
    return None if value is None else not value


def _comparable(
    column: ColumnInfo, number: str | None, text: str | None
) -> tuple[Callable[[Datum], Any], Any]:
    """Return what of a stored value compares with a constant, and the constant; raise Invalid for others."""
    kind = column.type
    if number is not None and kind.tp in {Tp.FLOAT, Tp.DOUBLE}:
        return lambda datum: from_datum(kind, datum), float(number)
    if number is not None and kind.tp in {*INTEGER_BITS, Tp.YEAR, Tp.NEW_DECIMAL}:
        return lambda datum: from_datum(kind, datum), Decimal(number)
    if text is not None and kind.is_string:
        return lambda datum: _weigh(kind, datum), collations.sort_key(kind, text.encode())
    if text is not None and kind.tp in {Tp.DATE, Tp.DATETIME}:
        return lambda datum: datum.value, parse_time(_MOMENT, text)
    raise Invalid(f"column {column.name} does not compare with the constant")


def _weigh(kind: FieldType, datum: Datum) -> bytes:
    return collations.sort_key(kind, datum.value if isinstance(datum.value, bytes) else b"")
