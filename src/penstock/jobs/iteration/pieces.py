"""Changes on their way to consumers: in one schema, in order, and the same for all of them."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import pyarrow as pa


class ConsumerBatch(NamedTuple):
    """What one `next` of a consumer gives, with the columns of all of them. `last`: nothing follows."""

    inserts: pa.RecordBatch
    deletes: pa.RecordBatch
    last: bool = False

    @property
    def rows(self) -> int:
        """Of both sides."""
        return int(self.inserts.num_rows + self.deletes.num_rows)

    @property
    def nbytes(self) -> int:
        """About as much memory."""
        return int(self.inserts.nbytes + self.deletes.nbytes)


def closed(pieces: Iterable[ConsumerBatch], nothing: ConsumerBatch) -> Iterator[ConsumerBatch]:
    """The pieces, of which the last says that it is; `nothing`, if there are none."""
    held: ConsumerBatch | None = None
    for piece in pieces:
        if held is not None:
            yield held
        held = piece
    yield (held or nothing)._replace(last=True)
