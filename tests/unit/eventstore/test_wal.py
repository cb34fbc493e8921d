"""The write-ahead log: what was acknowledged is there, whatever happened to the tail."""

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain, repeat
from pathlib import Path

import pytest

from penstock.errors import Corrupt, Invalid, PenstockError, Unavailable
from penstock.eventstore import paths
from penstock.eventstore.log import frames
from penstock.eventstore.log import wal as wal_module
from penstock.eventstore.log.frames import Frame, FrameKind
from penstock.eventstore.log.segments import LogLocation
from penstock.eventstore.log.wal import Wal
from support.powerloss import Disk, everything_survives
from support.rawbatches import changes, put, raw

Open = Callable[..., tuple[Wal, list[tuple[Frame, LogLocation]]]]


@pytest.fixture
def open_wal(tmp_path: Path) -> Iterator[Open]:
    opened: list[Wal] = []

    def open_it(*, keep: bool = True, **options: object) -> tuple[Wal, list[tuple[Frame, LogLocation]]]:
        for each in opened:
            each.close()
        given: dict[str, object] = {
            "segment_bytes": 1 << 20,
            "queue_bytes": 1 << 20,
            "on_failure": failures.append,
        }
        wal = Wal(tmp_path, **(given | options))
        opened.append(wal)
        seen: list[tuple[Frame, LogLocation]] = []

        def replay(frame: Frame, place: LogLocation) -> None:
            seen.append((frame, place))
            if keep and frame.kind is FrameKind.ROWS:
                wal.keep(place, frame.table_id, 100)

        wal.start(replay)
        return wal, seen

    failures: list[PenstockError] = []
    yield open_it
    for each in opened:
        each.close()


def append(wal: Wal, table_id: int, ts: int, key: str = "k") -> LogLocation:
    """Append one row and wait until it is acknowledged."""
    done = threading.Event()
    place: list[LogLocation] = []

    def stored(at: LogLocation) -> None:
        place.append(at)
        done.set()

    wal.append(table_id, raw([put(ts, key)]), ts, stored)
    assert done.wait(10)
    return place[0]


def rows_of(seen: list[tuple[Frame, LogLocation]]) -> list[tuple[int, int]]:
    return [
        (frame.table_id, change[0])
        for frame, _ in seen
        if frame.kind is FrameKind.ROWS
        for change in changes(frames.decode_rows(frame))
    ]


def test_what_was_acknowledged_is_replayed_in_order(open_wal: Open) -> None:
    wal, seen = open_wal()
    assert seen == []
    for ts in (1, 2, 3):
        append(wal, ts % 2, ts)
    _, seen = open_wal()
    assert rows_of(seen) == [(1, 1), (0, 2), (1, 3)]


def test_a_row_is_read_again_where_it_was_stored_also_while_the_segment_grows(open_wal: Open) -> None:
    wal, _ = open_wal()
    places = [append(wal, 1, ts) for ts in (5, 6)]
    assert changes(wal.load(places[0])) == [put(5, "k")]
    places.append(append(wal, 1, 7))
    assert [changes(wal.load(place))[0][0] for place in places] == [5, 6, 7]


def test_resolved_timestamps_survive_and_are_carried_into_new_segments(
    open_wal: Open, tmp_path: Path
) -> None:
    wal, _ = open_wal(segment_bytes=400)
    wal.mark_resolved(1, 10)
    wal.mark_resolved(2, 20)
    for ts in range(1, 31):
        append(wal, 3, ts)
    wal.mark_flushed(3, 100)
    assert len(paths.wal_segments(tmp_path)) == 1
    wal, _ = open_wal()
    assert wal.resolved_by_table() == {1: 10, 2: 20}


