import threading
from collections.abc import Iterable
from dataclasses import replace
from itertools import count

import pytest

from penstock.changefeeds.engines.engine import Chunk, FileWork, WriteResult
from penstock.changefeeds.engines.files import write_files
from penstock.errors import Unavailable
from penstock.follow.slices import Position
from penstock.object_storage import ObjectStorage, StorageRef

TARGETS = count()
CHUNK = Chunk(0, 0, Position(1), Position(2), 1, 1)


@pytest.fixture
def target() -> StorageRef:
    return StorageRef(f"memory:///files-{next(TARGETS)}")


def work(number: int = 1, header: bytes = b"") -> FileWork:
    folder = "shop/items/5"
    return FileWork(
        dispatcher_id="1",
        chunks=(CHUNK,),
        data_path=f"{folder}/CDC{number:06}.json",
        index_path=f"{folder}/meta/CDC{number}.index",
        header=header,
    )


def payloads(file: FileWork) -> Iterable[bytes]:
    yield file.data_path.encode()
    yield b"!"


def test_data_is_written_and_then_named_by_the_index(target: StorageRef) -> None:
    found = write_files([work(1, b"head "), work(2)], payloads, target, threads=4)
    assert found == [
        WriteResult("shop/items/5/CDC000001.json", 33),
        WriteResult("shop/items/5/CDC000002.json", 28),
    ]
    storage = target.open()
    assert storage.read("shop/items/5/CDC000001.json") == b"head shop/items/5/CDC000001.json!"
    assert storage.read("shop/items/5/meta/CDC1.index") == b"CDC000001.json\n"


def test_the_same_file_again_is_fine_and_another_is_refused(target: StorageRef) -> None:
    first = write_files([work()], payloads, target, threads=1)
    assert write_files([work()], payloads, target, threads=1) == first
    (other,) = write_files([work()], lambda _: [b"secret"], target, threads=1)
    assert "exists with other content" in other.error
    assert "secret" not in other.error
    assert "\n" not in other.error
    assert target.open().read(work().data_path) == work().data_path.encode() + b"!"


def test_a_file_that_is_written_again_may_be_there_from_a_writer_that_could_not_be_stopped(
    target: StorageRef,
) -> None:
    target.open().create(work().data_path, b"the same changes, a moment earlier")
    (found,) = write_files([replace(work(), again=True)], payloads, target, threads=1)
    assert found.error == ""
    assert target.open().read(work().data_path) == b"the same changes, a moment earlier"
    assert target.open().read(work().index_path) == b"CDC000001.json\n"


def test_an_index_that_fails_is_written_by_the_next_attempt(
    target: StorageRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: ObjectStorage, path: str, data: bytes, *, is_older: object) -> None:
        raise Unavailable("cannot write\nthe index; try again")

    with monkeypatch.context() as patch:
        patch.setattr(ObjectStorage, "advance", fail)
        (found,) = write_files([work()], payloads, target, threads=1)
    assert found == WriteResult(work().data_path, 0, "cannot write the index; try again")
    assert target.open().read(work().index_path) is None
    assert write_files([work()], payloads, target, threads=1)[0].error == ""
    assert target.open().read(work().index_path) == b"CDC000001.json\n"


def test_a_writer_that_comes_late_does_not_take_the_index_back(target: StorageRef) -> None:
    late, newer = (replace(work(number), index_path="shop/items/5/meta/CDC.index") for number in (9, 10))
    write_files([newer], payloads, target, threads=1)
    assert write_files([late], payloads, target, threads=1)[0].error == ""
    assert target.open().read(newer.index_path) == b"CDC000010.json\n"
    target.open().write(newer.index_path, b"damaged")
    write_files([newer], payloads, target, threads=1)
    assert target.open().read(newer.index_path) == b"CDC000010.json\n"


def test_a_file_whose_data_fails_has_no_index_and_stops_no_other(
    target: StorageRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = ObjectStorage.create

    def fail(self: ObjectStorage, path: str, data: bytes) -> bool:
        if "000002" in path:
            raise Unavailable("no")
        return real(self, path, data)

    monkeypatch.setattr(ObjectStorage, "create", fail)
    found = write_files([work(1), work(2), work(3)], payloads, target, threads=2)
    assert [each.error for each in found] == ["", "no", ""]
    assert target.open().read(work(2).index_path) is None


def test_payloads_that_cannot_be_had_again_are_lost_for_good_and_stop_no_other(target: StorageRef) -> None:
    def lose(file: FileWork) -> Iterable[bytes]:
        if file.data_path == work(2).data_path:
            raise Unavailable("table 5 is not captured here; ask its owner")
        return payloads(file)

    found = write_files([work(1), work(2)], lose, target, threads=2)
    assert [(each.error, each.final) for each in found] == [
        ("", False),
        ("table 5 is not captured here; ask its owner", True),
    ]


def test_files_are_written_at_once(target: StorageRef) -> None:
    together = threading.Barrier(3, timeout=20)

    def meet(file: FileWork) -> Iterable[bytes]:
        together.wait()
        return payloads(file)

    assert all(not each.error for each in write_files([work(n) for n in range(3)], meet, target, threads=3))


def test_nothing_to_write_is_nothing(target: StorageRef) -> None:
    assert write_files([], payloads, target, threads=2) == []
