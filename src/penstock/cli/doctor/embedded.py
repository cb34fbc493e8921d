"""Whether the embedded store is part of a deployment."""

from penstock.cli.up.parts import parts_of
from penstock.control.part_states import PartKind
from penstock.errors import Invalid
from penstock.settings import Settings

__all__ = ["has_store"]


def has_store(settings: Settings) -> bool:
    """Whether `penstock up` would run it; an address that is none is told by the check of the ports."""
    try:
        return any(part.kind is PartKind.STORE for part in parts_of(settings))
    except Invalid:
        return False
