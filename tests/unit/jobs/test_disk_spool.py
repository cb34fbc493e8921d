"""Pieces on disk."""

import threading
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.columnar.spill_queue import SpillQueue
from penstock.jobs.iteration.ordering import ConsumerBatch, mark_last
from support.jobdoubles import until


def _piece(number: int, rows: int = 3, *, last: bool = False) -> ConsumerBatch:
    inserts = pa.record_batch({"id": pa.array([number] * rows), "text": pa.array([f"t{number}"] * rows)})
    return ConsumerBatch(inserts, pa.record_batch({"id": pa.array([number])}), last)


def _number(piece: ConsumerBatch | None) -> int:
    assert piece is not None
    return int(piece.deletes.column("id")[0].as_py())


def test_pieces_come_back_as_they_were_in_order(tmp_path: Path) -> None:
    spool = SpillQueue(tmp_path / "spool", ConsumerBatch._make)
    given = [_piece(1), _piece(2, rows=0), _piece(3, last=True)]
    for each in given:
        spool.append(each)
    for each in given:
        taken = spool.take()
        assert taken is not None
        assert taken.inserts.equals(each.inserts)
        assert taken.deletes.equals(each.deletes)
        assert taken.last == each.last
    assert spool.take() is None
    assert spool.empty


def test_a_slice_is_kept_without_the_rest_of_its_batch(tmp_path: Path) -> None:
    spool = SpillQueue(tmp_path / "spool", ConsumerBatch._make)
    numbers = pa.record_batch({"id": pa.array(range(1_000_000))})
    spool.append(ConsumerBatch(numbers.slice(10, 2), numbers.slice(0, 0)))
    assert spool.nbytes < 10_000
    taken = spool.take()
    assert taken is not None
    assert taken.inserts.column("id").to_pylist() == [10, 11]


def test_what_was_read_is_given_back_while_more_is_written(tmp_path: Path) -> None:
    spool = SpillQueue(tmp_path / "spool", ConsumerBatch._make, segment_bytes=2000)
    sizes = []
    for number in range(200):
        spool.append(_piece(number))
        assert _number(spool.take()) == number
        sizes.append(spool.nbytes)
    assert max(sizes) < 6000
    assert len(list((tmp_path / "spool").iterdir())) <= 2


def test_closing_gives_the_disk_back_and_keeps_nothing_more(tmp_path: Path) -> None:
    spool = SpillQueue(tmp_path / "spool", ConsumerBatch._make, segment_bytes=1000)
    for number in range(20):
        spool.append(_piece(number))
    spool.close()
    spool.close()
    spool.append(_piece(99))
    assert spool.take() is None
    assert spool.nbytes == 0
    assert not list((tmp_path / "spool").iterdir())


def test_one_thread_writes_while_another_reads(tmp_path: Path) -> None:
    spool = SpillQueue(tmp_path / "spool", ConsumerBatch._make, segment_bytes=5000)
    found: list[int] = []

    def read() -> None:
        while len(found) < 300:
            piece = spool.take()
            if piece is not None:
                found.append(_number(piece))

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(300):
        spool.append(_piece(number))
    until(lambda: not reader.is_alive())
    assert found == list(range(300))


def test_a_disk_that_fails_says_so(tmp_path: Path) -> None:
    (tmp_path / "spool").write_text("no directory")
    with pytest.raises(OSError, match="exists"):
        SpillQueue(tmp_path / "spool", ConsumerBatch._make).append(_piece(1))


def test_the_last_piece_says_that_it_is() -> None:
    nothing = _piece(0, rows=0)
    assert [piece.last for piece in mark_last([_piece(1), _piece(2)], nothing)] == [False, True]
    (only,) = mark_last([], nothing)
    assert only.last
    assert only.inserts.num_rows == 0
