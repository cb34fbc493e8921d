"""Two accounts use the same name for a changefeed, and neither learns of the other's."""

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import pytest

from penstock import eventloop
from penstock.changefeeds.engines.local import LocalEngine
from penstock.changefeeds.model import ChangefeedInfo
from penstock.changefeeds.runner import ChangefeedRunner
from penstock.changefeeds.store import ChangefeedStore
from penstock.clock import SYSTEM
from penstock.errors import NotFound
from support.apiworld import TOKENS, ApiWorld, api_world

FEEDS = "/api/v1/changefeeds"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiWorld]:
    folder = tmp_path_factory.mktemp("names")
    accounts: dict[str, Any] = {"root": {"token": TOKENS["root"], "admin": True}}
    for account in ("ann", "bob"):
        accounts[account] = {"token": TOKENS[account], "targets": [f"file://{folder}/{account}"]}
    with api_world(folder, {"accounts": accounts, "requests_burst": 100_000}) as made:
        for account in ("ann", "bob"):
            made.world.db.create_account(account)
            made.world.db.create_database(f"of_{account}", account=account)
            made.world.db.create_table(
                f"of_{account}.items", [("id", "bigint primary key"), ("name", "text")]
            )
        yield made


def wish(world: ApiWorld, account: str, name: str, place: str = "") -> dict[str, Any]:
    uri = f"file://{world.folder}/{account}/{place or name}?protocol=csv"
    return {"id": name, "sink_uri": uri, "tables": [f"of_{account}.*"]}


def test_each_account_has_its_own_names(world: ApiWorld) -> None:
    ann, bob, root = (world.client(account) for account in ("ann", "bob", "root"))
    for account, client in (("ann", ann), ("bob", bob)):
        made = client.post(FEEDS, json=wish(world, account, "orders"))
        assert (made.status_code, made.json()["id"]) == (201, "orders"), made.text
    own = root.post(FEEDS, json={**wish(world, "root", "orders"), "tables": ["shop.*"]})
    assert own.status_code == 201, own.text
    again = ann.post(FEEDS, json=wish(world, "ann", "orders", "more"))
    assert (again.status_code, "changefeed orders already" in again.json()["detail"]) == (409, True)

    for account, client in (("ann", ann), ("bob", bob)):
        assert [row["id"] for row in client.get(FEEDS).json()] == ["orders"]
        shown = client.get(f"{FEEDS}/orders").json()
        assert (shown["id"], shown["account"]) == ("orders", account)
        overview = client.get("/api/v1/overview").json()
        assert [row["id"] for row in overview["changefeeds"]] == ["orders"]
        other = "bob" if account == "ann" else "ann"
        assert client.get(f"{FEEDS}/{other}.orders").status_code == 404
    named = {row["id"]: row["account"] for row in root.get(FEEDS).json()}
    assert named == {"ann.orders": "ann", "bob.orders": "bob", "orders": "sys"}
    assert root.get(f"{FEEDS}/bob.orders").json()["account"] == "bob"

    paused = ann.post(f"{FEEDS}/orders/pause")
    assert (paused.status_code, paused.json()["id"], paused.json()["state"]) == (200, "orders", "stopped")
    moved = ann.patch(
        f"{FEEDS}/orders", json={"sink_uri": f"file://{world.folder}/ann/elsewhere?protocol=csv"}
    )
    assert moved.status_code == 200, moved.text
    assert {bob.get(f"{FEEDS}/orders").json()["state"], root.get(f"{FEEDS}/orders").json()["state"]} == {
        "normal"
    }
    inside = ann.post(FEEDS, json=wish(world, "ann", "below", "elsewhere/below"))
    assert (inside.status_code, "changefeed orders writes to" in inside.json()["detail"]) == (400, True)

    assert ann.delete(f"{FEEDS}/orders").status_code == 204
    assert ann.get(f"{FEEDS}/orders").status_code == 404
    assert bob.get(f"{FEEDS}/orders").status_code == 200
    assert root.delete(f"{FEEDS}/bob.orders").status_code == 204
    assert bob.get(f"{FEEDS}/orders").status_code == 404
    assert root.delete(f"{FEEDS}/orders").status_code == 204


