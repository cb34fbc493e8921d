"""Rows of changes, as they stand in events."""

from penstock.proto import cdcpb_pb2 as cdcpb
from penstock.store.cdc.outbox import Outbox

__all__ = [
    "COMMIT",
    "COMMITTED",
    "DELETE",
    "INITIALIZED",
    "NO_OP",
    "PREWRITE",
    "PUT",
    "ROLLBACK",
    "EventRowWriter",
]

PREWRITE = cdcpb.Event.PREWRITE
COMMIT = cdcpb.Event.COMMIT
ROLLBACK = cdcpb.Event.ROLLBACK
COMMITTED = cdcpb.Event.COMMITTED
INITIALIZED = cdcpb.Event.INITIALIZED

PUT = cdcpb.Event.Row.PUT
DELETE = cdcpb.Event.Row.DELETE
NO_OP = cdcpb.Event.Row.UNKNOWN

EVENT_BYTES_MAX = 32 * 1024  # keys and values of one event; a larger row has an event of its own
_ROW_OVERHEAD = 32


class EventRowWriter:
    """Writes the rows of one subscription into events at the end of its outbox.

    Rows keep their order. Nobody else may add to the outbox between the first `add` and `finish`, so
    a caller never waits in between. Rows of several rounds share an event while it is still the last
    one of the outbox, so that a stream of small transactions is not a stream of tiny events.
    """

    __slots__ = ("_event_bytes", "_outbox", "_region_id", "_request_id", "_rows", "_uncharged", "count")

    def __init__(self, outbox: Outbox, region_id: int, request_id: int) -> None:
        self._outbox = outbox
        self._region_id = region_id
        self._request_id = request_id
        self._rows = cdcpb.Event.Entries()  # of the event that this writer was the tail of last
        self._event_bytes = 0
        self._uncharged = 0
        self.count = 0

    def add(
        self,
        kind: cdcpb.Event.LogType,
        op: cdcpb.Event.Row.OpType,
        key: bytes,
        start_ts: int,
        commit_ts: int = 0,
        value: bytes = b"",
        old_value: bytes = b"",
    ) -> None:
        size = len(key) + len(value) + len(old_value) + _ROW_OVERHEAD
        if self._outbox.tail is not self or self._event_bytes + size > EVENT_BYTES_MAX:
            self._open_event()
        self._event_bytes += size
        self._uncharged += size
        self.count += 1
        row = self._rows.entries.add()
        row.type = kind
        row.op_type = op
        row.key = key
        row.start_ts = start_ts
        if commit_ts:
            row.commit_ts = commit_ts
        if value:
            row.value = value
        if old_value:
            row.old_value = old_value

    def mark_initialized(self) -> None:
        """Write the row that ends an incremental scan."""
        if self._outbox.tail is not self:
            self._open_event()
        self._rows.entries.add().type = INITIALIZED
        self._uncharged += _ROW_OVERHEAD
        self.count += 1

    def finish(self) -> None:
        """Hand over what was written."""
        if self._uncharged:
            self._outbox.charge(self._uncharged)
            self._uncharged = 0

    def _open_event(self) -> None:
        self.finish()
        self._rows = self._outbox.add_event(self._region_id, self._request_id, tail=self).entries
        self._event_bytes = 0
