"""One column as TiDB describes it in JSON, and what the other schema elements share with it."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Self

from penstock.tables.fieldtypes import ColumnFlag, FieldType, Tp

COLUMN_VERSION = 2  # from 1 on, defaults of timestamps are in UTC


class SchemaState(IntEnum):
    """How far a schema element has come in an online change."""

    NONE = 0
    DELETE_ONLY = 1
    WRITE_ONLY = 2
    WRITE_REORG = 3
    DELETE_REORG = 4
    PUBLIC = 5
    REPLICA_ONLY = 6
    GLOBAL_TXN_ONLY = 7


def name_to_json(name: str) -> dict[str, str]:
    """A name with its lower-case form, as TiDB stores it."""
    return {"O": name, "L": name.lower()}


def name_from_json(tree: Any) -> str:
    """A name, of either form that TiDB stores."""
    return str(tree["O"]) if isinstance(tree, Mapping) else str(tree or "")


def rest_of(tree: Mapping[str, Any], known: Sequence[str]) -> dict[str, Any]:
    """The members of a tree that are not modelled, to be written back as they are."""
    return {name: member for name, member in tree.items() if name not in known}


@dataclass(frozen=True, slots=True)
class ColumnInfo:
    """One column. `origin_default` is what rows written before the column existed read as."""

    id: int
    name: str
    offset: int
    type: FieldType
    default: Any = None
    origin_default: Any = None
    default_is_expr: bool = False
    generated_expr: str = ""
    generated_stored: bool = False
    state: SchemaState = SchemaState.PUBLIC
    comment: str = ""
    hidden: bool = False
    version: int = COLUMN_VERSION
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> Self:
        """Read TiDB's JSON."""
        kind = FieldType.from_json(tree["type"])
        return cls(
            id=tree["id"],
            name=name_from_json(tree["name"]),
            offset=tree["offset"],
            type=kind,
            default=_default_from_json(kind, tree, "default"),
            origin_default=_default_from_json(kind, tree, "origin_default"),
            default_is_expr=tree.get("default_is_expr", False),
            generated_expr=tree.get("generated_expr_string") or "",
            generated_stored=tree.get("generated_stored", False),
            state=SchemaState(tree.get("state", SchemaState.PUBLIC)),
            comment=tree.get("comment") or "",
            hidden=tree.get("hidden", False),
            version=tree.get("version", 0),
            extra=rest_of(tree, _COLUMN_MEMBERS),
        )

    def to_json(self) -> dict[str, Any]:
        """Write TiDB's JSON."""
        return {
            "dependences": None,
            "change_state_info": None,
            **self.extra,
            "id": self.id,
            "name": name_to_json(self.name),
            "offset": self.offset,
            **_default_to_json(self.type, self.origin_default, "origin_default"),
            **_default_to_json(self.type, self.default, "default"),
            "default_is_expr": self.default_is_expr,
            "generated_expr_string": self.generated_expr,
            "generated_stored": self.generated_stored,
            "type": self.type.to_json(),
            "state": int(self.state),
            "comment": self.comment,
            "hidden": self.hidden,
            "version": self.version,
        }

    @property
    def is_virtual(self) -> bool:
        """Whether the column is computed when read, and so never stored."""
        return bool(self.generated_expr) and not self.generated_stored

    @property
    def auto_increment(self) -> bool:
        """Whether the table numbers this column."""
        return bool(self.type.flag & ColumnFlag.AUTO_INCREMENT)


_COLUMN_MEMBERS = (
    *("id", "name", "offset", "type", "default", "default_bit", "origin_default", "origin_default_bit"),
    *(
        "default_is_expr",
        "generated_expr_string",
        "generated_stored",
        "state",
        "comment",
        "hidden",
        "version",
    ),
)


def _default_from_json(kind: FieldType, tree: Mapping[str, Any], member: str) -> Any:
    bits = tree.get(f"{member}_bit")
    if kind.tp is Tp.BIT and bits is not None:
        return int.from_bytes(base64.b64decode(bits), "big")
    return tree.get(member)


def _default_to_json(kind: FieldType, value: Any, member: str) -> dict[str, Any]:
    if kind.tp is Tp.BIT and isinstance(value, int):
        raw = value.to_bytes(max((kind.flen + 7) // 8, 1), "big")
        return {member: raw.decode("latin-1"), f"{member}_bit": base64.b64encode(raw).decode()}
    return {member: value, f"{member}_bit": None}
