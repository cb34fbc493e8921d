"""What `penstock up` says."""

import io
import json
import logging

import pytest
from rich.console import Console

from penstock.cli.up.display import LogDisplay, TerminalDisplay, mark_line
from penstock.control.part_states import PartKind, PartState, PartStatus, UpStates

STORE = PartStatus(name="store", kind=PartKind.STORE, state=PartState.RUNNING, pid=7, addr="127.0.0.1:2379")
API = PartStatus(name="api", kind=PartKind.API, state=PartState.RUNNING, pid=8, addr="http://127.0.0.1:8300")
FAILED = PartStatus(
    name="capture-1",
    kind=PartKind.CAPTURE,
    state=PartState.WAITING,
    error="bucket [x] is refused",
    restarts=1,
)
STATES = UpStates(1, (STORE, FAILED, API))


def on_a_terminal() -> tuple[TerminalDisplay, io.StringIO]:
    out = io.StringIO()
    return TerminalDisplay(Console(file=out, width=200, highlight=False)), out


def test_a_terminal_gets_a_line_for_each_part_and_the_addresses_at_the_end() -> None:
    display, out = on_a_terminal()
    display.show_starting(STATES)
    display.show_ready(STORE, 0.51)
    display.show_ready(API, 1)
    display.show_all_ready(STATES, ("127.0.0.1:2379",))
    lines = [line.split() for line in out.getvalue().splitlines() if line.strip()]
    assert lines[0] == ["starting", "store,", "capture-1,", "api"]
    assert lines[1] == ["✓", "store", "ready", "127.0.0.1:2379", "0.5", "s"]
    assert ["pages", "http://127.0.0.1:8300"] in lines
    assert ["placement", "driver", "127.0.0.1:2379"] in lines


def test_a_reason_is_told_once_and_as_it_is() -> None:
    display, out = on_a_terminal()
    display.show_exit(FAILED, 1, new_reason=True)
    display.show_exit(FAILED, 2, new_reason=False)
    assert out.getvalue().count("bucket [x] is refused") == 1


def test_elsewhere_it_logs_and_prints_one_line_of_json(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("penstock"), "propagate", True)
    caplog.set_level(logging.INFO, logger="penstock.up")
    display = LogDisplay(announce=True)
    display.show_starting(STATES)
    display.show_ready(STORE, 0.5)
    display.show_exit(FAILED, 1, new_reason=True)
    display.show_exit(FAILED, 2, new_reason=False)
    display.show_all_ready(STATES, ("127.0.0.1:2379",))
    display.show_stopping()
    display.show_kill(FAILED)
    display.show_stopped()
    assert [record.getMessage() for record in caplog.records] == [
        "starting",
        "part is ready",
        "part ended and will be restarted",
        "everything is ready",
        "stopping all parts",
        "part did not end in time and is killed",
        "all parts have stopped",
    ]
    assert json.loads(capsys.readouterr().out) == {
        "pd": ["127.0.0.1:2379"],
        "api": "http://127.0.0.1:8300",
        "parts": {"store": "127.0.0.1:2379", "capture-1": None, "api": "http://127.0.0.1:8300"},
    }


def test_lines_of_parts_carry_their_names() -> None:
    assert mark_line("store", "a line", "text") == "store       | a line"
    assert json.loads(mark_line("store", '{"level": "info"}', "json")) == {"part": "store", "level": "info"}
    assert json.loads(mark_line("store", 'not "JSON', "json")) == {"part": "store", "message": 'not "JSON'}
    assert json.loads(mark_line("store", "{}", "json")) == {"part": "store", "message": "{}"}
