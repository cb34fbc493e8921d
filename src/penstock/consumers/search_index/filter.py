"""The filter of a search: a condition on columns of the index, which Lance gets in our words.

Lance offers every function of its engine to a filter, and walks a filter by recursion in native code. Both
could end the process. So a filter is parsed here, only listed parts pass, and what passed is written anew: no
character of the caller's reaches Lance except inside a quoted constant.
"""

import re
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal, InvalidOperation

import pyarrow as pa
from sqlglot import exp

from penstock.errors import Invalid
from penstock.tables.conditions import COMPARISONS, TIME_CASTS, parse_condition, refuse_unlisted

__all__ = ["render_filter"]

_SUBJECT = "the filter"
_CHARS_MAX = 16_384
_TERMS_MAX = 256
_CONDITIONS_MAX = 256
_FLAT = re.compile(r"\b(?:and|or|in|[0-9.]+(?:e[+-]?[0-9]+)?)\b|[,()\s]", re.IGNORECASE)
"""Parts that are not limited here: lists are flat, and nesting is limited by the parser."""
_TERM = re.compile(r"\w+|[^\w\s]")
_OPERATORS: Mapping[type[exp.Expr], str] = dict(
    zip(COMPARISONS, ("=", "<>", ">", ">=", "<", "<="), strict=True)
) | {exp.NullSafeEQ: "IS NOT DISTINCT FROM"}
_JOINTS: Mapping[type[exp.Expr], str] = {exp.And: " AND ", exp.Or: " OR "}


def render_filter(condition: str, columns: pa.Schema) -> str:
    """Return a condition on these columns as Lance reads it.

    Raises Invalid, in one line, for a text that is no condition, that is too long, that names another column,
    or that has a part which is not listed, such as a function or a subquery.
    """
    if len(condition) > _CHARS_MAX:
        raise Invalid(f"the filter has more than {_CHARS_MAX} characters; write a shorter one")
    rest = _FLAT.sub(" ", condition)  # also inside quotes: it is a limit, not a parser
    if len(_TERM.findall(rest)) > _TERMS_MAX:
        raise Invalid(f"the filter has more than {_TERMS_MAX} words and operators; write a simpler one")
    try:
        return _Renderer(columns).condition(parse_condition(condition, _SUBJECT))
    except RecursionError:
        raise Invalid("the filter is nested too deeply; write a simpler one") from None


