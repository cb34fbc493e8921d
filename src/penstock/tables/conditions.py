"""SQL conditions that people write: parsed, and refused unless every part of them is listed here.

Listed are comparisons of columns and constants (=, <>, !=, <, <=, >, >=, <=>), IN with a list, BETWEEN, LIKE,
IS [NOT] NULL, TRUE and FALSE, AND, OR, NOT, parentheses, and constants of dates and times. Functions,
arithmetic, subqueries, variables and wildcards are not. So nothing that an engine offers beyond these can be
reached by a condition, whoever wrote it. Quoting is MySQL's.
"""

from collections.abc import Mapping
from functools import lru_cache

from sqlglot import exp
from sqlglot.errors import SqlglotError

from penstock.errors import Invalid

__all__ = ["COMPARISONS", "TIME_CASTS", "parse_condition", "refuse_unlisted"]

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
    """Parse a condition; raise Invalid, which names the `subject`, for a text that is none.

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
