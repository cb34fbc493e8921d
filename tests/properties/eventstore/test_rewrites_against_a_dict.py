"""Any history of writes and of MODIFY COLUMN that rewrites rows, against the dict that the history is."""

import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import StaleRead
from penstock.tables.columns import SchemaState
from support.agreement import MODES, Agreement
from support.campaign import examples
from support.rewrites import RewritingWorld
from support.tableworld import TableWorld

NUMBERS = range(1, 7)

chosen = st.frozensets(st.sampled_from(NUMBERS), max_size=4)
writes = st.tuples(st.just("write"), chosen)
deletes = st.tuples(st.just("delete"), chosen)
backfills = st.tuples(st.just("backfill"), chosen)
others = st.tuples(
    st.sampled_from(["advance", "advance", "advance", "flush", "merge", "crash", "torn", "lose disk"]),
    chosen,
)
steps = st.lists(st.one_of(writes, writes, deletes, backfills, others, others), min_size=6, max_size=40)


class _History:
    """Takes such steps, as far as they are possible."""

    def __init__(self, world: RewritingWorld) -> None:
        self.world = world
        self.switches: list[int] = []

    def step(self, kind: str, numbers: frozenset[int]) -> None:
        world = self.world
        live = {key[0] for key in world.table.places}
        if kind == "write" and numbers:
            world.commit(
                *({"id": number, "v": world.value(world.ts % 1000 + number)} for number in sorted(numbers))
            )
        elif kind == "delete" and numbers & live:
            world.commit(delete=[(number,) for number in sorted(numbers & live)])
        elif kind == "backfill" and world.hidden and world.hidden.state is SchemaState.WRITE_REORG:
            world.backfill([(number,) for number in sorted(numbers & live)])
        elif kind == "advance":
            self.advance()
        elif kind == "flush":
            world.flush()
        elif kind == "merge":
            world.flush()
            world.store.merge(1)
        elif kind == "crash":
            world.crash()
        elif kind == "torn":
            world.deliver()
            TableWorld.resolve(world)
            world.reread(len(numbers))
            world.crash()
        elif kind == "lose disk":
            world.lose_disk()

    def advance(self) -> None:
        world = self.world
        if world.hidden is None:
            world.begin_rewrite()
        elif world.hidden.state is not SchemaState.WRITE_REORG:
            world.advance_rewrite()
        else:
            world.backfill()
            self.switches.append(world.switch())


@settings(max_examples=examples(30, 300), deadline=None)
@given(
    history=steps,
    mix=st.randoms(use_true_random=False),
    large_txn_bytes=st.sampled_from([1, 1 << 30]),
    delivers_backfill=st.booleans(),
)
def test_reads_agree_with_the_dict_whatever_was_rewritten(
    history: list[tuple[str, Any]], mix: Any, large_txn_bytes: int, *, delivers_backfill: bool
) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        RewritingWorld(
            Path(folder), large_txn_bytes=large_txn_bytes, delivers_backfill=delivers_backfill
        ) as world,
    ):
        taken = _History(world)
        first_ts = world.tick()
        for step in history:
            taken.step(*step)
        world.tick()
        world.deliver()
        world.resolve()
        agreement = Agreement(world)
        moments = sorted({*world.moments(), *world.ddl_times(), world.ts} - {1})
        for ts in moments:
            agreement.of_snapshot(ts)
        # Between two rewrites the changes lead from any moment to any later one; across one they do not.
        for begin, end in pairwise([first_ts, *taken.switches, world.ts + 1]):
            inside = [ts for ts in moments if begin <= ts < end]
            if len(inside) > 1:
                from_ts, to_ts = sorted(mix.sample(inside, 2))
                agreement.of_changes(from_ts, to_ts, mix.choice(list(MODES)), mix)
        for switched_ts in taken.switches:
            with pytest.raises(StaleRead):
                world.changes(switched_ts - 1, world.ts)
