"""Directories for scratch files, shared by processes that come and go."""

from pathlib import Path

import pytest

from penstock.errors import Invalid
from penstock.jobs.iteration.iteration_run import Scratch


def _left_by_a_dead_process(data: Path) -> Path:
    """What a process leaves that was killed: nobody holds its lock."""
    folder = data / "runner-dead"
    folder.mkdir(parents=True)
    (folder / "LOCK").touch()
    (folder / "spool").write_text("rows")
    return folder


def test_what_a_dead_process_left_is_removed(tmp_path: Path) -> None:
    dead = _left_by_a_dead_process(tmp_path / "jobs")
    scratch = Scratch(tmp_path / "jobs")
    scratch.open()
    assert not dead.exists()
    assert scratch.folder.is_dir()
    scratch.close()
    scratch.close()
    assert not list((tmp_path / "jobs").iterdir())


def test_a_process_that_lives_keeps_its_own(tmp_path: Path) -> None:
    first, second = Scratch(tmp_path), Scratch(tmp_path)
    first.open()
    (first.folder / "spool").write_text("rows")
    second.open()
    assert (first.folder / "spool").exists()
    assert first.folder != second.folder
    first.close()
    second.close()


def test_it_can_be_opened_again(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path)
    for _ in range(2):
        scratch.open()
        assert scratch.folder.is_dir()
        scratch.close()


def test_other_files_in_the_directory_stay(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    scratch = Scratch(tmp_path)
    scratch.open()
    scratch.close()
    assert (tmp_path / "notes").read_text() == "mine"


def test_a_directory_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    with pytest.raises(Invalid, match=r"check jobs\.data"):
        Scratch(tmp_path / "file" / "jobs").open()
