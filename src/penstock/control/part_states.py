"""The file in which `penstock up` publishes the state of its parts, for `penstock status` and the API."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from penstock.durable_files import create_private, make_data_directory
from penstock.errors import Corrupt, Unavailable

__all__ = ["PartKind", "PartState", "PartStatus", "UpStates"]

_NAME = "state.json"


class PartKind(StrEnum):
    """The service that a part runs."""

    STORE = "store"
    CAPTURE = "capture"
    CHANGEFEEDS = "changefeeds"
    JOBS = "jobs"
    API = "api"


class PartState(StrEnum):
    """Where a part is in its life."""

    STARTING = "starting"
    RUNNING = "running"
    """It has reported that it is ready."""
    WAITING = "waiting"
    """It ended, and is started again after a delay."""
    STOPPED = "stopped"
    STARTING_SPARK = "starting Spark"
    """It runs, and starts its Spark session. Only overviews say so."""
    DEGRADED = "degraded"
    """It runs, and replaces its Spark session, which it has lost. Only overviews say so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartStatus:
    """The state of one part."""

    name: str
    """`store`, `capture-1`, `changefeeds`, `jobs`, `api`."""
    kind: PartKind
    state: PartState
    pid: int | None = None
    since_ms: int = 0
    """When it entered this state."""
    restarts: int = 0
    error: str = ""
    """Why it ended the last time: its last error message, or the signal that killed it."""
    metrics_addr: str | None = None
    """Where it serves its metrics."""
    addr: str | None = None
    """Where it serves its clients: placement driver, Flight or HTTP."""


@dataclass(frozen=True, slots=True)
class UpStates:
    """The parts of one `penstock up`; `pid` is the process of `penstock up` itself."""

    pid: int
    parts: tuple[PartStatus, ...]

    def write(self, folder: Path) -> None:
        """Replace the file of a folder atomically. Raises OSError."""
        make_data_directory(folder, with_content=False)
        temporary = folder / f".{_NAME}.{self.pid}"
        create_private(temporary)
        temporary.write_text(json.dumps(asdict(self)), encoding="utf-8")
        temporary.replace(folder / _NAME)

    @staticmethod
    def remove(folder: Path) -> None:
        """Remove the file of a folder, if there is one. Raises OSError."""
        (folder / _NAME).unlink(missing_ok=True)

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Read the file of a folder; return None when there is none, or when its `penstock up` has ended.

        Raises Corrupt when the file has another content, Unavailable when it cannot be read.
        """
        path = folder / _NAME
        try:
            tree = json.loads(path.read_bytes())
            states = cls(int(tree["pid"]), _parts(tree["parts"]))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Unavailable(f"{path} cannot be read ({error.strerror}); check up.data") from error
        except (ValueError, KeyError, TypeError) as error:
            raise Corrupt(f"{path} is damaged; remove it, and start `penstock up` again") from error
        return states if _is_running(states.pid) else None


def _parts(trees: Sequence[dict[str, Any]]) -> tuple[PartStatus, ...]:
    return tuple(
        PartStatus(**{**tree, "kind": PartKind(tree["kind"]), "state": PartState(tree["state"])})
        for tree in trees
    )


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # the process runs, and belongs to another user
        return True
    return True
