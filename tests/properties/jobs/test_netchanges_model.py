"""Whatever happens to a table, and however its changes are cut into batches, net changes lead to its rows."""

import random  # noqa: TID251 - seeded by hypothesis

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.jobs.consumer import read_net_changes
from penstock.testing.consumers import SourceModel, rows_by_key
from support.campaign import examples
from support.itemtables import TABLES, item_table


@settings(max_examples=examples(40), deadline=None)
@given(
    kind=st.sampled_from(sorted(TABLES)),
    seed=st.integers(0, 1 << 32),
    memory_bytes=st.sampled_from([2000, 10_000, 1 << 30]),
    numbers=st.integers(1, 40),
)
def test_net_changes_lead_from_one_moment_to_the_next(tmp_path_factory, kind, seed, memory_bytes, numbers):
    mix = random.Random(seed)
    scratch = tmp_path_factory.mktemp("scratch")
    model = SourceModel(item_table(kind))
    rows = {}
    for data in model.iterations(mix, count=4, commits=mix.randrange(1, 20), numbers=numbers):
        before = rows
        net = read_net_changes(data, scratch, memory_bytes=memory_bytes)
        gone = [tuple(row[name] for name in net.keys) for row in net.deletes.to_pylist()]
        come = rows_by_key(net.upserts, net.keys)
        assert len(set(gone)) == len(gone)
        assert not come.keys() & set(gone)
        rows = {key: row for key, row in before.items() if key not in gone} | come
        assert rows == model.at(data.to_ts)
        times = net.upserts.column("_commit_ts").to_pylist()
        assert all(data.from_ts < ts <= data.to_ts for ts in times)
        assert net.upserts.equals(read_net_changes(data.again(), scratch).upserts), (
            "another order the second time"
        )
    assert not list(scratch.iterdir())
