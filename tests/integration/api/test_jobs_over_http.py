"""Changefeeds and jobs over HTTP, from their making to their end, and search in what a job has built."""

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from support.apiworld import ApiWorld, blocking

JOBS = "/api/v1/jobs"


@pytest.fixture(scope="module")
def index(shared: ApiWorld) -> Iterator[str]:
    """A fulltext index that runs, of a table with three rows."""
    shared.run(shared.world.create("shop.books", [("id", "bigint primary key"), ("title", "varchar(64)")]))
    rows = [
        {"id": 1, "title": "green shoes"},
        {"id": 2, "title": "green hats"},
        {"id": 3, "title": "red hats"},
    ]
    shared.run(shared.world.insert("shop.books", *rows))
    options = {"uri": f"file://{shared.folder}/index", "text_columns": "title"}
    consumer = {"consumer": "fulltext", "options": options}
    spec = {"trigger": {"job_type": "greedy"}, "detail": {"consumer": consumer}}
    made = shared.client("root").post(JOBS, json={"job": "shop.books/words", "spec": spec})
    assert made.status_code == 201, made.text
    with blocking(shared.world.running()):
        shared.until(lambda: _found(shared, q="hats") == [2, 3], "the index is not built")
        yield "shop.books/words"


def _found(shared: ApiWorld, **asked: Any) -> list[int]:
    answer = shared.client("root").get("/api/v1/search/shop.books/words", params=asked)
    return sorted(row["id"] for row in answer.json()["rows"]) if answer.status_code == 200 else []


def test_an_index_is_asked_by_words(shared: ApiWorld, index: str) -> None:
    client = shared.client("root")
    answer = client.get(f"/api/v1/search/{index}", params={"q": "green hats", "k": 10}).json()
    assert answer["rows"][0]["id"] == 2, "the best first"
    assert {row["id"] for row in answer["rows"]} == {1, 2, 3}
    assert answer["lag_s"] >= 0
    assert _found(shared, q="green hats", all="true") == [2]
    assert _found(shared, q="green hats", filter="id > 2") == [3]
    shown = client.get(f"/api/v1/search/{index}", params={"q": "shoes", "columns": "title"}).json()["rows"]
    assert [row.keys() for row in shown] == [{"title", "_score"}]
    posted = client.post(f"/api/v1/search/{index}", json={"words": "red", "k": 1}).json()
    assert [row["id"] for row in posted["rows"]] == [3]


@pytest.mark.parametrize(
    "asked",
    [
        {"words": "a", "vector": [1.0]},
        {},
        {"words": "a", "filter": "no such thing ((("},
        {"words": "a", "filter": "id = " + "1+" * 2000 + "1"},
        {"words": "a", "columns": ["none"]},
        {"words": "a", "k": 0},
        {"vector": [0.5]},
        {"vector": ["x"]},
        {"wordz": "a"},
    ],
)
def test_what_an_index_cannot_be_asked_is_told(shared: ApiWorld, index: str, asked: dict[str, Any]) -> None:
    answer = shared.client("root").post(f"/api/v1/search/{index}", json=asked)
    assert (answer.status_code, answer.json()["status"]) == (400, 400)


def test_a_job_is_seen_compared_and_repaired(shared: ApiWorld, index: str) -> None:
    client = shared.client("root")
    shown = client.get(f"{JOBS}/{index}").json()
    assert (shown["consumer"], shown["trigger"], shown["account"]) == ("fulltext", "greedy", "sys")
    assert shown["coverage"] == 1.0
    compared = client.post(f"{JOBS}/{index}/verify").json()
    assert (compared["same"], compared["source_rows"], compared["missing"]) == (True, 3, 0)
    assert client.post(f"{JOBS}/{index}/repair").json()["action"] == "nothing"
    anew = client.post(f"{JOBS}/{index}/repair", json={"rebuild": True}).json()
    assert anew["action"] == "rebuild"


def test_a_job_is_changed_paused_and_forgotten(shared: ApiWorld) -> None:
    client = shared.client("root")
    shared.run(shared.world.create("shop.pens", [("id", "bigint primary key"), ("name", "varchar(64)")]))
    options = {"url": "https://hooks.example/in/secret-path", "secret": "hunter2"}
    wish = {
        "job": "shop.pens/hook",
        "spec": {"detail": {"consumer": {"consumer": "webhook", "options": options}}},
    }
    made = client.post(JOBS, json=wish)
    assert made.status_code == 201
    assert client.post(JOBS, json=wish).status_code == 409, "there is one"
    path = f"{JOBS}/shop.pens/hook"
    changed = client.patch(path, json={"spec": {"detail": {"priority": 7}}})
    assert (changed.status_code, changed.json()["spec"]["detail"]["priority"]) == (200, 7)
    assert client.patch(path, json={}).status_code == 400, "nothing is to be changed"
    assert client.patch(path, json={"spec": {"detail": {"unknown": 1}}}).status_code == 400
    assert (
        client.patch(path, json={"spec": {"trigger": {"schedule": {"interval": "soon"}}}}).status_code == 400
    )
    assert client.post(f"{path}/pause").json()["paused"]
    assert "shop.pens/hook" in [row["job"] for row in client.get(JOBS).json()]
    assert client.get(JOBS, params={"state": "running"}).status_code == 200
    assert client.get(JOBS, params={"state": "sleeping"}).status_code == 400
    assert not client.post(f"{path}/resume").json()["paused"]
    for answer in (made, changed, client.get(path), client.get(JOBS), client.get("/api/v1/overview")):
        assert "hunter2" not in answer.text
        assert "secret-path" not in answer.text
    gone = client.delete(path)
    assert (gone.status_code, gone.content) == (204, b"")
    assert client.delete(path).status_code == client.get(path).status_code == 404


