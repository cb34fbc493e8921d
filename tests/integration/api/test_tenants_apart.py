"""Two accounts with databases of their own: neither sees, finds or touches anything of the other."""

from typing import Any

import httpx
import pytest

from support.apiworld import TOKENS, ApiWorld


@pytest.fixture(scope="module")
def both(shared: ApiWorld) -> ApiWorld:
    """Each has a table with a row, a changefeed and a job; root has a changefeed of its own."""
    for account in ("ann", "bob"):
        client = shared.client(account)
        shared.run(shared.world.insert(f"of_{account}.items", {"id": 1, "name": f"{account}'s"}))
        assert client.post("/api/v1/changefeeds", json=feed(shared, account)).status_code == 201
        made = client.post("/api/v1/jobs", json=job(shared, account))
        assert made.status_code == 201, made.text
        ts = shared.run(shared.world.now_ts())
        shared.run(shared.world.readable(f"of_{account}.items", ts))
    return shared


def feed(world: ApiWorld, account: str, **more: Any) -> dict[str, Any]:
    uri = f"file://{world.folder}/{account}/feed?protocol=canal-json"
    return {"id": f"feed-of-{account}", "sink_uri": uri, "tables": [f"of_{account}.*"], **more}


def job(world: ApiWorld, account: str, name: str = "words") -> dict[str, Any]:
    options = {"uri": f"file://{world.folder}/{account}/{name}", "text_columns": "name"}
    consumer = {"consumer": "fulltext", "options": options}
    return {"job": f"of_{account}.items/{name}", "spec": {"detail": {"consumer": consumer}}}


def test_each_sees_its_own_only(both: ApiWorld) -> None:
    for mine, other in (("ann", "bob"), ("bob", "ann")):
        client = both.client(mine)
        assert client.get("/api/v1/me").json() == {"account": mine, "admin": False}
        assert [row["table"] for row in client.get("/api/v1/tables").json()] == [f"of_{mine}.items"]
        assert [row["id"] for row in client.get("/api/v1/changefeeds").json()] == [f"feed-of-{mine}"]
        assert [row["job"] for row in client.get("/api/v1/jobs").json()] == [f"of_{mine}.items/words"]
        whole = client.get("/api/v1/overview")
        assert whole.status_code == 200
        assert f"of_{mine}.items" in whole.text
        assert other not in whole.text.replace("another", ""), "not a word of the other one"
        assert f"{both.folder}" not in whole.text


def test_an_admin_sees_everything(both: ApiWorld) -> None:
    client = both.client("root")
    tables = {row["table"]: row["account"] for row in client.get("/api/v1/tables").json()}
    assert tables.items() >= {"of_ann.items": "ann", "of_bob.items": "bob", "shop.items": "sys"}.items()
    assert {row["account"] for row in client.get("/api/v1/changefeeds").json()} >= {"ann", "bob"}
    assert len(client.get("/api/v1/jobs").json()) >= 2


def asked(client: httpx.Client, world: ApiWorld, account: str, feed_id: str, job_name: str) -> list[Any]:
    """Everything that names something, of an account; what it answers."""
    table, of_job = f"of_{account}.items", f"of_{account}.items/{job_name}"
    answers = [
        client.get(f"/api/v1/tables/{table}"),
        client.get(f"/api/v1/tables/{table}/changes"),
        client.get(f"/api/v1/tables/{table}/changes", params={"format": "arrow", "from_ts": 0}),
        client.get(f"/api/v1/changefeeds/{feed_id}"),
        client.patch(f"/api/v1/changefeeds/{feed_id}", json={"target_ts": 1}),
        client.post(f"/api/v1/changefeeds/{feed_id}/pause"),
        client.post(f"/api/v1/changefeeds/{feed_id}/resume"),
        client.delete(f"/api/v1/changefeeds/{feed_id}"),
        client.get(f"/api/v1/jobs/{of_job}"),
        client.patch(f"/api/v1/jobs/{of_job}", json={"spec": {"trigger": {"paused": True}}}),
        client.post(f"/api/v1/jobs/{of_job}/pause"),
        client.post(f"/api/v1/jobs/{of_job}/resume"),
        client.post(f"/api/v1/jobs/{of_job}/verify"),
        client.post(f"/api/v1/jobs/{of_job}/repair", json={"rebuild": True}),
        client.delete(f"/api/v1/jobs/{of_job}"),
        client.get(f"/api/v1/search/{of_job}", params={"q": "bob"}),
        client.post(f"/api/v1/search/{of_job}", json={"vector": [1.0]}),
        client.post("/api/v1/jobs", json=job(world, account, job_name)),
    ]
    named = (table, feed_id, job_name, f"of_{account}", account)
    return [(each.status_code, _without(each.json()["detail"], named)) for each in answers]


