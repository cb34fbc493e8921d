"""What becomes of a target's columns when those of its source have changed. Pure.

Columns are known by their ids: one that was renamed keeps its values, and one that was dropped and added
again under its old name begins anew. A target keeps what it has of them beside its watermark.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any

from penstock.errors import Corrupt, Invalid

HANDLE_ID = 0
"""The id of `_handle` among columns; those of the source begin with 1."""

REBUILD = "rebuild the target with `penstock job repair --rebuild`"


@dataclass(frozen=True, slots=True)
class TargetColumn:
    """A column of the target, with its type there. `id` is that of the source's column: it outlives the name.

    One that is `gone` at the source stays, and is NULL in rows that are written from then on.
    """

    id: int
    name: str
    type: str
    key: bool = False
    gone: bool = False


def to_json(columns: Iterable[TargetColumn]) -> list[dict[str, Any]]:
    """As a target keeps them."""
    return [asdict(column) for column in columns]


def from_json(trees: Any) -> list[TargetColumn]:
    """What `to_json` made; raise Corrupt when it is something else."""
    try:
        return [
            TargetColumn(
                int(tree["id"]), str(tree["name"]), str(tree["type"]), bool(tree["key"]), bool(tree["gone"])
            )
            for tree in trees
        ]
    except (KeyError, TypeError, ValueError):
        raise Corrupt(f"the columns kept beside the watermark are damaged; {REBUILD}") from None


class ColumnChange(Enum):
    """What is done to a column of the target."""

    DROP = "drop"
    RENAME = "rename"
    WIDEN = "widen"
    ADD = "add"


@dataclass(frozen=True, slots=True)
class Alteration:
    """One change of the target: `column` is what it becomes, `was` what it was called."""

    act: ColumnChange
    column: TargetColumn
    was: str = ""


@dataclass(frozen=True, slots=True)
class SchemaEvolution:
    """Changes in the order in which they are made, and the columns that the target has afterwards."""

    alterations: tuple[Alteration, ...]
    columns: tuple[TargetColumn, ...]


def evolved(
    known: Sequence[TargetColumn],
    seen_id: int,
    wanted: Sequence[TargetColumn],
    is_wider: Callable[[str, str], bool],
) -> SchemaEvolution:
    """How a target with `known` columns gets `wanted` ones; raise Invalid when its rows do not allow that.

    `seen_id` is the greatest id of the source's columns when the target was last written. A column that is
    wanted now and is older was left out until now: the target's rows do not have its values. `is_wider` tells
    whether every value of a type is one of another, and stays the same.
    """
    if [column.id for column in known if column.key] != [column.id for column in wanted if column.key]:
        raise Invalid(f"the source has another primary key now; {REBUILD}")
    by_id = {column.id: column for column in known}
    for column in wanted:
        _check(by_id.get(column.id), column, seen_id, is_wider)
    ids, names = {column.id for column in wanted}, {column.name for column in wanted}
    left = [column for column in known if column.id not in ids]
    return SchemaEvolution(
        (
            *(Alteration(ColumnChange.DROP, each) for each in left if each.name in names),
            *_renames(by_id, wanted),
            *(
                Alteration(ColumnChange.WIDEN, each)
                for each in wanted
                if by_id.get(each.id, each).type != each.type
            ),
            *(Alteration(ColumnChange.ADD, each) for each in wanted if each.id not in by_id),
        ),
        (*wanted, *(replace(each, gone=True) for each in left if each.name not in names)),
    )


def _check(
    known: TargetColumn | None, wanted: TargetColumn, seen_id: int, is_wider: Callable[[str, str], bool]
) -> None:
    if known is None:
        if wanted.id <= seen_id:
            raise Invalid(f"column {wanted.name} was left out until now; {REBUILD}")
    elif known.gone:
        raise Invalid(f"column {wanted.name} was left out for a while; {REBUILD}")
    elif known.type != wanted.type and not is_wider(known.type, wanted.type):
        raise Invalid(
            f"column {wanted.name} is {known.type} in the target and needs {wanted.type} now; {REBUILD}"
        )


def _renames(by_id: dict[int, TargetColumn], wanted: Sequence[TargetColumn]) -> list[Alteration]:
    """By way of names that nobody has, because columns may have exchanged theirs."""
    renamed = [each for each in wanted if each.id in by_id and by_id[each.id].name != each.name]
    aside = [replace(each, name=f"penstock_column_{each.id}") for each in renamed]
    return [
        *(Alteration(ColumnChange.RENAME, each, by_id[each.id].name) for each in aside),
        *(
            Alteration(ColumnChange.RENAME, each, held.name)
            for each, held in zip(renamed, aside, strict=True)
        ),
    ]
