"""Tables over HTTP: how far each can be read, its history, and its changes as JSON and as Arrow."""

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from support.apiworld import ApiWorld

PATH = "/api/v1/tables/shop.history"


@pytest.fixture(scope="module")
def history(shared: ApiWorld) -> list[int]:
    """A table with a history: rows, updates, deletes, another column, another name of one; when each was."""
    world = shared.world

    async def made() -> list[int]:
        await world.create(
            "shop.history", [("id", "bigint primary key"), ("name", "varchar(64)"), ("f", "double")]
        )
        marks = [await world.now_ts()]
        marks.append(
            await world.insert("shop.history", *({"id": n, "name": f"n{n}", "f": n / 2} for n in range(5)))
        )
        marks.append(await world.upsert("shop.history", {"id": 1, "name": "new", "f": None}))
        marks.append(await world.delete("shop.history", 2))
        await world.do(world.db.add_column, "shop.history", "price", "decimal(10,2) default '1.50'")
        marks.append(
            await world.insert("shop.history", {"id": 9, "name": "n9", "f": 0.5, "price": Decimal("2.25")})
        )
        await world.readable("shop.history", marks[-1])
        return marks

    return shared.run(made())


def rows_of(page: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [(row["_op"], row["id"], row["name"]) for row in page["rows"]]


def test_a_table_is_listed_with_how_far_it_can_be_read(shared: ApiWorld, history: list[int]) -> None:
    listed = {row["table"]: row for row in shared.client("root").get("/api/v1/tables").json()}
    row = listed["shop.history"]
    assert row["captured"]
    assert row["readable_ts"] >= history[-1] == row["changed_ts"]
    assert row["lag_s"] >= 0
    assert not any(name.startswith("penstock.") for name in listed), "what Penstock keeps is not theirs"


def test_a_table_is_shown_with_its_versions_and_objects(shared: ApiWorld, history: list[int]) -> None:
    client = shared.client("root")
    shared.until(lambda: (client.get(PATH).json()["flushed_ts"] or 0) >= history[-1], "it is not flushed")
    shown = client.get(PATH).json()
    assert [
        (each["name"], each["type"], each["nullable"], each["primary_key"]) for each in shown["columns"]
    ] == [
        ("id", "bigint", False, True),
        ("name", "varchar(64)", True, False),
        ("f", "double", True, False),
        ("price", "decimal(10,2)", True, False),
    ]
    assert [len(each["columns"]) for each in shown["schemas"]] == [3, 4]
    assert (
        shown["schemas"][0]["since_ts"]
        < history[1]
        < history[3]
        < shown["schemas"][1]["since_ts"]
        < history[4]
    )
    kinds = {(each["side"], each["kind"]): each for each in shown["kinds"]}
    assert {side for side, _ in kinds} == {"data", "tombstone"}
    assert (
        sum(each["rows"] for (side, kind), each in kinds.items() if (side, kind) == ("data", "appendable"))
        == 7
    )
    assert all(each["from_ts"] <= each["to_ts"] and each["bytes"] > 0 for each in shown["objects"])
    assert shown["objects_left_off"] == 0
    assert shown["oldest_ts"] <= history[1] <= history[-1] <= shown["flushed_ts"]


def test_changes_come_in_order_with_what_each_did(shared: ApiWorld, history: list[int]) -> None:
    page = (
        shared.client("root")
        .get(f"{PATH}/changes", params={"from_ts": history[0], "to_ts": history[-1]})
        .json()
    )
    assert rows_of(page) == [
        *(("insert", number, f"n{number}") for number in range(5)),
        ("update", 1, "new"),
        ("delete", 2, "n2"),
        ("insert", 9, "n9"),
    ]
    assert [row["_commit_ts"] for row in page["rows"]][4:] == history[1:]
    assert [row["price"] for row in page["rows"]] == ["1.50"] * 7 + ["2.25"], (
        "what came later reads as its default"
    )
    assert (page["from_ts"], page["to_ts"]) == (history[0], history[-1])
    assert (page["more"], page["next_from_ts"]) == (False, None)


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 100])
def test_pages_go_on_where_the_last_ended_also_within_a_transaction(
    shared: ApiWorld, history: list[int], limit: int
) -> None:
    client = shared.client("root")
    seen: list[tuple[Any, ...]] = []
    asked: dict[str, Any] = {"from_ts": history[0], "to_ts": history[-1], "limit": limit}
    while True:
        page = client.get(f"{PATH}/changes", params=asked).json()
        assert len(page["rows"]) <= limit
        seen += rows_of(page)
        if not page["more"]:
            break
        asked |= {"from_ts": page["next_from_ts"], "skip": page["next_skip"]}
    assert [number for _, number, _ in seen] == [0, 1, 2, 3, 4, 1, 2, 9]


