"""A stream of bytes in blocks that end where a line ends, so that each can be read by itself."""

from collections.abc import Iterator
from typing import Protocol

BLOCK_BYTES = 8 * 1024 * 1024


class Readable(Protocol):
    """What a decoder needs of a file."""

    def read(self, nbytes: int, /) -> bytes:
        """The next bytes, at most so many; none at the end."""


def blocks(stream: Readable, line_end: bytes, block_bytes: int = BLOCK_BYTES) -> Iterator[bytes]:
    """Whole lines, about `block_bytes` of them at a time; one longer line comes alone."""
    rest = b""
    while data := stream.read(block_bytes):
        cut = data.rfind(line_end)
        if cut < 0:
            rest += data
            continue
        cut += len(line_end)
        yield rest + data[:cut]
        rest = data[cut:]
    if rest:
        yield rest
