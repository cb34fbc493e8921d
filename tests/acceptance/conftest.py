"""The command line in this process, because most of a command's time is Python's start."""

import sys
from collections.abc import Callable

import pytest

from penstock.cli.main import main

Run = Callable[..., tuple[int, str, str]]
"""Gives exit code, standard output and standard error of a command."""


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["penstock", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        assert isinstance(ended.value.code, int)
        return ended.value.code, *capsys.readouterr()

    return run
