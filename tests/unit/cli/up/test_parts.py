"""Which parts settings tell of, and what each is told."""

from pathlib import Path
from typing import Any

import pytest

from penstock.cli.up.parts import address_of, move_folders, parts_of, with_address
from penstock.cli.up.supervision import Rank
from penstock.control.part_states import PartKind
from penstock.errors import Invalid
from penstock.settings import Settings, parse


def names(tree: dict[str, Any]) -> list[str]:
    return [part.name for part in parts_of(parse(tree))]


def test_by_default_everything_runs_once() -> None:
    assert names({}) == ["store", "capture-1", "changefeeds", "jobs", "api"]
    assert [part.rank for part in parts_of(Settings())] == [Rank.STORE, Rank.CAPTURE, *[Rank.REST] * 3]


def test_parts_can_be_left_out() -> None:
    assert names({"up": {"changefeeds": False, "jobs": False, "api": False}}) == ["store", "capture-1"]


@pytest.mark.parametrize(
    ("pd_addrs", "pd_addr", "embedded"),
    [
        (["127.0.0.1:2379"], "127.0.0.1:2379", True),
        (["localhost:2379"], "127.0.0.1:2379", True),
        (["http://127.0.0.1:2379/"], "127.0.0.1:2379", True),
        (["pd1:2379", "pd2:2379"], "127.0.0.1:2379", False),
        (["127.0.0.1:2380"], "127.0.0.1:2379", False),
        (["127.0.0.1:2379"], "127.0.0.1:0", True),
        (["127.0.0.1:0"], "127.0.0.1:0", True),
        (["pd1:2379"], "127.0.0.1:0", False),
    ],
)
def test_the_store_runs_when_it_is_the_cluster(pd_addrs: list[str], pd_addr: str, embedded: bool) -> None:
    assert ("store" in names({"pd_addrs": pd_addrs, "store": {"pd_addr": pd_addr}})) == embedded


def test_what_is_no_address_is_refused() -> None:
    with pytest.raises(Invalid, match="'nonsense' is not host:port"):
        parts_of(parse({"pd_addrs": ["nonsense"]}))


def test_a_single_capture_is_as_the_settings_say() -> None:
    (capture,) = (part for part in parts_of(Settings()) if part.kind is PartKind.CAPTURE)
    assert capture.settings.capture == Settings().capture


def test_several_captures_share_nothing() -> None:
    tree = {
        "capture": {
            "id": "east",
            "data": "d",
            "flight_addr": "10.0.0.1:8815",
            "flight_advertise_addr": "h:1",
        },
        "up": {"captures": 3},
    }
    captures = [part.settings.capture for part in parts_of(parse(tree)) if part.kind is PartKind.CAPTURE]
    assert [each.id for each in captures] == ["east-1", "east-2", "east-3"]
    assert [each.data for each in captures] == [Path("d/capture-1"), Path("d/capture-2"), Path("d/capture-3")]
    assert {each.flight_addr for each in captures} == {"10.0.0.1:0"}
    assert {each.flight_advertise_addr for each in captures} == {"h:0"}
    assert names(tree)[1:4] == ["capture-1", "capture-2", "capture-3"]


def test_each_part_shows_metrics_on_a_free_port_and_the_api_as_it_is_told() -> None:
    parts = parts_of(Settings(metrics_addr="0.0.0.0:9100"))
    shown = {part.name: part.settings.metrics_addr for part in parts}
    assert shown.pop("api") == "0.0.0.0:9100"
    assert set(shown.values()) == {"127.0.0.1:0"}


def test_the_port_that_the_store_got_is_kept_and_told_to_everybody() -> None:
    free = parse({"store": {"pd_addr": "127.0.0.1:0"}})
    told = with_address(free, PartKind.STORE, "127.0.0.1:4321")
    assert told.store.pd_addr == "127.0.0.1:4321"
    assert told.pd_addrs == ("127.0.0.1:4321",)
    assert with_address(told, PartKind.STORE, "127.0.0.1:4321") == told
    assert [part.name for part in parts_of(told)] == [part.name for part in parts_of(free)]
    named = parse({"store": {"pd_addr": "127.0.0.1:0"}, "pd_addrs": ["127.0.0.1:0", "b:1"]})
    assert with_address(named, PartKind.STORE, "127.0.0.1:4321").pd_addrs == ("127.0.0.1:4321", "b:1")


def test_a_store_with_a_port_of_its_own_changes_nothing() -> None:
    assert with_address(Settings(), PartKind.STORE, "127.0.0.1:2379") == Settings()
    assert with_address(Settings(), PartKind.CAPTURE, "127.0.0.1:8815") == Settings()


def test_the_api_comes_back_on_the_port_that_it_got() -> None:
    free = parse({"api": {"addr": "127.0.0.1:0"}})
    assert with_address(free, PartKind.API, "http://127.0.0.1:4000").api.addr == "127.0.0.1:4000"
    assert with_address(Settings(), PartKind.API, "http://127.0.0.1:8300") == Settings()


def test_addresses_are_where_each_kind_says_them() -> None:
    assert address_of(PartKind.STORE, {"pd": "a:1", "stores": {}}) == "a:1"
    assert address_of(PartKind.CAPTURE, {"flight": "a:1"}) == "a:1"
    assert address_of(PartKind.API, {"api": "http://a:1"}) == "http://a:1"
    assert address_of(PartKind.JOBS, {"runner": "x"}) is None
    assert address_of(PartKind.STORE, {"pd": 1}) is None


def test_folders_that_nobody_chose_move_and_chosen_ones_stay(tmp_path: Path) -> None:
    folder = tmp_path / "a b"
    moved = move_folders(Settings(), folder)
    assert moved.store.data == folder / "store"
    assert moved.capture.data == folder / "capture"
    assert moved.capture.storage == f"file://{tmp_path}/a%20b/events"
    assert moved.jobs.data == folder / "jobs"
    assert moved.up.data == folder / "up"
    assert moved.secrets_dir == folder / "secrets"
    tree = {
        "store": {"data": "s"},
        "capture": {"data": "c", "storage": "s3://b/p"},
        "jobs": {"data": "j"},
        "up": {"data": "u"},
        "secrets_dir": "t",
    }
    chosen = parse(tree)
    assert move_folders(chosen, folder) == chosen
