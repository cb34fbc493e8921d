"""Two sets of rows compared by their hashes, in memory that does not grow with them."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.verify.target import Verifier

__all__ = [
    "Verifier",
]

# Imported when it is first used: comparing rows needs no job.
_MODULES = {
    "Verifier": "target",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
