"""The doubles that consumers are tested with keep what a DataRetriever promises."""

import random  # noqa: TID251 - seeded by the test

import pytest

from penstock.errors import Unavailable
from penstock.jobs.consumer import Consumer, DataRetriever, DataType
from penstock.tables.define import define_table
from penstock.testing.consumers import SourceModel, job_context, rows_by_key
from support.everytype import EVERY_TYPE
from support.itemtables import TABLES, item_table


class Copy(Consumer):
    """Keeps rows in a dict."""

    rows: dict

    def consume(self, data: DataRetriever) -> None:
        if data.data_type is DataType.SNAPSHOT:
            self.rows = {}
        done = False
        while not done:
            inserts, deletes, done = data.next()
            changes = [(row["_commit_ts"], 0, row) for row in deletes.to_pylist()]
            changes += [(row["_commit_ts"], 1, row) for row in inserts.to_pylist()]
            for _, order, row in sorted(changes, key=lambda each: each[:2]):
                key = tuple(row[name] for name in data.keys)
                self.rows.pop(key, None)
                if order:
                    self.rows[key] = {name: row[name] for name in data.columns.names if name[0] != "_"}


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("seed", range(5))
def test_a_first_sync_and_tails_lead_to_what_the_model_has(tmp_path, kind, seed):
    model = SourceModel(item_table(kind))
    consumer = Copy(job_context(tmp_path, "copy", {}))
    for data in model.iterations(random.Random(seed), count=4):
        consumer.consume(data)
        assert consumer.rows == model.at(data.to_ts)
        consumer.consume(data.again())
        assert consumer.rows == model.at(data.to_ts)


def test_rows_of_every_type_and_of_a_new_column_come_in_the_schema_of_the_end(tmp_path):
    model = SourceModel(EVERY_TYPE)
    mix = random.Random(1)
    model.churn(mix)
    first = model.retriever(0, model.ts)
    model.alter(define_table("items", [("id", "bigint primary key"), ("more", "int"), ("text_", "text")]))
    model.churn(mix)
    tail = model.retriever(first.to_ts, model.ts)
    assert tail.columns.names == ["id", "more", "text_"]
    consumer = Copy(job_context(tmp_path, "copy", {}))
    consumer.consume(first)
    consumer.consume(tail)
    assert consumer.rows.keys() == model.at(tail.to_ts).keys()


def test_chosen_columns_come_behind_the_key():
    model = SourceModel(item_table("composite"))
    model.churn(random.Random(1))
    data = model.retriever(0, model.ts, columns=["NAME"])
    assert data.columns.names == ["part", "id", "name"]
    assert data.next().inserts.schema.names == ["part", "id", "name", "_commit_ts"]
    assert data.next().deletes.schema.names == ["part", "id", "_commit_ts"]


def test_net_rows_are_the_last_change_of_each_key():
    model = SourceModel(item_table())
    model.commit({"id": 1, "name": "a"}, {"id": 2, "name": "b"})
    start = model.ts
    model.commit({"id": 1, "name": "c"}, delete=[(2,)])
    model.commit({"id": 3, "name": "d"})
    model.commit({"id": 1, "name": "e"}, delete=[(3,)])
    net = model.retriever(start, model.ts, ends_of_updates=True, batch_rows=2).net()
    found = {row["id"]: (row["name"], row["_deleted"]) for row in net.to_pylist()}
    assert found == {1: ("e", False), 2: (None, True), 3: (None, True)}
    assert rows_by_key(net.select(["id", "name"]), ["id"])[(1,)] == {"id": 1, "name": "e"}


def test_a_fault_can_be_put_before_anything():
    def refuse(what):
        raise Unavailable(what)

    data = SourceModel(item_table()).retriever(0, 1)
    data.fault = refuse
    for call in (data.next, data.dataframe, lambda: data.update_watermark(None)):
        with pytest.raises(Unavailable):
            call()
    assert not data.watermarks
