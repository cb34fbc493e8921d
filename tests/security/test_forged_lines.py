"""Names are users' texts: none forges a line of the log, or moves the cursor of a terminal."""

import io
import json
import logging
from typing import Any

import pytest
from rich.console import Console

from penstock.cli import output
from penstock.cli.up.display import TerminalDisplay, mark_line
from penstock.control.part_states import PartKind, PartState, PartStatus
from penstock.process import JsonFormatter, TextFormatter, printable

FORGED = "2026-11-17T00:00:00.000+00:00 INFO    penstock.api: request account=sys status=200"
HOSTILE = f"x\n{FORGED}\r\x1b[2J\x1b]0;title\x07\x9b31m\x7f\u2028\u202egnp.exe\u2066"
RAW = "\n\r\x1b\x07\x9b\x7f\u2028\u202e\u2066"


def record(**more: Any) -> logging.LogRecord:
    return logging.makeLogRecord({"name": "penstock.x", "msg": "table %s", "args": (HOSTILE,), **more})


def test_a_text_log_has_one_line_for_an_event_whatever_its_names_are() -> None:
    line = TextFormatter().format(record(levelname="INFO", table=HOSTILE))
    assert not set(RAW) & set(line)
    assert line.splitlines() == [line]
    assert r"x\n2026" in line
    assert r"\x1b[2J" in line


def test_a_traceback_cannot_be_taken_for_lines_of_the_log() -> None:
    error = ValueError(HOSTILE)
    line = TextFormatter().format(record(exc_info=(ValueError, error, None)))
    first, *below = line.split("\n")
    assert below
    assert all(text.startswith("    ") for text in below)
    assert not any(text.startswith("2026") for text in below)
    assert not set(RAW.replace("\n", "")) & set(line)
    assert first.count("table x") == 1


def test_a_json_log_has_one_object_for_an_event() -> None:
    line = JsonFormatter().format(record(table=HOSTILE))
    assert line.isascii()
    assert line.isprintable()
    assert json.loads(line)["table"] == HOSTILE


@pytest.mark.parametrize(
    "show",
    [
        lambda: output.print_rows([{"job": HOSTILE, HOSTILE: "x"}]),
        lambda: output.print_facts({"job": HOSTILE, "of": [HOSTILE, {"a": HOSTILE}]}),
        lambda: output.print_search(
            {"rows": [{HOSTILE: HOSTILE}], "complete": True, "watermark_time": "t", "lag_s": 1.0}
        ),
    ],
    ids=["rows", "facts", "search"],
)
def test_answers_on_a_terminal_have_no_controls_of_names(
    show: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "Console", lambda: Console(force_terminal=False, width=400))
    show()
    printed = capsys.readouterr().out
    assert "x" in printed
    assert not set(RAW.replace("\n", "")) & set(printed)
    assert not any(line.strip().startswith("2026") for line in printed.splitlines())


def test_lines_and_errors_of_parts_have_no_controls() -> None:
    assert not set(RAW) & set(mark_line("jobs", HOSTILE, "text"))
    assert mark_line("jobs", "\tat org.apache.Spark", "text").endswith("\tat org.apache.Spark")
    shown = io.StringIO()
    part = PartStatus(name="jobs", kind=PartKind.JOBS, state=PartState.WAITING, error=HOSTILE)
    TerminalDisplay(Console(file=shown, width=400)).show_exit(part, 1.0, new_reason=True)
    assert not set(RAW) & set(shown.getvalue().rstrip("\n"))


def test_other_texts_stay_as_they_are() -> None:
    assert printable("a table 表 naïve 🙂\tx") == "a table 表 naïve 🙂\tx"
