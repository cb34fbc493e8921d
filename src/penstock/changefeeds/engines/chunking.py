"""Where a stream of encoded rows is cut into chunks: by its rows alone, however they arrive. Pure.

Chunks end between commits. A commit that is larger than `commit_bytes_max` may be cut after any of its rows,
unless its rows belong together; so may a snapshot. A position is a commit and a handle, so the delete and the
insert that one row's update became are never cut apart.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from penstock.changefeeds.codecs.row_changes import Mask
from penstock.columnar.text_lines import Ints


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of some rows: their bytes, their commits, and whether a row and the next one must not be parted."""

    nbytes: Ints
    commits: Ints
    followed: Mask


class Chunking:
    """Rows come in, and how many of those that wait make the next chunk comes out.

    A chunk ends at the first place behind `chunk_bytes` where it may.
    """

    def __init__(
        self, chunk_bytes: int, commit_bytes_max: int, *, anywhere: bool, never_inside: bool
    ) -> None:
        self._chunk_bytes = chunk_bytes
        self._commit_bytes_max = commit_bytes_max
        self._anywhere = anywhere
        self._never_inside = never_inside
        self._nbytes = np.empty(0, np.int64)
        self._commits = np.empty(0, np.int64)
        self._followed = np.empty(0, np.bool_)

    def add(self, sizes: Sizes, *, whole: bool) -> Iterator[int]:
        """Rows of each chunk that is now complete; `whole`: the last commit has no more rows."""
        self._nbytes = np.concatenate((self._nbytes, sizes.nbytes))
        self._commits = np.concatenate((self._commits, sizes.commits))
        self._followed = np.concatenate((self._followed, sizes.followed))
        ends = np.cumsum(self._nbytes)
        places = self._places(ends, whole=whole)
        reached, done = 0, 0
        while True:
            next_place = int(np.searchsorted(ends[places], reached + self._chunk_bytes))
            if next_place >= len(places):
                break
            row = int(places[next_place])
            yield row + 1 - done
            reached, done = int(ends[row]), row + 1
        self._nbytes, self._commits = self._nbytes[done:], self._commits[done:]
        self._followed = self._followed[done:]

    def rest(self) -> int:
        """How many rows wait still."""
        return len(self._nbytes)

    def _places(self, ends: Ints, *, whole: bool) -> Ints:
        """The rows behind which a chunk may end."""
        if self._anywhere or not len(ends):
            return np.arange(len(ends))
        last = np.append(self._commits[1:] != self._commits[:-1], True)
        bounds = np.flatnonzero(last)
        held = np.diff(ends[bounds], prepend=0)
        allowed = last.copy()
        allowed[-1] = whole
        if not self._never_inside:
            allowed |= np.repeat(held > self._commit_bytes_max, np.diff(bounds, prepend=-1))
        return np.flatnonzero(allowed & ~self._followed)
