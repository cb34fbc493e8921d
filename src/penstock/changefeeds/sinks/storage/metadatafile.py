"""The `metadata` file: up to where everything is on the remote. Pure."""

import json

from penstock.errors import Corrupt

_MEMBER = "checkpoint-ts"


def encode_checkpoint(ts: int) -> bytes:
    """The content of the file."""
    return json.dumps({_MEMBER: ts}, separators=(",", ":")).encode()


def decode_checkpoint(data: bytes) -> int:
    """The checkpoint in the file; raise Corrupt when there is none."""
    try:
        ts = json.loads(data)[_MEMBER]
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt("the metadata file holds no checkpoint; ask the writer to write it again") from error
    if not isinstance(ts, int) or ts < 0:
        raise Corrupt("the metadata file holds a damaged checkpoint; ask the writer to write it again")
    return ts
