"""Small raw batches for tests."""

from collections.abc import Sequence

import pyarrow as pa

from penstock.tables.raw import RAW_SCHEMA

Change = tuple[int, int, bytes, bytes | None, bytes | None]  # commit_ts, start_ts, key, value, old value


def raw(changes: Sequence[Change]) -> pa.RecordBatch:
    """Return a raw batch; a change without a value is a delete."""
    columns = list(zip(*changes, strict=True)) if changes else [(), (), (), (), ()]
    commit, start, key, value, old = columns
    ops = [2 if cell is None else 1 for cell in value]
    return pa.RecordBatch.from_arrays(
        [
            pa.array(column, field.type)
            for column, field in zip((ops, start, commit, key, value, old), RAW_SCHEMA, strict=True)
        ],
        schema=RAW_SCHEMA,
    )


def changes(batch: pa.RecordBatch) -> list[Change]:
    """Return the changes of a raw batch, in its order."""
    rows = batch.to_pylist()
    return [(r["commit_ts"], r["start_ts"], r["key"], r["value"], r["old_value"]) for r in rows]


def put(commit_ts: int, key: bytes | str, value: bytes | None = b"v", old: bytes | None = None) -> Change:
    """Return one change by the transaction that began a tick before it committed."""
    return (commit_ts, commit_ts - 1, key.encode() if isinstance(key, str) else key, value, old)