class _Renderer:
    """Writes a parsed condition; it refuses nodes that are not listed. Every result is in parentheses."""

    def __init__(self, columns: pa.Schema) -> None:
        self._columns = {column.name.lower(): column for column in columns}
        self._conditions = 0

    def condition(self, node: exp.Expr) -> str:
        """Write a node that is true, false or unknown for a row."""
        refuse_unlisted(node, _SUBJECT)
        if isinstance(node, exp.Paren):
            return self.condition(node.this)
        if isinstance(node, exp.And | exp.Or):
            parts = [self.condition(part) for part in node.flatten(unnest=False)]
            return f"({_JOINTS[type(node)].join(parts)})"
        if isinstance(node, exp.Not):
            return f"(NOT {self.condition(node.this)})"
        self._conditions += 1
        if self._conditions > _CONDITIONS_MAX:
            raise Invalid(f"the filter has more than {_CONDITIONS_MAX} conditions; write a simpler one")
        return f"({self._leaf(node)})"

    def _leaf(self, node: exp.Expr) -> str:
        if isinstance(node, exp.Is):
            return self._is(node)
        if isinstance(node, exp.Between):
            value, low, high = self._alike(node.this, node.args["low"], node.args["high"])
            return f"{value} BETWEEN {low} AND {high}"
        if isinstance(node, exp.In):
            if not node.expressions:
                raise Invalid("the filter has IN without a list; write constants in parentheses")
            value, *items = self._alike(node.this, *node.expressions)
            return f"{value} IN ({', '.join(items)})"
        if isinstance(node, exp.Like):
            return self._like(node)
        if type(node) in _OPERATORS:
            left, right = self._alike(node.this, node.expression)
            return f"{left} {_OPERATORS[type(node)]} {right}"
        truth = isinstance(node, exp.Boolean)
        if truth or (isinstance(node, exp.Column) and pa.types.is_boolean(self._column(node).type)):
            return self._operand(node, None)
        raise Invalid("the filter has a value where a condition belongs; compare it with a column")

    def _is(self, node: exp.Is) -> str:
        wanted = node.expression
        refuse_unlisted(wanted, _SUBJECT)
        if isinstance(wanted, exp.Null):
            return f"{self._operand(node.this, None)} IS NULL"
        if isinstance(wanted, exp.Boolean):
            return f"{self.condition(node.this)} IS {'TRUE' if wanted.this else 'FALSE'}"
        raise Invalid("the filter has IS with something other than NULL, TRUE or FALSE; use =")

    def _like(self, node: exp.Like) -> str:
        pattern = node.expression
        refuse_unlisted(pattern, _SUBJECT)
        if not (isinstance(pattern, exp.Literal) and pattern.is_string):
            raise Invalid("the filter has LIKE without a constant pattern; write one in quotes")
        negated = "NOT " if node.args.get("negate") else ""
        return f"{self._operand(node.this, None)} {negated}LIKE {_quote(str(pattern.this))}"

    def _alike(self, *nodes: exp.Expr) -> list[str]:
        """Write operands that are compared; a constant text takes the type of the column beside it."""
        found = next((kind for kind in map(self._type_of, nodes) if kind is not None), None)
        return [self._operand(node, found) for node in nodes]

    def _type_of(self, node: exp.Expr) -> pa.DataType | None:
        if isinstance(node, exp.Paren):
            return self._type_of(node.this)
        return self._column(node).type if isinstance(node, exp.Column) else None

    def _operand(self, node: exp.Expr, beside: pa.DataType | None) -> str:
        refuse_unlisted(node, _SUBJECT)
        if isinstance(node, exp.Paren):
            return self._operand(node.this, beside)
        if isinstance(node, exp.Column):
            return f"`{self._column(node).name}`"
        if isinstance(node, exp.Literal):
            return _text(str(node.this), beside) if node.is_string else _number(str(node.this))
        if isinstance(node, exp.Neg) and isinstance(node.this, exp.Literal) and not node.this.is_string:
            refuse_unlisted(node.this, _SUBJECT)
            return f"-{_number(str(node.this.this))}"
        if isinstance(node, exp.Boolean):
            return "TRUE" if node.this else "FALSE"
        if isinstance(node, exp.Null):
            return "NULL"
        if isinstance(node, exp.HexString):
            return f"X'{_hex_digits(str(node.this))}'"
        if (
            isinstance(node, exp.Cast)
            and isinstance(node.this, exp.Literal)
            and node.to.this.name in TIME_CASTS
        ):
            refuse_unlisted(node.this, _SUBJECT)
            kind = pa.date32() if node.to.this.name == "DATE" else pa.timestamp("us")
            return _text(str(node.this.this), kind)
        raise Invalid(f"the filter compares {node.key!r}; use comparisons of columns and constants")

    def _column(self, node: exp.Column) -> pa.Field:
        found = None if node.table else self._columns.get(node.name.lower())
        if found is None:
            shown = ", ".join(column.name for column in self._columns.values())
            raise Invalid(f"the filter names a column that the index does not have; it has {shown}")
        return found


def _text(text: str, beside: pa.DataType | None) -> str:
    try:
        if beside is not None and pa.types.is_timestamp(beside):
            return f"TIMESTAMP '{datetime.fromisoformat(text).isoformat(sep=' ')}'"
        if beside is not None and pa.types.is_date(beside):
            return f"DATE '{date.fromisoformat(text).isoformat()}'"
    except ValueError:
        raise Invalid(
            "the filter compares a time with another text; write 'YYYY-MM-DD[ HH:MM:SS[.ffffff]]'"
        ) from None
    return _quote(text)


def _quote(text: str) -> str:
    return "'{}'".format(text.replace("'", "''"))


def _number(text: str) -> str:
    try:
        number = Decimal(text)
    except InvalidOperation:
        number = Decimal("NaN")
    if not number.is_finite() or not text.isascii():
        raise Invalid("the filter has a number that cannot be read; write it in digits")
    return text


def _hex_digits(digits: str) -> str:
    try:
        return bytes.fromhex(digits if len(digits) % 2 == 0 else f"0{digits}").hex()
    except ValueError:
        raise Invalid("the filter has a constant in hex that cannot be read; write X'0A1B'") from None
