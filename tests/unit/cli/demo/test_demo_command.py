"""`penstock demo` as a command: its exit code, and what becomes of the parts' words."""

import sys
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from penstock.cli import main
from penstock.cli.demo import command
from penstock.errors import Unavailable


@pytest.mark.parametrize(("good", "code"), [(True, 0), (False, 1)])
def test_a_target_that_differs_makes_the_exit_code_1(
    good: bool, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, object]] = []

    def run(**options: object) -> bool:
        asked.append(options)
        return good

    monkeypatch.setattr(command, "run", run)
    done = CliRunner().invoke(main.app, ["demo", "--seconds", "3", "--keep"])
    assert done.exit_code == code
    assert asked == [{"seconds": 3.0, "keep": True, "data": None}]


def test_what_parts_say_is_shown_when_it_fails(tmp_path: Path) -> None:
    console = Console(record=True, width=100)

    def fail() -> None:
        sys.stderr.write("capture-1 | [the disk] is full\n")
        raise Unavailable("it did not work")

    with pytest.raises(Unavailable), command._log_parts(tmp_path / "parts.log", console):
        fail()
    assert "capture-1 | [the disk] is full" in console.export_text()


def test_what_parts_say_is_kept_in_a_file_when_it_works(tmp_path: Path) -> None:
    console = Console(record=True, width=100)
    with command._log_parts(tmp_path / "parts.log", console):
        sys.stderr.write("jobs | a warning\n")
    assert console.export_text() == ""
    assert (tmp_path / "parts.log").read_text() == "jobs | a warning\n"
