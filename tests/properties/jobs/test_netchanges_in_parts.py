"""Net changes of parts, one after the other, come to the net changes of all of it."""

import random  # noqa: TID251 - seeded by hypothesis
from itertools import pairwise

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.changes.columns import key_names, with_deleted
from penstock.jobs.iteration.spark_frame import last_rows
from penstock.testing.consumers import SourceModel
from support.campaign import examples
from support.itemtables import TABLES, item_table


@settings(max_examples=examples(40), deadline=None)
@given(kind=st.sampled_from(sorted(TABLES)), seed=st.integers(0, 1 << 32), parts=st.integers(1, 5))
def test_the_last_rows_of_parts_are_those_of_the_whole(tmp_path_factory, kind, seed, parts):
    mix = random.Random(seed)
    model = SourceModel(item_table(kind))
    start = model.churn(mix)
    bounds = [start, *(model.churn(mix, commits=4) for _ in range(parts))]
    frames = [
        model.retriever(low, high, ends_of_updates=mix.random() < 0.5).net() for low, high in pairwise(bounds)
    ]
    mix.shuffle(frames)
    batches = [batch for frame in frames for batch in frame.to_batches(max_chunksize=3)]
    whole = model.retriever(start, model.ts)
    keys = key_names(model.table)
    found = list(last_rows(batches, keys, tmp_path_factory.mktemp("scratch")))
    table = pa.Table.from_batches(found, with_deleted(whole.columns))
    assert by_key(table, keys) == by_key(whole.net(), keys)


def by_key(table, keys):
    rows = [(tuple(row[name] for name in keys), row) for row in table.to_pylist()]
    assert len(dict(rows)) == len(rows), "a key is there twice"
    gone = ("_commit_ts", "_deleted", *keys)
    return {key: {name: row[name] for name in (gone if row["_deleted"] else row)} for key, row in rows}
