"""Services that repeat what they were given: no secret comes into rows, logs and answers of the API.

An admin refers to secrets; a tenant can only write them as they are.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest

from penstock import eventloop
from penstock.changefeeds.engines.local import LocalEngine
from penstock.changefeeds.runner import ChangefeedRunner
from penstock.kv import Client
from penstock.process import JsonFormatter
from support.apiworld import TOKENS, ApiWorld, api_world
from support.s3server import FaultyS3, S3Bucket

FEEDS, JOBS = "/api/v1/changefeeds", "/api/v1/jobs"
LITERALS = {"secret_access_key": "tenants-own-key/83+aa", "session_token": "tenants-own-token-5521"}
REFERRED = {"secret_access_key": "admins-key/19+bb-cc", "session_token": "admins-token-7-7-7-7-7"}
HOOK = "hook-token-4711-0815"
ACCESS_KEY = "AKIA000111222"
SECRETS = (*LITERALS.values(), *REFERRED.values(), HOOK, ACCESS_KEY)


def stored(client: Client) -> bytes:
    with client.begin() as txn:
        return b"\n".join(key + value for key, value in txn.scan(b"", b"\xff"))


@pytest.fixture
def world(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    s3_bucket: S3Bucket,
    faulty_s3: FaultyS3,
) -> Iterator[ApiWorld]:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{faulty_s3.port}")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("ADMINS_KEY", REFERRED["secret_access_key"])
    folder = tmp_path_factory.mktemp("errors")
    (folder / "token").write_text(f"{REFERRED['session_token']}\n")
    targets = [f"{s3_bucket.url}/ann", f"http://127.0.0.1:{faulty_s3.port}/"]
    accounts: dict[str, Any] = {
        "root": {"token": TOKENS["root"], "admin": True},
        "ann": {"token": TOKENS["ann"], "targets": targets},
    }
    with api_world(folder, {"accounts": accounts}) as made:
        made.world.db.create_account("ann")
        for database, account in (("shop", "ann"), ("ledger", "root")):
            if account == "root":
                made.world.db.create_database(database)
            else:
                made.world.db.create_database(database, account=account)
            made.world.db.create_table(f"{database}.items", [("id", "bigint primary key")])
        yield made


def test_what_services_repeat_is_stored_logged_and_answered_without_secrets(
    world: ApiWorld, s3_bucket: S3Bucket, faulty_s3: FaultyS3, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "penstock")
    ann, root = world.client("ann"), world.client("root")
    faulty_s3.blurts["/hook/"] = [HOOK]
    hook_url = f"http://127.0.0.1:{faulty_s3.port}/hook"
    references = {"secret_access_key": "${ADMINS_KEY}", "session_token": f"${{file:{world.folder}/token}}"}
    ts = 0
    for client, database, secrets, place in (
        (ann, "shop", LITERALS, f"{s3_bucket.url}/ann"),
        (root, "ledger", references, f"{s3_bucket.url}/root"),
    ):
        ts = world.run(world.world.insert(f"{database}.items", {"id": 1}))
        credentials = {"access_key_id": ACCESS_KEY, "region": "us-east-1", **secrets}
        feed = {"id": "feed", "sink_uri": f"{place}/feed", "tables": [f"{database}.*"], "start": "snapshot"}
        sink = {"protocol": "canal-json", "flush-interval": "1s"}
        made = client.post(FEEDS, json={**feed, "storage_options": credentials, "sink": sink})
        assert made.status_code == 201, made.text
        copy = {"uri": f"{place}/copy", **{f"storage.{name}": text for name, text in credentials.items()}}
        hook = {"url": f"{hook_url}/{HOOK}", "headers.Authorization": f"Bearer {HOOK}"}
        for name, consumer, options in (("copy", "parquet", copy), ("hook", "webhook", hook)):
            verify = {"verify": "1s"} if name == "copy" else {}
            detail = {"consumer": {"consumer": consumer, "options": options}, **verify}
            spec = {"trigger": {"job_type": "greedy"}, "detail": detail}
            made = client.post(JOBS, json={"job": f"{database}.items/{name}", "spec": spec})
            assert made.status_code == 201, made.text

    feeds = ChangefeedRunner(
        world.deployment.settings,
        world.deployment.feeds,
        lambda order: LocalEngine(order.options.target),
        owner="x",
    )

    jobs = replace(world.world, settings=world.deployment.settings)  # with the accounts of the API

    async def start() -> AsyncExitStack:
        running = AsyncExitStack()
        await running.enter_async_context(jobs.running())
        task = asyncio.create_task(feeds.run())

        async def stop() -> None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        running.push_async_callback(stop)
        return running

    def shown(path: str, pick: Callable[[dict[str, Any]], Any]) -> bool:
        return bool(pick(root.get(path).json()))

    running = eventloop.run(start())
    try:
        for database, name in (("shop", "ann.feed"), ("ledger", "feed")):
            world.run(world.world.caught_up(f"{database}.items/copy", ts))
            world.until(
                lambda name=name: shown(f"{FEEDS}/{name}", lambda feed: feed["checkpoint_ts"] >= ts), name
            )
        faulty_s3.blurts.update(
            {"/ann/": [*LITERALS.values(), ACCESS_KEY], "/root/": [*REFERRED.values(), ACCESS_KEY]}
        )
        for database, name in (("shop", "ann.feed"), ("ledger", "feed")):
            world.run(world.world.insert(f"{database}.items", {"id": 2}))
            world.until(
                lambda name=name: shown(
                    f"{FEEDS}/{name}",
                    lambda feed: "***" in feed["error"] + feed["warning"],  # of a checkpoint, or of files
                ),
                name,
            )
            path = f"{JOBS}/{database}.items/copy"
            world.until(lambda path=path: shown(path, lambda job: "***" in job["error"]), path)
            world.until(
                lambda path=path: shown(
                    path, lambda job: job["verified"] and "***" in (job["verified"]["error"] or "")
                ),
                f"the comparison of {path}",
            )
        answers = [
            root.get(f"{path}").text
            for path in (FEEDS, JOBS, f"{FEEDS}/ann.feed", f"{FEEDS}/feed", "/api/v1/status")
        ]
        answers += [
            client.get(f"{JOBS}/shop.items/{name}").text
            for client in (ann, root)
            for name in ("copy", "hook")
        ]
        verified = ann.post(f"{JOBS}/shop.items/copy/verify")
        assert verified.status_code == 503, verified.text
        assert "***" in verified.text
        answers.append(verified.text)
    finally:
        eventloop.run(running.aclose())
    log = [
        json.dumps(record.__dict__, default=str) + JsonFormatter().format(record) for record in caplog.records
    ]
    for secret in SECRETS:
        assert secret.encode() not in stored(world.world.client), secret
        assert [line for line in log if secret in line] == []
        assert [answer for answer in answers if secret in answer] == []
