"""Which objects are merged next. A pure decision: no I/O, no clock.

Small objects are merged with others of about their size, so a row is written again once for each step of that
scale. An object is rewritten alone when much of it is deleted, and the deletes have paid for that. So merges
write logarithmically as much as flushes. A merge makes about one object of the target size.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from penstock.eventstore.manifest import ManifestState, ObjectInfo

_QUALIFIED = 0.7  # an object of this share of the target size is left alone
_HEAVILY_DEAD = 0.3  # an object with this share of deleted rows is rewritten
_INPUTS_MAX = 16
_FANOUT = 8  # objects of one size that make a merge, and the factor between sizes
_TINY_BYTES = 64 * 1024  # below it an object is mostly footer, so all smaller sizes count as one


@dataclass(frozen=True, slots=True)
class MergeChoice:
    """The inputs of a merge: data objects, tombstone objects to rewrite, and tombstone objects to remove.

    `gone` delete rows of no object that stays; they are removed unread.
    """

    data: tuple[ObjectInfo, ...]
    tombstones: tuple[ObjectInfo, ...]
    gone: tuple[ObjectInfo, ...]


@dataclass(frozen=True, slots=True)
class _MergeInput:
    """An object that may be merged, and the share of its rows that do not count any more."""

    info: ObjectInfo
    dead_share: float

    @property
    def live_bytes(self) -> int:
        """Bytes that the object adds to a merged one."""
        return int(self.info.size_bytes * (1 - self.dead_share))


@dataclass(frozen=True, slots=True)
class MergePolicy:
    """Merge towards objects of `target_bytes`."""

    target_bytes: int = 128 * 1024 * 1024

    def choose(self, state: ManifestState) -> MergeChoice | None:
        """Return the next merge of a table; None when nothing is worth a merge."""
        current = [info for info in state.objects.values() if not info.delete_ts]
        data = [info for info in current if info.side == "data"]
        tombstones = [info for info in current if info.side == "tombstone"]
        merged = self._pick(_dead_data(data, tombstones))
        taken = {info.id for info in merged}
        candidates = _dead_tombstones([info for info in data if info.id not in taken], tombstones)
        gone = tuple(candidate.info for candidate in candidates if candidate.dead_share == 1)
        rewritten = self._pick([candidate for candidate in candidates if candidate.dead_share < 1])
        if merged or rewritten or len(gone) >= _FANOUT:
            return MergeChoice(merged, rewritten, gone)
        return None

    def _pick(self, candidates: Sequence[_MergeInput]) -> tuple[ObjectInfo, ...]:
        """Return objects of one side to merge into one; empty when none are worth it."""
        heavy = self._fill(candidate for candidate in candidates if candidate.dead_share >= _HEAVILY_DEAD)
        if heavy:
            return tuple(candidate.info for candidate in heavy)
        qualified = self.target_bytes * _QUALIFIED
        sizes: dict[int, list[_MergeInput]] = {}
        for candidate in candidates:
            if candidate.live_bytes < qualified:
                sizes.setdefault(_size_step(candidate.live_bytes), []).append(candidate)
        for step in sorted(sizes):
            chosen = self._fill(sizes[step])
            total = sum(candidate.live_bytes for candidate in chosen)
            if len(chosen) >= _FANOUT or (len(chosen) > 1 and total >= qualified):
                return tuple(candidate.info for candidate in chosen)
        return ()

    def _fill(self, candidates: Iterable[_MergeInput]) -> list[_MergeInput]:
        """Return as many as one object has room for, smallest first; at least one, if there is one."""
        chosen: list[_MergeInput] = []
        room = self.target_bytes
        for candidate in sorted(
            candidates, key=lambda candidate: (candidate.live_bytes, candidate.info.seq, candidate.info.id)
        ):
            room -= candidate.live_bytes
            if chosen and (room < 0 or len(chosen) == _INPUTS_MAX):
                break
            chosen.append(candidate)
        return chosen


def _size_step(live_bytes: int) -> int:
    """Return the place of a size on a scale of powers of the fanout."""
    step, bound = 0, _TINY_BYTES
    while live_bytes >= bound:
        step, bound = step + 1, bound * _FANOUT
    return step


def _dead_data(data: Sequence[ObjectInfo], tombstones: Iterable[ObjectInfo]) -> list[_MergeInput]:
    """Return how much of each data object is deleted.

    A tombstone object that does not name the objects it deletes from is taken to delete evenly from all
    objects that are as old as it or older; it cannot delete from newer ones.
    """
    known: Counter[str] = Counter()
    scattered: list[ObjectInfo] = []
    for info in tombstones:
        if info.targets is None:
            scattered.append(info)
        else:
            known.update(dict(info.targets))
    even = _even_shares(data, scattered)
    return [
        _MergeInput(info, min(1.0, known[info.id] / info.rows + share))
        for info, share in zip(data, even, strict=True)
    ]


def _even_shares(data: Sequence[ObjectInfo], scattered: Sequence[ObjectInfo]) -> list[float]:
    """Return the share of each data object's rows that tombstones without targets delete, spread evenly."""
    if not scattered:
        return [0.0] * len(data)
    by_age = sorted(data, key=lambda info: info.seq)
    data_seqs = [info.seq for info in by_age]
    rows_upto = [0, *accumulate(info.rows for info in by_age)]
    newest_first = sorted(scattered, key=lambda info: -info.seq)
    known_rows = (rows_upto[bisect_right(data_seqs, info.seq)] for info in newest_first)
    shares = (info.rows / rows if rows else 0.0 for info, rows in zip(newest_first, known_rows, strict=True))
    total_from = [0.0, *accumulate(shares)]
    ages = [-info.seq for info in newest_first]
    return [total_from[bisect_right(ages, -info.seq)] for info in data]


def _dead_tombstones(kept: Sequence[ObjectInfo], tombstones: Iterable[ObjectInfo]) -> list[_MergeInput]:
    """Return how much of each tombstone object deletes nothing of the data objects that are kept."""
    ids = {info.id for info in kept}
    oldest_seq = min((info.seq for info in kept), default=None)
    found = []
    for info in tombstones:
        if info.targets is None:
            live = info.rows if oldest_seq is not None and oldest_seq <= info.seq else 0
        else:
            live = sum(rows for target, rows in info.targets if target in ids)
        found.append(_MergeInput(info, 1 - min(1.0, live / info.rows)))
    return found
