"""What a demonstration shows while it runs and in its end."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from penstock.cli.demo.command import judge_report
from penstock.cli.demo.display import (
    DemoProgress,
    DemoVerified,
    LiveShow,
    Pace,
    PlainShow,
    Report,
    StageProgress,
    choose_show,
    format_lag,
    print_report,
)
from penstock.cli.demo.scene import DemoAnswer, DemoPlace, demo_folder, make_scene, measure_places
from penstock.control.verify import TargetReport
from penstock.errors import Invalid
from penstock.testing.clock import ManualClock

STAGE = StageProgress("delta table", 10, 1_500, 800, 2_000)


def console(*, terminal: bool = False) -> tuple[Console, io.StringIO]:
    written = io.StringIO()
    return Console(file=written, force_terminal=terminal, width=200), written


def progress(elapsed_s: float) -> DemoProgress:
    return DemoProgress(elapsed_s, 1_234, 56.0, 7, [STAGE])


def report(*verified: DemoVerified) -> Report:
    return Report(
        seconds=10,
        rows=1_000,
        first_rows=200,
        commits=100,
        stages=[StageProgress("readable", 1_000, 0, 300, 700), STAGE],
        places=[DemoPlace("delta table", 3, 4_096)],
        search_words="copper kettle",
        answers=[DemoAnswer("full-text index", [{"id": 1, "name": "[kettle]", "_score": 1.5}], 0.4)],
        schema_changes=["table shop.reviews created"],
        verified=verified,
    )


def test_elsewhere_than_on_a_terminal_a_line_comes_every_few_seconds() -> None:
    out, written = console()
    clock = ManualClock()
    with PlainShow(out, clock) as show:
        show.announce("it begins [here]")
        for _ in range(12):
            clock.advance(1)
            show.update(progress(clock.monotonic()))
    lines = written.getvalue().splitlines()
    assert lines[0] == "it begins [here]"
    assert len(lines) == 3
    assert "1,234 rows written (56/s), 7 files; behind: delta table 1.5 s" in lines[1]


def test_a_terminal_gets_a_table_that_changes_in_its_place() -> None:
    out, written = console(terminal=True)
    show = choose_show(out, ManualClock())
    assert isinstance(show, LiveShow)
    with show:
        show.announce("it begins")
        show.update(progress(3))
    assert "delta table" in written.getvalue()
    assert isinstance(choose_show(console()[0], ManualClock()), PlainShow)


def test_the_pace_is_that_of_the_last_seconds() -> None:
    pace = Pace()
    found = [pace.per_s(rows, at) for at, rows in enumerate([0, 100, 200, 300, 300, 300, 300, 300])]
    assert found[1] == 100
    assert found[-1] == 0


def test_the_end_says_what_every_target_came_to() -> None:
    out, written = console()
    print_report(report(DemoVerified("delta table", same=True, rows=42)), out)
    text = written.getvalue()
    for part in ("1,000 in 100 transactions", "80, over 10 s", "equal: 42", "4.0 KiB", "[kettle]", "700 ms"):
        assert part in text
    assert "all 1 targets equal their source" in text


def test_a_difference_is_told_and_is_no_success() -> None:
    out, written = console()
    found = report(
        DemoVerified("delta table", same=False, rows=42, differs="1 missing"),
        DemoVerified("x", same=True, rows=1),
    )
    print_report(found, out)
    assert not found.all_equal
    assert "differs: 1 missing" in written.getvalue()
    assert "differs from its source: delta table" in written.getvalue()
    assert not report().all_equal


def test_a_comparison_that_could_not_be_made_is_a_difference() -> None:
    found = judge_report("parquet files", TargetReport("changefeed:x", error="nobody answers"))
    assert (found.same, found.differs) == (False, "nobody answers")


@pytest.mark.parametrize(("ms", "text"), [(None, "-"), (0, "0 ms"), (999, "999 ms"), (61_000, "61.0 s")])
def test_durations(ms: int | None, text: str) -> None:
    assert format_lag(ms) == text


def test_a_folder_that_is_given_stays_and_must_be_empty(tmp_path: Path) -> None:
    with demo_folder(tmp_path / "a" / "b") as folder:
        (folder / "kept").write_text("")
    assert (tmp_path / "a" / "b" / "kept").exists()
    with pytest.raises(Invalid, match="is not empty"), demo_folder(tmp_path / "a" / "b"):
        pass
    with pytest.raises(Invalid, match="cannot be used"), demo_folder(tmp_path / "a" / "b" / "kept" / "c"):
        pass


def test_a_folder_of_its_own_is_removed() -> None:
    with demo_folder(None) as folder:
        (folder / "gone").write_text("")
    assert not folder.exists()


def test_everything_is_below_the_folder_and_on_free_ports_of_loopback(tmp_path: Path) -> None:
    scene = make_scene(tmp_path)
    settings = scene.settings
    addrs = {settings.store.pd_addr, settings.capture.flight_addr, settings.api.addr, *settings.pd_addrs}
    assert addrs == {"127.0.0.1:0"}
    folders = [settings.store.data, settings.capture.data, settings.jobs.data, settings.up.data]
    assert all(
        each.is_relative_to(tmp_path) for each in [*folders, scene.events, scene.changes, scene.targets]
    )
    (scene.events / "deep").mkdir(parents=True)
    (scene.events / "deep" / "object").write_bytes(b"12345")
    assert measure_places(scene)[0] == DemoPlace("event store", 1, 5)