def _without(text: str, names: tuple[str, ...]) -> str:
    for name in names:
        text = text.replace(name, "…")
    return text


def test_what_is_anothers_is_answered_as_what_is_not_there(both: ApiWorld) -> None:
    before = {
        path: both.client("bob").get(path).text
        for path in ("/api/v1/changefeeds/feed-of-bob", "/api/v1/jobs/of_bob.items/words")
    }
    client = both.client("ann")
    others = asked(client, both, "bob", "feed-of-bob", "words")
    nobodys = asked(client, both, "eve", "feed-of-eve", "words")
    assert others == nobodys
    assert {status for status, _ in others} == {404}
    for path, text in before.items():
        now = both.client("bob").get(path).json()
        assert {"state": now["state"], "settings": now.get("settings")} == {
            "state": httpx.Response(200, text=text).json()["state"],
            "settings": httpx.Response(200, text=text).json().get("settings"),
        }, "and nothing of it was touched"


def test_a_tenant_makes_nothing_out_of_others_tables_or_at_others_places(both: ApiWorld) -> None:
    client = both.client("ann")
    assert client.post("/api/v1/changefeeds", json=feed(both, "bob", id="mine")).status_code == 403
    everything = feed(both, "ann", id="mine", tables=["*.*"])
    assert client.post("/api/v1/changefeeds", json=everything).status_code == 403
    elsewhere = feed(both, "ann", id="mine", sink_uri=f"file://{both.folder}/bob/x?protocol=csv")
    assert client.post("/api/v1/changefeeds", json=elsewhere).status_code == 403
    client.post("/api/v1/changefeeds/feed-of-ann/pause")
    wider = client.patch("/api/v1/changefeeds/feed-of-ann", json={"tables": ["of_bob.*"]})
    assert (wider.status_code, "of_bob" in wider.json()["detail"]) == (403, True)
    moved = client.patch(
        "/api/v1/jobs/of_ann.items/words",
        json={"spec": {"detail": {"consumer": {"options": {"uri": f"file://{both.folder}/bob/words"}}}}},
    )
    assert moved.status_code == 403
    code = job(both, "ann", "code")
    code["spec"]["detail"]["consumer"]["consumer"] = "os:system"
    assert client.post("/api/v1/jobs", json=code).status_code == 403


def test_a_place_that_is_taken_tells_nothing_of_who_took_it(both: ApiWorld) -> None:
    place = f"file://{both.folder}/ann/feed/below?protocol=csv"
    inside = both.client("root").post(
        "/api/v1/changefeeds", json={"id": "inside", "sink_uri": place, "tables": ["shop.*"]}
    )
    assert inside.status_code == 400
    assert "feed-of-ann" not in inside.text, "whose place it is, is not told to other accounts"


def test_a_tenants_section_of_the_settings_is_not_handed_out(both: ApiWorld) -> None:
    """What the settings file says of a changefeed may have secrets: no request takes it over."""
    lacking = both.client("root").post("/api/v1/changefeeds", json={"id": "configured"})
    assert (lacking.status_code, lacking.json()["detail"]) == (
        400,
        "body.sink_uri is refused: Field required",
    )


def test_metrics_are_for_admins(both: ApiWorld) -> None:
    assert both.client("ann").get("/metrics").status_code == 403
    assert both.client().get("/metrics").status_code == 401
    shown = both.client("root").get("/metrics")
    assert (shown.status_code, "penstock_api_requests_total" in shown.text) == (200, True)
    assert all(token not in shown.text for token in TOKENS.values())


def test_a_changefeed_keeps_whose_it_is(both: ApiWorld) -> None:
    shown = both.client("root").get("/api/v1/changefeeds/bob.feed-of-bob").json()
    assert (shown["id"], shown["account"]) == ("bob.feed-of-bob", "bob")
    made = both.client("root").post(
        "/api/v1/changefeeds",
        json={"id": "roots", "sink_uri": f"file://{both.folder}/root?protocol=csv", "tables": ["shop.*"]},
    )
    assert made.json()["account"] == "sys"
    assert both.client("root").delete("/api/v1/changefeeds/roots").status_code == 204
    assert both.client("root").get("/api/v1/changefeeds/roots").status_code == 404