def test_segments_roll_and_go_when_every_table_in_them_is_flushed(open_wal: Open, tmp_path: Path) -> None:
    wal, _ = open_wal(segment_bytes=1200)
    for ts in range(1, 21):
        append(wal, 1 + ts % 2, ts)
    before = len(paths.wal_segments(tmp_path))
    assert before > 3
    wal.mark_flushed(1, 20)
    assert len(paths.wal_segments(tmp_path)) == before
    wal.mark_flushed(2, 9)
    assert 1 < len(paths.wal_segments(tmp_path)) < before
    wal.mark_flushed(2, 20)
    assert len(paths.wal_segments(tmp_path)) == 1
    assert wal.disk_bytes == sum(path.stat().st_size for _, path in paths.wal_segments(tmp_path))


def test_rows_of_a_segment_that_has_gone_ask_for_a_new_plan(open_wal: Open) -> None:
    wal, _ = open_wal(segment_bytes=300)
    place = append(wal, 1, 1)
    append(wal, 2, 2)
    append(wal, 2, 3)
    wal.mark_flushed(1, 1)
    wal.mark_flushed(2, 2)
    with pytest.raises(Unavailable, match="flushed meanwhile"):
        wal.load(place)


def test_a_read_during_the_removal_of_its_segment_leaves_no_map_of_it(
    open_wal: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    wal, _ = open_wal(segment_bytes=300)
    place = append(wal, 1, 1)
    append(wal, 2, 2)
    unlink, reads = Path.unlink, list[str]()

    def read_first(path: Path, *, missing_ok: bool = False) -> None:
        with pytest.raises(Unavailable, match="flushed meanwhile") as caught:
            wal.load(place)
        reads.append(str(caught.value))
        unlink(path, missing_ok=missing_ok)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", read_first)
        wal.mark_flushed(1, 1)
    assert reads
    assert place.segment not in wal._maps


def test_segments_that_nobody_needs_after_a_restart_go(open_wal: Open, tmp_path: Path) -> None:
    wal, _ = open_wal(segment_bytes=300)
    for ts in range(1, 7):
        append(wal, 1, ts)
    open_wal(keep=False)
    assert len(paths.wal_segments(tmp_path)) == 1  # the new one


def test_a_forgotten_table_stays_forgotten_whatever_segments_remain(open_wal: Open, tmp_path: Path) -> None:
    wal, _ = open_wal(segment_bytes=300)
    wal.mark_resolved(1, 50)
    append(wal, 2, 1)  # keeps the first segment, and the mark in it
    for ts in range(10, 14):
        append(wal, 1, ts)
    wal.forget(1)
    append(wal, 3, 99)
    append(wal, 3, 100)
    wal.mark_flushed(3, 99)
    wal, _ = open_wal()
    assert 1 not in wal.resolved_by_table()


def test_the_log_outlives_a_table_forgotten_just_before_its_mark_is_written(
    open_wal: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wal_module, "_RESOLVED_EVERY_S", 0.1)
    enqueue, due = Wal._enqueue, threading.Event()

    def late(wal: Wal, item: wal_module._QueuedRecord) -> None:
        wal._thread.join(timeout=0.4)  # the mark is withdrawn; the time to write it passes
        enqueue(wal, item)

    wal, _ = open_wal()
    wait_for = wal._lock.wait_for

    def seen(work: Callable[[], object], timeout: float) -> object:
        due.set()
        return wait_for(work, timeout)

    with monkeypatch.context() as patched:
        patched.setattr(Wal, "_enqueue", late)
        patched.setattr(wal._lock, "wait_for", seen)
        forgetting = threading.Thread(target=wal.forget, args=(7,), daemon=True)
        wal.mark_resolved(7, 20)
        assert due.wait(10)
        forgetting.start()
        forgetting.join(timeout=5)
    assert not forgetting.is_alive()
    append(wal, 7, 30)


@pytest.mark.parametrize("cut", [1, 9, 30])
def test_a_torn_tail_is_cut_with_one_line(
    open_wal: Open, tmp_path: Path, cut: int, caplog: pytest.LogCaptureFixture
) -> None:
    wal, _ = open_wal()
    append(wal, 1, 1)
    append(wal, 1, 2)
    wal.close()
    path = paths.wal_segments(tmp_path)[-1][1]
    os.truncate(path, path.stat().st_size - cut)
    with caplog.at_level(logging.WARNING):
        wal, seen = open_wal()
    assert rows_of(seen) == [(1, 1)]
    assert [record.getMessage() for record in caplog.records] == ["torn end of the log cut off"]
    append(wal, 1, 3)
    _, seen = open_wal()
    assert rows_of(seen) == [(1, 1), (1, 3)]


def test_rows_replayed_after_a_kill_outlive_a_loss_of_power(open_wal: Open, tmp_path: Path) -> None:
    with Disk(tmp_path) as disk:
        wal, _ = open_wal()
        append(wal, 1, 1)
        disk.kill_at(0)
        wal.append(1, raw([put(2, "k")]), 2, lambda _: None)
        wal.close()  # the rows are in the file, and nobody has synced them
        disk.restart()
        wal, seen = open_wal()
        assert rows_of(seen) == [(1, 1), (1, 2)]
        wal.close()
        disk.lose_power()
        _, seen = open_wal()
        assert rows_of(seen) == [(1, 1), (1, 2)]


def test_a_torn_end_that_was_cut_off_does_not_come_back_with_the_power(
    open_wal: Open, tmp_path: Path
) -> None:
    with Disk(tmp_path) as disk:
        wal, _ = open_wal()
        place = append(wal, 1, 1)
        wal.close()
        with paths.wal_segment(tmp_path, place.segment).open("ab") as file:
            file.write(b"half of a group")
        disk.lose_power(everything_survives)
        open_wal()[0].close()
        disk.lose_power()
        _, seen = open_wal()
        assert rows_of(seen) == [(1, 1)]


def test_damage_before_a_later_group_is_corruption_not_a_torn_tail(open_wal: Open, tmp_path: Path) -> None:
    wal, _ = open_wal()
    place = append(wal, 1, 1)
    append(wal, 1, 2)
    wal.close()
    path = paths.wal_segments(tmp_path)[-1][1]
    _flip(path, place.offset + frames.FRAME_HEADER_BYTES + 20)
    with pytest.raises(Corrupt, match=f"damaged at offset {place.offset}"):
        open_wal()


def test_damage_in_a_sealed_segment_is_corruption(open_wal: Open, tmp_path: Path) -> None:
    wal, _ = open_wal(segment_bytes=300)
    places = [append(wal, 1, ts) for ts in range(1, 5)]
    wal.close()
    _flip(paths.wal_segment(tmp_path, places[0].segment), places[0].offset + 30)
    with pytest.raises(Corrupt, match="damaged"):
        open_wal()


def test_a_segment_whose_creation_was_cut_short_is_removed(open_wal: Open, tmp_path: Path) -> None:
    wal, _ = open_wal()
    append(wal, 1, 1)
    wal.close()
    for content in (b"", b"PENS"):
        number = paths.wal_segments(tmp_path)[-1][0] + 1
        paths.wal_segment(tmp_path, number).write_bytes(content)
        wal, seen = open_wal()
        assert rows_of(seen) == [(1, 1)]
        wal.close()


@pytest.mark.parametrize("syncs", range(5))
def test_a_segment_that_was_removed_for_its_header_does_not_come_back_beside_the_next(
    open_wal: Open, tmp_path: Path, syncs: int
) -> None:
    wal, _ = open_wal()
    place = append(wal, 1, 1)
    wal.close()
    paths.wal_segment(tmp_path, place.segment + 1).write_bytes(b"PENS")
    with Disk(tmp_path) as disk:
        disk.lose_power_at(syncs, chain([0.0], repeat(1.0)).__next__)  # the first name that changed is back
        with suppress(Invalid):
            open_wal()[0].close()
        disk.restart()
        _, seen = open_wal()
        assert rows_of(seen) == [(1, 1)]


def test_a_segment_goes_only_after_the_disk_says_what_goes_with_it(open_wal: Open, tmp_path: Path) -> None:
    with Disk(tmp_path) as disk:
        wal, _ = open_wal(segment_bytes=300)
        places = [append(wal, 1, ts) for ts in (1, 2)]
        assert places[0].segment < places[1].segment
        disk.kill_at(0)
        wal.mark_flushed(1, 1)
        assert paths.wal_segment(tmp_path, places[0].segment).exists()
        wal.close()
        disk.restart()
        wal, _ = open_wal(segment_bytes=300)
        place = append(wal, 1, 3)
        wal.mark_flushed(1, 3)
        disk.kill_at(1)  # the name of the next segment is synced, what it says is not
        wal.append(1, raw([put(4, "k")]), 4, lambda _: None)
        wal.close()
        assert paths.wal_segment(tmp_path, place.segment + 1).exists()
        assert paths.wal_segment(tmp_path, place.segment).exists()


def test_a_failed_sync_acknowledges_nothing_and_fails_the_log_for_good(open_wal: Open) -> None:
    broken = threading.Event()

    def sync(handle: int) -> None:
        if broken.is_set():
            raise OSError(5, "Input/output error")
        os.fdatasync(handle)

    failures: list[PenstockError] = []
    failed = threading.Event()

    def on_failure(error: PenstockError) -> None:
        failures.append(error)
        failed.set()

    wal, _ = open_wal(sync=sync, on_failure=on_failure)
    append(wal, 1, 1)
    broken.set()
    acknowledged: list[LogLocation] = []
    wal.append(1, raw([put(2, "k")]), 2, acknowledged.append)
    assert failed.wait(10)
    broken.clear()
    with pytest.raises(Unavailable, match="restart the capture"):
        wal.append(1, raw([put(3, "k")]), 3, acknowledged.append)
    with pytest.raises(Unavailable):
        wal.forget(1)
    assert acknowledged == []
    assert "Input/output error" in str(failures[0])


def test_a_full_queue_holds_the_writer_back_until_the_disk_is_done(open_wal: Open) -> None:
    go = threading.Semaphore(1)  # the segment's first group

    def sync(handle: int) -> None:
        assert go.acquire(timeout=10)

    wal, _ = open_wal(sync=sync, queue_bytes=1)
    acknowledged: list[int] = []
    sent: list[int] = []

    def send() -> None:
        for ts in range(1, 4):
            wal.append(1, raw([put(ts, "k")]), ts, lambda _: acknowledged.append(1))
            sent.append(ts)

    thread = threading.Thread(target=send)
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()
    assert len(sent) <= 1
    assert acknowledged == []
    go.release(50)
    thread.join(10)
    wal.close()
    assert len(acknowledged) == 3


def test_one_data_folder_serves_one_process(tmp_path: Path, open_wal: Open) -> None:
    open_wal()
    other = Wal(tmp_path, segment_bytes=1, queue_bytes=1, on_failure=lambda _: None)
    with pytest.raises(Invalid, match="another process"):
        other.start(lambda frame, place: None)
    other.close()


def test_many_writers_share_few_syncs(open_wal: Open) -> None:
    syncs: list[int] = []

    def sync(handle: int) -> None:
        syncs.append(handle)
        os.fdatasync(handle)

    wal, _ = open_wal(sync=sync)
    done = threading.Semaphore(0)
    batch = raw([put(1, "k")])
    for _ in range(2000):
        wal.append(1, batch, 1, lambda _: done.release())
    for _ in range(2000):
        assert done.acquire(timeout=10)
    assert len(syncs) < 1000


def _flip(path: Path, offset: int) -> None:
    with path.open("rb+") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 0xFF]))
