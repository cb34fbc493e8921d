"""`penstock status` as people and scripts use it: what it says, and its exit codes."""

import asyncio
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from penstock.changefeeds.model import ChangefeedState
from penstock.cli import status
from penstock.clock import SYSTEM
from penstock.control.overview.locks import HoldingLock
from penstock.control.overview.model import Overview, RowsByEngine
from penstock.control.overview.overview import build_overview
from penstock.control.part_states import PartKind, PartState, PartStatus, UpStates
from penstock.jobs.job import JobState
from support.jobworld import JobWorld, job_world
from support.oddtables import add_description, put_description, tidb_like, with_type
from support.overviews import ago, facts, feed, job, part, spool, table

Run = Callable[..., tuple[int, str, str]]

COLUMNS = [("id", "bigint primary key"), ("title", "varchar(99)")]


def config_of(folder: Path, **settings: object) -> str:
    path = folder / "penstock.yaml"
    path.write_text(yaml.safe_dump({"up": {"data": str(folder / "up")}, **settings}))
    return str(path)


def free_addr() -> str:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"127.0.0.1:{taken.getsockname()[1]}"


async def said(world: JobWorld, run: Run, *arguments: str) -> tuple[int, Overview]:
    code, out, err = await world.do(run, "status", *arguments)
    assert err == ""
    return code, Overview.model_validate_json(out)


async def test_status_is_0_while_all_is_well_and_1_with_the_reason_when_it_is_not(
    tmp_path: Path, run: Run
) -> None:
    async with job_world(tmp_path) as world:
        config = config_of(tmp_path, pd_addrs=list(world.settings.pd_addrs))
        await world.create("shop.orders", COLUMNS)
        await world.readable("shop.orders")
        code, found = await said(world, run, "--config", config, "--json")
        assert (code, found.healthy, found.problems) == (0, True, [])
        assert [each.table for each in found.tables] == ["shop.orders"]
        assert (found.engine, found.engines) == ("spark", None), "no part shows metrics here"
        local = config_of(tmp_path, pd_addrs=list(world.settings.pd_addrs), engine="local")
        assert (await said(world, run, "--config", local, "--json"))[1].engine == "local"

        await world.create("shop.items", COLUMNS)
        await world.readable("shop.items")
        await world.register("shop.orders/copy", consumer="delta", options={"uri": "x"})
        code, found = await said(world, run, "--config", config, "--limit", "1")
        assert (code, found.healthy) == (1, False)
        assert [each.what for each in found.problems] == ["no_runner"]
        assert (len(found.tables), found.totals.tables) == (1, 2)


async def test_status_says_which_table_cannot_be_captured_since_when_and_why(
    tmp_path: Path, run: Run
) -> None:
    async with job_world(tmp_path) as world:
        config = config_of(tmp_path, pd_addrs=list(world.settings.pd_addrs))
        await world.create("shop.orders", COLUMNS)
        await world.create("shop.odd", COLUMNS)
        await world.do(put_description, world.client, "shop.odd", lambda tree: with_type(tree, "title"))
        await world.do(add_description, world.client, "shop.seen", tidb_like("view"))
        await world.readable("shop.orders")
        deadline = SYSTEM.monotonic() + 30
        while True:
            code, found = await said(world, run, "--config", config, "--json")
            if [each.what for each in found.problems] == ["table_uncapturable"]:
                break
            assert SYSTEM.monotonic() < deadline, found.problems
        assert code == 1
        assert {row.table: row.captured for row in found.tables} == {"shop.orders": True, "shop.odd": False}
        (refusal,) = (row.refusal for row in found.tables if row.refusal)
        assert refusal.reason == "column title: type 200 is unknown; upgrade Penstock to read this table"
        assert refusal.since_time
        console = Console(width=400, force_terminal=False)
        with console.capture() as shown:
            console.print(status.render_overview(found))
        assert "it cannot be captured since" in shown.get()


async def test_the_store_of_up_is_found_by_what_up_says(tmp_path: Path, run: Run) -> None:
    async with job_world(tmp_path) as world:
        (addr,) = world.settings.pd_addrs
        store = PartStatus(name="store", kind=PartKind.STORE, state=PartState.RUNNING, addr=addr)
        UpStates(os.getpid(), (store,)).write(tmp_path / "up")
        config = config_of(tmp_path, store={"pd_addr": "127.0.0.1:0"})
        code, found = await said(world, run, "--config", config)
        assert (code, [each.name for each in found.parts]) == (0, ["store", "a"])


