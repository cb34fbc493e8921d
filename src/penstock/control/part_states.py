"""What `penstock up` runs, as it says it in a file: for `penstock status`, the API and the pages."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from penstock.errors import Corrupt, Unavailable

__all__ = ["PartKind", "PartState", "PartStatus", "UpStates"]

_NAME = "state.json"


class PartKind(StrEnum):
    """What a part does."""

    STORE = "store"
    CAPTURE = "capture"
    CHANGEFEEDS = "changefeeds"
    JOBS = "jobs"
    API = "api"


class PartState(StrEnum):
    """How a part does."""

    STARTING = "starting"
    RUNNING = "running"
    """It has said that it is ready."""
    WAITING = "waiting"
    """It ended, and is started again after a while."""
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartStatus:
    """One part."""

    name: str
    """`store`, `capture-1`, `changefeeds`, `jobs`, `api`."""
    kind: PartKind
    state: PartState
    pid: int | None = None
    since_ms: int = 0
    """Since when it is in this state."""
    restarts: int = 0
    error: str = ""
    """Why it ended the last time: its own last words, or how it was killed."""
    metrics_addr: str | None = None
    """Where it shows its metrics."""
    addr: str | None = None
    """Where it serves: placement driver, Flight, HTTP."""


@dataclass(frozen=True, slots=True)
class UpStates:
    """All parts of one `penstock up`; `pid` is its own."""

    pid: int
    parts: tuple[PartStatus, ...]

    def write(self, folder: Path) -> None:
        """Put it in the place of what was said before, at once or not at all. Raises OSError."""
        folder.mkdir(parents=True, exist_ok=True)
        written = folder / f".{_NAME}.{self.pid}"
        written.write_text(json.dumps(asdict(self)), encoding="utf-8")
        written.replace(folder / _NAME)

    @staticmethod
    def remove(folder: Path) -> None:
        """Say nothing any more. Raises OSError."""
        (folder / _NAME).unlink(missing_ok=True)

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """What is said in a folder; None when nothing is, or who said it does not run any more.

        Raises Corrupt when it is something else, Unavailable when it cannot be read.
        """
        path = folder / _NAME
        try:
            tree = json.loads(path.read_bytes())
            found = cls(int(tree["pid"]), _parts(tree["parts"]))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Unavailable(f"{path} cannot be read ({error.strerror}); check up.data") from error
        except (ValueError, KeyError, TypeError) as error:
            raise Corrupt(f"{path} is damaged; remove it, and start `penstock up` again") from error
        return found if _runs(found.pid) else None


def _parts(trees: Sequence[dict[str, Any]]) -> tuple[PartStatus, ...]:
    return tuple(
        PartStatus(**{**tree, "kind": PartKind(tree["kind"]), "state": PartState(tree["state"])})
        for tree in trees
    )


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it is there, and somebody else's
        return True
    return True