def test_a_range_without_bounds_is_the_last_hour(shared: ApiWorld, history: list[int]) -> None:
    """It begins before there was the table, and ends where it can be read."""
    page = shared.client("root").get(f"{PATH}/changes").json()
    assert len(page["rows"]) == 8
    assert page["from_ts"] < history[0] < history[-1] <= page["to_ts"]


def test_some_columns_come_with_the_key(shared: ApiWorld, history: list[int]) -> None:
    asked = {"from_ts": history[0], "to_ts": history[-1], "columns": ["PRICE"]}
    page = shared.client("root").get(f"{PATH}/changes", params=asked).json()
    assert page["rows"][-1] == {"_op": "insert", "_commit_ts": history[-1], "id": 9, "price": "2.25"}
    wrong = shared.client("root").get(f"{PATH}/changes", params={"columns": "none"})
    assert (wrong.status_code, "it has id, name" in wrong.json()["detail"]) == (400, True)


def test_changes_come_as_arrow_with_where_they_end(shared: ApiWorld, history: list[int]) -> None:
    client = shared.client("root")
    asked: dict[str, Any] = {"format": "arrow", "from_ts": history[0], "to_ts": history[-1]}
    whole = client.get(f"{PATH}/changes", params=asked)
    assert whole.headers["content-type"] == "application/vnd.apache.arrow.stream"
    table = pa.ipc.open_stream(whole.content).read_all()
    assert table.schema.names == ["_op", "_commit_ts", "id", "name", "f", "price"]
    assert table.column("id").to_pylist() == [0, 1, 2, 3, 4, 1, 2, 9]
    assert table.column("price").to_pylist()[-1] == Decimal("2.25")
    assert whole.headers["penstock-to-ts"] == str(history[-1])
    assert whole.headers["penstock-more"] == "false"
    some = client.get(f"{PATH}/changes", params=asked | {"limit": 2})
    assert pa.ipc.open_stream(some.content).read_all().num_rows == 5, "a transaction is never divided"
    assert some.headers["penstock-more"] == "true"
    rest = client.get(f"{PATH}/changes", params=asked | {"from_ts": some.headers["penstock-to-ts"]})
    assert pa.ipc.open_stream(rest.content).read_all().column("id").to_pylist() == [1, 2, 9]


def test_the_rows_of_a_table_come_as_arrow(shared: ApiWorld, history: list[int]) -> None:
    client = shared.client("root")
    for ts, ids in ((history[1], [0, 1, 2, 3, 4]), (history[-1], [0, 1, 3, 4, 9])):
        answer = client.get(f"{PATH}/changes", params={"format": "arrow", "from_ts": 0, "to_ts": ts})
        table = pa.ipc.open_stream(answer.content).read_all()
        assert sorted(table.column("id").to_pylist()) == ids
        assert set(table.column("_op").to_pylist()) == {"insert"}
    assert client.get(f"{PATH}/changes", params={"from_ts": 0}).status_code == 400