def test_changefeeds_of_one_name_run_beside_each_other(world: ApiWorld) -> None:
    """Their leases, dispatchers, holds and files are apart; each writes where its account may."""
    clients = {account: world.client(account) for account in ("ann", "bob")}
    for account, client in clients.items():
        world.run(world.world.insert(f"of_{account}.items", {"id": 1, "name": f"{account}'s"}))
        sink = {"protocol": "canal-json", "flush-interval": "1s"}
        uri = f"file://{world.folder}/{account}/run"
        feed = {
            "id": "run",
            "sink_uri": uri,
            "tables": [f"of_{account}.*"],
            "start": "snapshot",
            "sink": sink,
        }
        made = client.post(FEEDS, json=feed)
        assert made.status_code == 201, made.text
    settings, feeds = world.deployment.settings, world.deployment.feeds
    runner = ChangefeedRunner(settings, feeds, lambda order: LocalEngine(order.options.target), owner="here")

    def texts(account: str) -> str:
        found = (world.folder / account / "run" / f"of_{account}" / "items").rglob("*.json")
        return "".join(path.read_text() for path in found if "meta" not in path.parts)

    async def run() -> None:
        task = asyncio.create_task(runner.run())
        try:
            async with asyncio.timeout(60):
                while not all(f"{account}'s" in texts(account) for account in clients):
                    assert not task.done()
                    await SYSTEM.sleep(0.05)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    world.run(run())
    assert "bob" not in texts("ann")
    for client in clients.values():
        assert client.get(f"{FEEDS}/run").json()["state"] == "normal"
        assert client.delete(f"{FEEDS}/run").status_code == 204


def test_a_changefeed_of_an_earlier_version_keeps_its_name_and_its_address(world: ApiWorld) -> None:
    settings = {"sink_uri": f"file://{world.folder}/ann/old?protocol=csv", "tables": ["of_ann.*"]}
    old = ChangefeedInfo(id="old", settings=settings, start_ts=1, account="ann")
    eventloop.run(world.deployment.feeds.create(old))  # as earlier versions did for tenants
    ann, bob, root = (world.client(account) for account in ("ann", "bob", "root"))
    assert ann.get(f"{FEEDS}/old").json()["id"] == root.get(f"{FEEDS}/old").json()["id"] == "old"
    assert ann.post(FEEDS, json=wish(world, "ann", "old", "new")).status_code == 409, "the name is its own"
    made = bob.post(FEEDS, json=wish(world, "bob", "old"))
    assert made.status_code == 201, made.text
    assert {row["id"] for row in root.get(FEEDS).json()} == {"old", "bob.old"}
    assert ann.post(f"{FEEDS}/old/pause").json()["state"] == "stopped"
    assert bob.get(f"{FEEDS}/old").json()["state"] == "normal"
    assert ann.delete(f"{FEEDS}/old").status_code == 204
    assert [row["id"] for row in root.get(FEEDS).json()] == ["bob.old"]
    assert root.delete(f"{FEEDS}/bob.old").status_code == 204


def test_ids_have_one_meaning_however_accounts_are_named(world: ApiWorld) -> None:
    """An id is a part of keys, between slashes: the account `a/b` must not have rows below those of `a`."""
    client = world.deployment.client
    names = ["a", "a.b", "a/b", "\u00e4", "x" * 65]
    sink = {"sink_uri": "memory:///x?protocol=csv"}

    async def create_all() -> dict[str, list[str]]:
        found = {}
        for name in names:
            info = ChangefeedInfo(id="c", settings=sink, start_ts=1, account=name)
            await ChangefeedStore(client, account=name).create(info)
        for name in names:
            store = ChangefeedStore(client, account=name)
            found[name] = [record.info.id for record in await store.list()]
            assert (await store.get("c")).info.account == name
            with pytest.raises(NotFound):
                await store.get("b.c")
        ids = [await ChangefeedStore(client, account=name).remove("c") for name in names]
        assert len(set(ids)) == len(names)
        assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}\.c", changefeed_id) for changefeed_id in ids)
        return found

    assert eventloop.run(create_all()) == {name: ["c"] for name in names}