def test_a_job_that_cannot_work_is_refused(shared: ApiWorld) -> None:
    client = shared.client("root")

    def answered(job: str, consumer: str, **options: str) -> int:
        spec = {"detail": {"consumer": {"consumer": consumer, "options": options}}}
        return client.post(JOBS, json={"job": job, "spec": spec}).status_code

    assert answered("shop.none/x", "delta", uri="s3://lake/x") == 404
    assert answered("penstock.iscp_log/x", "delta", uri="s3://lake/x") == 404
    assert answered("shop.items/x", "none") == 400
    assert answered("shop.items/x", "delta") == 400
    assert answered("shop.items/x y", "delta", uri="s3://lake/x") == 400
    assert answered("shop", "delta", uri="s3://lake/x") == 400


def test_a_consumer_whose_package_is_missing_is_refused_with_the_command_that_installs_it(
    shared: ApiWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    monkeypatch.delitem(sys.modules, "penstock.consumers.lake.delta", raising=False)
    spec = {"detail": {"consumer": {"consumer": "delta", "options": {"uri": "s3://lake/x"}}}}
    answer = shared.client("root").post(JOBS, json={"job": "shop.items/x", "spec": spec})
    assert answer.status_code == 400
    assert answer.json()["detail"] == (
        "consumer delta needs the package deltalake; install it with: pip install 'penstock[delta]'"
    )


def test_a_changefeed_is_changed_paused_and_forgotten(shared: ApiWorld) -> None:
    client = shared.client("root")
    path = "/api/v1/changefeeds/orders"
    secret = f"file://{shared.folder}/orders?protocol=canal-json"
    wish = {
        "id": "orders",
        "sink_uri": secret,
        "storage_options": {"access_key_id": "hunter2"},
        "tables": ["shop.*"],
        "start": "snapshot",
    }
    made = client.post("/api/v1/changefeeds", json=wish)
    assert (made.status_code, made.json()["snapshot"]) == (201, True)
    assert client.post("/api/v1/changefeeds", json=wish).status_code == 409
    assert client.patch(path, json={"tables": ["shop.items"]}).status_code == 400, "it runs"
    assert client.post(f"{path}/pause").json()["state"] == "stopped"
    changed = client.patch(path, json={"tables": ["shop.items"]}).json()
    assert changed["settings"]["tables"] == ["shop.items"]
    assert client.patch(path, json={}).status_code == 400
    assert client.patch(path, json={"start": "now"}).status_code == 400
    assert client.patch(path, json={"tables": None}).status_code == 400
    assert client.patch(path, json={"sink_uri": "ftp://x"}).status_code == 400
    assert client.post(f"{path}/resume").json()["state"] == "normal"
    listed = client.get("/api/v1/changefeeds")
    assert "orders" in [row["id"] for row in listed.json()]
    for answer in (made, listed, client.get(path)):
        assert "hunter2" not in answer.text
    assert client.delete(path).status_code == 204
    assert client.get(path).status_code == 404
    assert client.post(f"{path}/pause").status_code == 404


@pytest.mark.parametrize(
    "more",
    [
        {"id": "no_name"},
        {"sink_uri": "nonsense"},
        {"tables": []},
        {"start": -1},
        {"start": 2**62},
        {"target_ts": 0},
        {"row_filters": [{"tables": ["shop.*"], "where": "((("}]},
        {"row_filters": [{"tables": ["shop.*"], "where": "(" * 2000 + "id = 1" + ")" * 2000}]},
        {"colour": "red"},
    ],
)
def test_a_changefeed_that_cannot_work_is_refused(shared: ApiWorld, more: dict[str, Any]) -> None:
    wish = {"id": "x", "sink_uri": f"file://{shared.folder}/x?protocol=csv", "tables": ["shop.*"]}
    refused = shared.client("root").post("/api/v1/changefeeds", json=wish | more)
    assert refused.status_code == 400, refused.text