def test_what_cannot_be_read_is_told(shared: ApiWorld, history: list[int]) -> None:
    client = shared.client("root")

    def answered(**asked: Any) -> tuple[int, str]:
        answer = client.get(f"{PATH}/changes", params=asked)
        return answer.status_code, answer.json()["detail"]

    later = shared.run(shared.world.now_ts()) + (3_600_000 << 18)
    assert answered(to_ts=later)[0] == 409, "it is not complete yet"
    assert answered(from_ts=history[2], to_ts=history[1])[0] == 400
    assert answered(from_ts=-1)[0] == 400
    assert answered(from_ts=2**64)[0] == 400
    assert answered(limit=0)[0] == 400
    assert answered(format="xml")[0] == 400
    assert answered(form_ts=1) == (
        400,
        "query parameter form_ts is unknown; use columns, format, from_ts, limit, skip, to_ts",
    )
    assert answered(format="arrow", skip=1)[0] == 400
    empty = client.get(f"{PATH}/changes", params={"from_ts": history[1], "to_ts": history[1]})
    assert (empty.status_code, empty.json()["rows"]) == (200, [])
    nothing = client.get(
        f"{PATH}/changes", params={"from_ts": history[1], "to_ts": history[1], "format": "arrow"}
    )
    assert pa.ipc.open_stream(nothing.content).read_all().num_rows == 0


def test_a_page_has_no_more_rows_than_an_answer_may(shared: ApiWorld, history: list[int]) -> None:
    with shared.beside(rows_max=2) as url:
        client = shared.client("root", url)
        asked = {"from_ts": history[0], "to_ts": history[-1], "limit": 100}
        page = client.get(f"{PATH}/changes", params=asked).json()
        assert (len(page["rows"]), page["more"]) == (2, True)


def test_numbers_that_json_lacks_are_texts(shared: ApiWorld) -> None:
    world = shared.world
    shared.run(
        world.create("shop.bits", [("id", "bigint primary key"), ("b", "varbinary(8)"), ("t", "time")])
    )
    ts = shared.run(world.insert("shop.bits", {"id": 1, "b": b"\x00\xff"}))
    shared.run(world.readable("shop.bits", ts))
    page = shared.client("root").get("/api/v1/tables/shop.bits/changes").json()
    assert page["rows"] == [{"_op": "insert", "_commit_ts": ts, "id": 1, "b": "00ff", "t": None}]


def test_a_table_without_a_key_has_its_handle(shared: ApiWorld) -> None:
    world = shared.world
    shared.run(world.create("shop.keyless", [("name", "varchar(8)")]))
    ts = shared.run(world.insert("shop.keyless", {"name": "a"}, {"name": "b"}))
    shared.run(world.readable("shop.keyless", ts))
    page = shared.client("root").get("/api/v1/tables/shop.keyless/changes").json()
    assert [row["name"] for row in page["rows"]] == ["a", "b"]
    assert len({row["_handle"] for row in page["rows"]}) == 2


def test_a_range_in_which_the_table_was_truncated_is_refused_and_one_after_it_is_told(
    shared: ApiWorld,
) -> None:
    world = shared.world

    async def made() -> tuple[int, int]:
        await world.create("shop.emptied", [("id", "bigint primary key"), ("name", "varchar(64)")])
        before_ts = await world.insert("shop.emptied", {"id": 1, "name": "gone"})
        await world.do(world.db.truncate_table, "shop.emptied")
        to_ts = await world.insert("shop.emptied", {"id": 2, "name": "there"})
        await world.readable("shop.emptied", to_ts)
        return before_ts, to_ts

    before_ts, to_ts = shared.run(made())
    client = shared.client("root")
    path = "/api/v1/tables/shop.emptied/changes"

    def answered() -> int:
        status = client.get(path, params={"from_ts": before_ts, "to_ts": to_ts}).status_code
        assert status in {410, 503}, "503: what the name meant before is not flushed yet"
        return status

    shared.until(lambda: answered() == 410, "it is not told what happened")
    told = client.get(path, params={"from_ts": before_ts, "to_ts": to_ts}).json()["detail"]
    assert told.startswith(f"a DDL replaced rows of shop.emptied since {before_ts} without changes of them")
    assert told.endswith(": read a snapshot and go on from it")
    ddl_ts = int(told.rpartition(": ")[0].rpartition(" ")[2])
    assert before_ts < ddl_ts < to_ts
    after = client.get(path, params={"from_ts": ddl_ts, "to_ts": to_ts})
    assert rows_of(after.json()) == [("insert", 2, "there")]
    assert rows_of(client.get(path).json()) == [("insert", 2, "there")], "the last hour, as far as it is told"
