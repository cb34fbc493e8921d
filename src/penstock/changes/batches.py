"""What a reader of changes is given, and what it may do with it at once."""

from dataclasses import dataclass
from enum import Enum

import pyarrow as pa

from penstock.eventstore.schema_version import SchemaVersion


class Hint(Enum):
    """What a batch means for those before and behind it.

    SNAPSHOT: rows of a table that was empty before; nothing ends. TAIL_WIP: what follows may have to be
    applied first, so keep it. TAIL_DONE: nothing that follows comes before this batch, nor before what was
    kept: apply all of that, smaller `_commit_ts` first, and at one `_commit_ts` tombstones first.
    """

    SNAPSHOT = "snapshot"
    TAIL_WIP = "tail_wip"
    TAIL_DONE = "tail_done"


@dataclass(frozen=True, slots=True)
class ChangeBatch:
    """Some changes, of one schema version, each side ordered by `_commit_ts`.

    Once this batch has been delivered, every change up to `complete_ts` has: reading on from there gives what
    is missing, and nothing twice.
    """

    data: pa.RecordBatch
    tombstones: pa.RecordBatch
    hint: Hint
    schema: SchemaVersion
    complete_ts: int
