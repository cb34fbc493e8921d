"""Changes and snapshots of rows that another process holds: planned here, pickled, read over Flight."""

import random  # noqa: TID251 - only the type; Hypothesis decides the numbers
import tempfile
from itertools import count
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.eventstore.capture.flight_service import FlightService
from penstock.eventstore.read.flight_client import FlightReader
from penstock.tables.alter import add_column
from support.agreement import MODES, Agreement
from support.campaign import examples
from support.chosenmerge import begin_merge
from support.itemtables import TABLES, item, item_table
from support.tableworld import START, TableWorld

WORLDS = count()

steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.sets(st.integers(1, 8), min_size=1)),
        st.tuples(st.just("delete"), st.sets(st.integers(1, 8), min_size=1)),
        st.tuples(st.sampled_from(["flush", "merge", "alter"]), st.just(set[int]())),
    ),
    min_size=4,
    max_size=14,
)


def happen(world: TableWorld, kind: str, what: str, numbers: set[int], scratch: Path) -> None:
    rows = [item(kind, number, f"{number} at {world.ts}") for number in sorted(numbers)]
    if what == "write":
        world.commit(*rows)
    elif what == "delete":
        world.commit(delete=[key for key in map(world.key, rows) if world.versions.last(key) is not None])
    elif what == "flush":
        world.flush()
    elif what == "merge" and world.manifest().visible_objects("data", world.ts):
        assert begin_merge(world, scratch).commit(world)
    elif what == "alter" and len(world.table.schemas) == 1:
        world.alter(add_column(world.versions.table, "extra", "varchar(20) default 'none'"))


@settings(max_examples=examples(12), deadline=None)
@given(
    kind=st.sampled_from(sorted(TABLES)), steps=steps, mix=st.randoms(use_true_random=False), data=st.data()
)
def test_a_reader_elsewhere_is_told_the_same(
    kind: str, steps: list[tuple[str, set[int]]], mix: random.Random, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory(prefix="penstock-flight-") as name:
        folder = Path(name)
        url = f"memory:///flight-{next(WORLDS)}"
        with TableWorld(folder, item_table(kind), url=url, large_txn_bytes=600) as world:
            for what, numbers in steps:
                happen(world, kind, what, numbers, folder / "elsewhere")
            world.tick()
            world.resolve()
            service = FlightService("127.0.0.1:0", world.store, world.reader)
            try:
                with FlightReader(service.addr) as reader:
                    elsewhere = Agreement(world, world.view(reader))
                    moments = st.sampled_from([START, *world.moments(), world.ts])
                    ends = data.draw(st.lists(moments, min_size=2, max_size=2, unique=True))
                    for mode in MODES:
                        elsewhere.of_changes(min(ends), max(ends), mode, mix)
                    elsewhere.of_snapshot(max(ends))
            finally:
                service.close()
