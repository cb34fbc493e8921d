"""A tenant can write to its own target: what it puts there ends its own changefeed or job, and nobody else's.

The processes of changefeeds and of jobs read small files of a target: checkpoints, indexes, manifests. A
file of a terabyte, which costs its owner nothing, must not be read into the memory that all accounts share.
"""

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.changefeeds.engines.engine import FileWork
from penstock.changefeeds.engines.files import write_files
from penstock.changefeeds.engines.local import LocalEngine
from penstock.changefeeds.runner import ChangefeedRunner
from penstock.changefeeds.sinks.storage.layout import decode_checkpoint, number_in_index
from penstock.changefeeds.sinks.storage.schema_file import SchemaFile
from penstock.clock import SYSTEM
from penstock.consumers.lake.parquet import MANIFEST, CopyManifest, live_files
from penstock.errors import Corrupt
from penstock.object_storage import StorageRef, open_storage
from support.apiworld import TOKENS, ApiWorld, api_world

HUGE = 1 << 40
LARGE = 1 << 31  # a machine has so much memory
FEEDS = "/api/v1/changefeeds"
NESTED = b"[" * 100_000
LONG = b"9" * 10_000


def make_huge(path: Path, nbytes: int = HUGE) -> None:
    """Make a file of so many zeros, which takes no room on the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.truncate(path, nbytes)


def private_bytes() -> int:
    """Return the memory that only this process has."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))


@pytest.mark.parametrize(
    "use",
    [
        lambda storage: storage.read("file", bytes_max=1000),
        lambda storage: storage.advance("file", b"new", is_older=lambda _: True),
    ],
)
def test_a_small_file_that_became_huge_is_not_read(tmp_path: Path, use: Callable[..., object]) -> None:
    make_huge(tmp_path / "file")
    with pytest.raises(Corrupt, match=r"file at .* has 1099511627776 bytes, .*; look at it, and remove"):
        use(open_storage(f"file://{tmp_path}"))
    assert (tmp_path / "file").stat().st_size == HUGE


def test_a_huge_file_in_the_place_of_another_is_told_apart_without_reading_it(tmp_path: Path) -> None:
    make_huge(tmp_path / "file")
    storage = open_storage(f"file://{tmp_path}")
    assert not storage.holds("file", b"data")
    assert not storage.swap("file", b"new", seen=b"old")
    assert not storage.swap("file", b"new", seen=None)
    work = FileWork(dispatcher_id="one", chunks=(), data_path="file", index_path="index")
    (result,) = write_files([work], lambda _: [b"data"], StorageRef(f"file://{tmp_path}", {}), threads=1)
    assert "exists with other content" in result.error


def test_a_manifest_of_a_copy_is_not_read_above_its_limit(tmp_path: Path) -> None:
    make_huge(tmp_path / MANIFEST)
    with pytest.raises(Corrupt, match="has 1099511627776 bytes"):
        live_files(f"file://{tmp_path}")


@pytest.mark.parametrize("content", [NESTED, LONG, b'{"checkpoint-ts":' + LONG + b"}"])
def test_small_files_that_are_hard_to_parse_are_damaged(content: bytes) -> None:
    with pytest.raises(Corrupt):
        decode_checkpoint(content)
    with pytest.raises(Corrupt):
        number_in_index(b"CDC" + content + b".json\n", "index")
    with pytest.raises(Corrupt):
        SchemaFile.from_json(content)
    with pytest.raises(Corrupt):
        CopyManifest.decode(content, place="here")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ApiWorld]:
    accounts: dict[str, Any] = {"root": {"token": TOKENS["root"], "admin": True}}
    for account in ("ann", "bob"):
        accounts[account] = {"token": TOKENS[account], "targets": [f"file://{tmp_path}/{account}"]}
    with api_world(tmp_path, {"accounts": accounts, "requests_burst": 100_000}) as made:
        for account in ("ann", "bob"):
            made.world.db.create_account(account)
            made.world.db.create_database(f"of_{account}", account=account)
            made.world.db.create_table(f"of_{account}.items", [("id", "bigint primary key")])
            made.run(made.world.insert(f"of_{account}.items", {"id": 1}))
        yield made


@pytest.mark.parametrize("content", [None, NESTED, LONG])
def test_hostile_files_of_one_account_do_not_stop_the_changefeeds_of_another(
    world: ApiWorld, content: bytes | None
) -> None:
    for account in ("ann", "bob"):
        uri = f"file://{world.folder}/{account}/feed?protocol=canal-json&flush-interval=1s"
        feed = {"id": "feed", "sink_uri": uri, "tables": [f"of_{account}.*"], "start": "snapshot"}
        assert world.client(account).post(FEEDS, json=feed).status_code == 201
    settings, feeds = world.deployment.settings, world.deployment.feeds
    runner = ChangefeedRunner(settings, feeds, lambda order: LocalEngine(order.options.target), owner="here")
    files = {account: world.folder / account / "feed" / "metadata" for account in ("ann", "bob")}
    began = most = private_bytes()

    async def next_checkpoint(task: asyncio.Task[None], account: str) -> None:
        nonlocal most
        before = files[account].read_bytes() if files[account].exists() else b""
        while not files[account].exists() or files[account].read_bytes() == before:
            assert not task.done()
            most = max(most, private_bytes())
            await SYSTEM.sleep(0.01)

    async def run() -> None:
        task = asyncio.create_task(runner.run())
        try:
            async with asyncio.timeout(90):
                await next_checkpoint(task, "ann")
                files["ann"].unlink()
                if content is None:
                    make_huge(files["ann"], LARGE)
                else:
                    files["ann"].write_bytes(content)
                for _ in range(5):  # hers are read again meanwhile
                    await next_checkpoint(task, "bob")
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    world.run(run())
    assert world.client("bob").get(f"{FEEDS}/feed").json()["state"] == "normal"
    assert most - began < LARGE // 4
