"""Open batches in any order come out by time, at one time deletes first, whatever is kept on disk."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.changes import ChangeBatch, Hint
from penstock.eventstore.schema_version import SchemaVersion
from penstock.eventstore.sides import COMMIT_TS
from penstock.jobs.iteration.ordering import BatchProjection, ConsumerBatch, iter_in_order
from penstock.tables.define import define_table
from support.campaign import examples

NOW = SchemaVersion(
    0, 1, define_table("items", [("id", "bigint primary key"), ("name", "varchar(9)")]), "shop"
)
INSERTS = pa.schema(
    [("id", pa.int64()), ("name", pa.string()), pa.field(COMMIT_TS, pa.int64(), nullable=False)]
)
DELETES = pa.schema([("id", pa.int64()), pa.field(COMMIT_TS, pa.int64(), nullable=False)])

Changes = list[tuple[int, int]]  # commit_ts, id


def _batch(inserts: Changes, deletes: Changes, hint: Hint) -> ChangeBatch:
    data = [{"id": number, "name": f"{number}@{ts}", COMMIT_TS: ts} for ts, number in inserts]
    ends = [{"id": number, COMMIT_TS: ts} for ts, number in deletes]
    return ChangeBatch(
        pa.RecordBatch.from_pylist(data, INSERTS), pa.RecordBatch.from_pylist(ends, DELETES), hint, NOW, 0
    )


def _steps(piece: ConsumerBatch) -> list[tuple[int, int, int]]:
    ends = [(row[COMMIT_TS], 0, row["id"]) for row in piece.deletes.to_pylist()]
    begins = [(row[COMMIT_TS], 1, row["id"]) for row in piece.inserts.to_pylist()]
    return sorted(ends + begins, key=lambda step: step[:2])


times = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 9)), max_size=12)


@settings(max_examples=examples(150), deadline=None)
@given(
    groups=st.lists(st.lists(st.tuples(times, times), min_size=1, max_size=4), max_size=4),
    batch_rows=st.integers(1, 5),
    memory=st.sampled_from([1, 1 << 20]),
)
def test_any_open_batches_come_out_in_order(
    groups: list[list[tuple[Changes, Changes]]], batch_rows: int, memory: int
) -> None:
    batches: list[ChangeBatch] = []
    expected: list[tuple[int, int, int]] = []
    for number, group in enumerate(groups):
        base, steps = number * 10, list[tuple[int, int, int]]()
        for position, (inserts, deletes) in enumerate(group):
            hint = Hint.TAIL_DONE if position == len(group) - 1 else Hint.TAIL_WIP
            begins = sorted((base + ts, key) for ts, key in inserts)
            ends = sorted((base + ts, key) for ts, key in deletes)
            batches.append(_batch(begins, ends, hint))
            steps += [(ts, 1, key) for ts, key in begins] + [(ts, 0, key) for ts, key in ends]
        expected += sorted(steps)
    with TemporaryDirectory() as folder:
        projection = BatchProjection(NOW, ["id", "name"])
        pieces = list(
            iter_in_order(batches, projection, Path(folder), batch_rows=batch_rows, memory_bytes=memory)
        )
    found = [step for piece in pieces for step in _steps(piece)]
    assert [step[:2] for step in found] == [step[:2] for step in sorted(expected)]
    assert sorted(found) == sorted(expected)
    for piece in pieces:
        for side in (piece.inserts, piece.deletes):
            stamps = side.column(COMMIT_TS).to_pylist()
            assert stamps == sorted(stamps)
