"""What becomes of a target's columns when those of its source have changed. Pure.

Columns are known by their ids: one that was renamed keeps its values, and one that was dropped and added
again under its old name begins anew.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from penstock.consumers.postgres.columns import TargetColumn
from penstock.errors import Invalid

_REMEDY = "rebuild the target with `penstock job repair --rebuild`"
_WIDER = {
    "smallint": ("integer", "bigint", "numeric(20)"),
    "integer": ("bigint", "numeric(20)"),
    "bigint": ("numeric(20)",),
    "real": ("double precision",),
}
_NUMERIC = re.compile(r"numeric\((\d+)(?:,(\d+))?\)")


class Act(Enum):
    """What is done to a column of the target."""

    DROP = "drop"
    RENAME = "rename"
    WIDEN = "widen"
    ADD = "add"


@dataclass(frozen=True, slots=True)
class Alteration:
    """One change of the target: `column` is what it becomes, `was` what it was called."""

    act: Act
    column: TargetColumn
    was: str = ""


@dataclass(frozen=True, slots=True)
class Evolution:
    """Changes in the order in which they are made, and the columns that the target has afterwards."""

    alterations: tuple[Alteration, ...]
    columns: tuple[TargetColumn, ...]


def evolved(known: Sequence[TargetColumn], seen_id: int, wanted: Sequence[TargetColumn]) -> Evolution:
    """How a target with `known` columns gets `wanted` ones; raise Invalid when its rows do not allow that.

    `seen_id` is the greatest id of the source's columns when the target was last written. A column that is
    wanted now and is older was left out until now: the target's rows do not have its values.
    """
    if [column.id for column in known if column.key] != [column.id for column in wanted if column.key]:
        raise Invalid(f"the source has another primary key now; {_REMEDY}")
    by_id = {column.id: column for column in known}
    for column in wanted:
        _check(by_id.get(column.id), column, seen_id)
    ids, names = {column.id for column in wanted}, {column.name for column in wanted}
    left = [column for column in known if column.id not in ids]
    return Evolution(
        (
            *(Alteration(Act.DROP, each) for each in left if each.name in names),
            *_renames(by_id, wanted),
            *(Alteration(Act.WIDEN, each) for each in wanted if by_id.get(each.id, each).type != each.type),
            *(Alteration(Act.ADD, each) for each in wanted if each.id not in by_id),
        ),
        (*wanted, *(replace(each, gone=True) for each in left if each.name not in names)),
    )


def _check(known: TargetColumn | None, wanted: TargetColumn, seen_id: int) -> None:
    if known is None:
        if wanted.id <= seen_id:
            raise Invalid(f"column {wanted.name} was left out until now; {_REMEDY}")
    elif known.gone:
        raise Invalid(f"column {wanted.name} was left out for a while; {_REMEDY}")
    elif known.type != wanted.type and not is_wider(known.type, wanted.type):
        raise Invalid(
            f"column {wanted.name} is {known.type} in the target and needs {wanted.type} now; {_REMEDY}"
        )


def _renames(by_id: dict[int, TargetColumn], wanted: Sequence[TargetColumn]) -> list[Alteration]:
    """By way of names that nobody has, because columns may have exchanged theirs."""
    renamed = [each for each in wanted if each.id in by_id and by_id[each.id].name != each.name]
    aside = [replace(each, name=f"penstock_column_{each.id}") for each in renamed]
    return [
        *(Alteration(Act.RENAME, each, by_id[each.id].name) for each in aside),
        *(Alteration(Act.RENAME, each, held.name) for each, held in zip(renamed, aside, strict=True)),
    ]


def is_wider(old: str, new: str) -> bool:
    """Whether every value of a type is one of the other type, and stays the same."""
    if new in _WIDER.get(old, ()):
        return True
    before, after = _NUMERIC.fullmatch(old), _NUMERIC.fullmatch(new)
    if not (before and after):
        return False
    digits, scale = int(before[1]), int(before[2] or 0)
    more_digits, more_scale = int(after[1]), int(after[2] or 0)
    return more_scale >= scale and more_digits - more_scale >= digits - scale
