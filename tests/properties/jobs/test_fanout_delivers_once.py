"""Whatever speed consumers have, and whoever leaves: all get every piece once, in order, in little memory."""

import threading
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.clock import SYSTEM
from penstock.columnar.spill_queue import SpillQueue
from penstock.errors import Aborted
from penstock.jobs.error_codes import CutOff
from penstock.jobs.iteration.fan_out import FanOut
from penstock.jobs.iteration.ordering import ConsumerBatch
from support.campaign import examples

PIECES_MAX = 3


@dataclass(frozen=True)
class Plan:
    """Rests, in milliseconds, before its first takes; and after how many pieces it leaves (None: never)."""

    rests: tuple[int, ...]
    leaves_after: int | None


class CountingFanOut(FanOut[ConsumerBatch]):
    """Remembers how many pieces it has had in memory at most."""

    most = 0

    def give(self, piece: ConsumerBatch) -> bool:
        given = super().give(piece)
        with self._changed:
            held = {id(batch) for queue in self._queues.values() for batch in queue.batches}
            self.most = max(self.most, len(held))
        return given


def _piece(number: int) -> ConsumerBatch:
    return ConsumerBatch(
        pa.record_batch({"n": pa.array([number])}), pa.record_batch({"n": pa.array([], pa.int64())})
    )


def _check_end(plan: Plan, taken: int, error: Exception | None, *, pieces: int, bounded: bool) -> None:
    if error is None:
        assert taken == pieces
    elif isinstance(error, Aborted):
        assert taken == plan.leaves_after
    else:
        assert bounded, "only who needs too much disk is cut off"


plans = st.builds(
    Plan,
    rests=st.lists(st.integers(0, 3), max_size=6).map(tuple),
    leaves_after=st.none() | st.integers(0, 20),
)


@settings(max_examples=examples(60), deadline=None)
@given(
    plans=st.lists(plans, min_size=1, max_size=4),
    pieces=st.integers(0, 25),
    patience_ms=st.sampled_from([0, 1, 10_000]),
    spool_bytes=st.sampled_from([1, 2000, 10**9]),
)
def test_every_consumer_gets_every_piece_once_in_order(
    plans: list[Plan], pieces: int, patience_ms: int, spool_bytes: int
) -> None:
    with TemporaryDirectory() as folder:
        opened: list[SpillQueue] = []

        def open_spool(name: Hashable) -> SpillQueue:
            opened.append(
                SpillQueue(Path(folder) / f"{name}-{len(opened)}", ConsumerBatch._make, segment_bytes=1500)
            )
            return opened[-1]

        fan = CountingFanOut(
            range(len(plans)),
            batches_max=PIECES_MAX,
            patience_s=patience_ms / 1000,
            spool_bytes=spool_bytes,
            open_spool=open_spool,
        )
        found: list[list[int]] = [[] for _ in plans]
        ended: list[Exception | None] = [None for _ in plans]

        def consume(name: int, plan: Plan) -> None:
            try:
                while True:
                    if len(found[name]) == plan.leaves_after:
                        fan.close(name)
                    if len(found[name]) < len(plan.rests):
                        SYSTEM.pause(plan.rests[len(found[name])] / 1000)
                    piece = fan.take(name)
                    if piece is None:
                        return
                    found[name].append(piece.inserts.column("n")[0].as_py())
            except (Aborted, CutOff) as error:
                ended[name] = error

        threads = [threading.Thread(target=consume, args=each) for each in enumerate(plans)]
        for thread in threads:
            thread.start()
        if all(fan.give(_piece(number)) for number in range(pieces)):
            fan.end()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()

        for plan, numbers, error in zip(plans, found, ended, strict=True):
            assert numbers == list(range(len(numbers)))
            _check_end(plan, len(numbers), error, pieces=pieces, bounded=spool_bytes < 10**9)
        assert fan.most <= PIECES_MAX
        for spool in opened:
            spool.close()
