"""Small files that are replaced as a whole: the old one is there or the new one; what was answered stays."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from penstock.changefeeds.directory.progress import DirectoryProgress, StateFile
from penstock.clock import SYSTEM
from penstock.durable_files import make_folder, replace_file
from penstock.errors import Invalid
from penstock.eventstore.capture.capture import _data_id
from penstock.object_storage import StorageRef
from penstock.store.engine import Engine
from support.powerloss import Disk, Luck, everything_survives, nothing_survives

LUCK = pytest.mark.parametrize("luck", [nothing_survives, everything_survives])


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with Disk(tmp_path) as made:
        yield made


def test_a_folder_and_those_above_it_outlive_a_loss_of_power_whoever_made_them(
    disk: Disk, tmp_path: Path
) -> None:
    (tmp_path / "a").mkdir()  # by somebody who was killed before he could sync it
    make_folder(tmp_path / "a/b/c")
    disk.lose_power()
    assert (tmp_path / "a/b/c").is_dir()


def test_the_folder_of_the_store_outlives_a_loss_of_power(disk: Disk, tmp_path: Path) -> None:
    Engine.open(tmp_path / "data/store").close()
    disk.lose_power()
    assert (tmp_path / "data/store").is_dir()


@LUCK
def test_a_file_is_replaced_as_a_whole_whenever_the_power_goes(
    disk: Disk, tmp_path: Path, luck: Luck
) -> None:
    path = tmp_path / "state"
    replace_file(path, b"first")
    for syncs in count():
        disk.lose_power_at(syncs, luck)
        try:
            replace_file(path, b"the second")
        except OSError:
            disk.restart()
            assert path.read_bytes() in (b"first", b"the second")
        else:
            disk.restart()
            assert path.read_bytes() == b"the second"
            return


@LUCK
def test_a_capture_keeps_the_name_of_its_data_whenever_the_power_goes(
    disk: Disk, tmp_path: Path, luck: Luck
) -> None:
    for syncs in count():
        disk.lose_power_at(syncs, luck)
        try:
            name = _data_id(tmp_path / "data/capture", SYSTEM)
        except Invalid:
            disk.restart()
        else:
            disk.restart()
            assert name
            assert _data_id(tmp_path / "data/capture", SYSTEM) == name
            return


def test_what_a_consumer_has_saved_outlives_a_loss_of_power(disk: Disk, tmp_path: Path) -> None:
    state = StateFile(tmp_path / "state.json", StorageRef("s3://bucket/feed"))
    for ts in (5, 7):
        state.save(DirectoryProgress(ts))
        disk.lose_power()
        assert state.load() == DirectoryProgress(ts)
