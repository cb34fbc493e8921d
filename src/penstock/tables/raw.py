"""Raw batches: committed changes as a source passes them on, before any schema is known."""

from enum import IntEnum

import pyarrow as pa


class Op(IntEnum):
    """What a change did to its key. The numbers are those of TiKV's change streams."""

    PUT = 1
    DELETE = 2


RAW_SCHEMA = pa.schema(
    [
        pa.field("op", pa.uint8(), nullable=False),
        pa.field("start_ts", pa.uint64(), nullable=False),
        pa.field("commit_ts", pa.uint64(), nullable=False),
        pa.field("key", pa.binary(), nullable=False),
        pa.field("value", pa.binary()),  # null for a delete
        pa.field("old_value", pa.binary()),  # null when the key did not exist before
    ]
)
"""A *raw batch* is a `pa.RecordBatch` of this schema; its weight is its `nbytes`."""