def test_without_anything_there_status_is_2_with_one_line(tmp_path: Path, run: Run) -> None:
    began = SYSTEM.monotonic()
    code, out, err = run("status", "--config", config_of(tmp_path), "--pd", free_addr())
    assert (code, out) == (2, "")
    assert err.startswith("penstock: no placement driver answers")
    assert len(err.splitlines()) == 1
    assert SYSTEM.monotonic() - began < 5


def test_when_the_store_of_up_is_gone_its_parts_are_still_shown(tmp_path: Path, run: Run) -> None:
    gone = PartStatus(name="store", kind=PartKind.STORE, state=PartState.WAITING, restarts=4, error="killed")
    UpStates(os.getpid(), (gone,)).write(tmp_path / "up")
    config = config_of(tmp_path, pd_addrs=[free_addr()], engine="local")
    code, out, err = run("status", "--config", config, "--json")
    assert (code, err) == (1, "")
    found = json.loads(out)
    assert (found["engine"], found["engines"]) == ("local", None)
    assert [each["what"] for each in found["problems"]] == ["cluster_silent", "part_not_running"]
    assert [(each["name"], each["state"]) for each in found["parts"]] == [("store", "waiting")]


def test_a_wrong_setting_is_one_line_and_2(tmp_path: Path, run: Run) -> None:
    code, out, err = run("status", "--config", config_of(tmp_path, captures=3))
    assert (code, out) == (2, "")
    assert "unknown key 'captures'" in err


def rendered(found: Overview) -> str:
    console = Console(width=240, force_terminal=False)
    with console.capture() as captured:
        console.print(status.render_overview(found))
    return captured.get()


def test_on_a_terminal_there_are_the_flow_its_holders_and_what_to_do() -> None:
    held = facts(
        tables=(table("shop.orders", 40.0),),
        locks={7: HoldingLock(ago(40), 7, "0x74")},
        feeds=(
            feed("to-files", 3.0, spool=spool(0.9)),
            feed("bad", 1, state=ChangefeedState.FAILED, error="[red]x"),
        ),
        jobs=(job("shop.orders/find", 500, of=table(changed_s=9), state=JobState.ERROR, error_code=10_000),),
        parts=(part(), part("jobs", PartKind.JOBS, state=PartState.WAITING, error="killed")),
    )
    shown = rendered(build_overview(held))
    assert "commit → capture 40.0 s → store 40.0 s → changefeeds 3.0 s → jobs 500.0 s" in shown
    assert f"capture is held by lock {ago(40)}: a transaction that began 40.0 s ago" in shown
    assert "90% of 100 MiB" in shown
    assert "[red]x" in shown
    assert "commit or roll back that transaction" in shown
    assert "`penstock changefeed resume bad`" in shown
    assert "4 problems" in shown
    assert "1 h 0 min" in shown
    assert "last ended by" in shown
    assert "restarts" not in shown


def test_on_a_terminal_it_says_who_works_on_rows() -> None:
    local = facts(engine="local", engines=RowsByEngine(local=1_200))
    assert "engine local; rows on Spark 0, local 1,200" in rendered(build_overview(local))
    shown = rendered(
        build_overview(
            facts(
                parts=(part("changefeeds", PartKind.CHANGEFEEDS),),
                starting_spark=frozenset({"changefeeds"}),
            )
        )
    )
    assert "engine spark\n" in shown
    assert "starting Spark" in shown


def test_on_a_terminal_lists_that_are_cut_off_say_so_and_an_empty_deployment_is_well() -> None:
    many = facts(tables=tuple(table(f"shop.t{each}", 0.1, id=each) for each in range(30)))
    assert "and 28 more" in rendered(build_overview(many, limit=2))
    empty = rendered(build_overview(facts()))
    assert "no tables" in empty
    assert "no problems" in empty


async def test_watching_goes_on_until_it_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    async with job_world(tmp_path) as world:
        config = config_of(tmp_path, pd_addrs=list(world.settings.pd_addrs))
        await world.create("shop.orders", COLUMNS)
        await world.readable("shop.orders")
        pauses: list[float] = []

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 2:
                raise KeyboardInterrupt

        monkeypatch.setattr(status, "SYSTEM", _Paused(pause))
        code, out, err = await asyncio.wait_for(world.do(run, "status", "--config", config, "--watch"), 30)
        assert (code, err) == (0, "")
        assert "shop.orders" in out
        assert len(pauses) == 2


class _Paused:
    def __init__(self, pause: Callable[[float], None]) -> None:
        self.pause = pause
