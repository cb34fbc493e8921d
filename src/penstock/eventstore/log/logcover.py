"""What the log is worth for a table beside the manifest that it is found with. A pure decision.

The two are on different disks, so one may be a copy of another moment: a backup that was restored. Whatever
they are, a table goes on from a timestamp up to which every change is in objects or in the log.
"""

from dataclasses import dataclass
from enum import Enum


class Fit(Enum):
    """How the log goes on from a manifest's `flushed_ts`."""

    JOINS = "its changes follow on the objects'"
    ENDS = "it has nothing that the objects lack: it begins anew there"
    GAP = "changes after the objects' are cut off: they must be pulled again"


@dataclass(frozen=True, slots=True)
class LogCover:
    """The log has every change of a table in (cut_ts, resolved_ts]; of others it has some or none."""

    cut_ts: int = 0
    resolved_ts: int = 0

    def beside(self, flushed_ts: int) -> Fit:
        """How it fits to objects that hold every change up to `flushed_ts`."""
        if self.resolved_ts <= flushed_ts:
            return Fit.ENDS
        return Fit.JOINS if self.cut_ts <= flushed_ts else Fit.GAP
