"""A log and a manifest of different moments, perhaps: what the log says of itself, and what it is worth."""

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.eventstore import paths
from penstock.eventstore.capture.store import EventStore
from penstock.eventstore.log import frames
from penstock.eventstore.log.frames import FrameKind
from penstock.eventstore.log.rows import commit_bounds
from penstock.eventstore.log.segments import Fit, LogCover, Retention, read_segment
from penstock.eventstore.log.wal import Wal
from penstock.object_storage import ObjectStorage, open_storage
from penstock.settings import CaptureSettings
from penstock.tables.decoding.decoder import TidbRowDecoder
from support.events import FixedSchemas, a_table, change
from support.rawbatches import put, raw

NOW = 1 << 58
TABLE = a_table()


@pytest.mark.parametrize(
    ("cut_ts", "resolved_ts", "flushed_ts", "fit"),
    [
        (0, 0, 0, Fit.ENDS),  # nothing anywhere
        (0, 9, 0, Fit.JOINS),  # nothing flushed yet
        (5, 9, 5, Fit.JOINS),  # what was cut off is in objects
        (5, 9, 7, Fit.JOINS),
        (5, 9, 9, Fit.ENDS),  # everything is flushed
        (5, 9, 12, Fit.ENDS),  # by somebody else, or the log is an older copy
        (5, 9, 4, Fit.GAP),  # storage is an older copy
        (5, 9, 0, Fit.GAP),  # storage was emptied
        (5, 0, 4, Fit.ENDS),  # forgotten: nothing counts that it says of cuts
    ],
)
def test_a_log_goes_on_from_a_manifest_only_without_a_gap(
    cut_ts: int, resolved_ts: int, flushed_ts: int, fit: Fit
) -> None:
    assert LogCover(cut_ts, resolved_ts).fit_to(flushed_ts) is fit


def test_what_goes_with_a_segment_is_cut_and_nothing_else() -> None:
    kept = Retention()
    kept.begin(1)
    kept.add(1, 7, 10)
    kept.add(1, 8, 20)
    assert kept.mark_flushed(7, 15) == []  # it is the segment that is written
    assert kept.begin(2) == []
    kept.add(2, 7, 30)
    assert kept.cut == {}
    assert kept.mark_flushed(8, 25) == [1]
    assert kept.cut == {7: 10, 8: 20}
    assert kept.forget(8) == []
    assert kept.cut == {7: 10}


def append(wal: Wal, table_id: int, ts: int) -> None:
    done = threading.Event()
    wal.append(table_id, raw([put(ts, "k")]), ts, lambda _: done.set())
    assert done.wait(10)


def cover(folder: Path) -> tuple[int, int]:
    """What a log says of table 1 when it is opened."""
    wal = Wal(folder, segment_bytes=300, queue_bytes=1 << 20, on_failure=print)
    wal.start(lambda frame, place: wal.keep(place, frame.table_id, 100))
    found = wal.cover(1)
    wal.close()
    return found.cut_ts, found.resolved_ts


def test_the_disk_says_what_is_cut_off_before_it_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a kill between the two leaves, no changes are missing that the log says it has."""
    removals: list[tuple[set[int], Path]] = []
    remove = Wal._remove

    def copied(wal: Wal, segments: list[int]) -> None:
        if segments:
            copy = tmp_path / f"copy-{len(removals)}"
            shutil.copytree(tmp_path / "wal", copy)
            removals.append((set(segments), copy))
        remove(wal, segments)

    with monkeypatch.context() as patched:
        patched.setattr(Wal, "_remove", copied)
        wal = Wal(tmp_path / "wal", segment_bytes=300, queue_bytes=1 << 20, on_failure=print)
        wal.start(lambda frame, place: None)
        wal.begin(1, 1)
        for ts in range(2, 8):
            append(wal, 1, ts)
            wal.mark_resolved(1, ts)
            wal.mark_flushed(1, ts - 1)
        wal.close()
    newest = [0]
    for segments, copy in removals:
        for path in (paths.wal_segment(copy, number) for number in segments):
            found = read_segment(path, int(path.stem), last=False)
            assert found is not None
            rows = [frames.decode_rows(each) for each in found[0] if each.kind is FrameKind.ROWS]
            newest += [commit_bounds(each)[1] for each in rows]
            path.unlink()
        assert max(newest) <= cover(copy)[0]
    assert max(newest) == 6


def test_a_log_says_where_it_begins_before_it_says_how_far_it_is(tmp_path: Path) -> None:
    wal = Wal(tmp_path, segment_bytes=1 << 20, queue_bytes=1 << 20, on_failure=print)
    wal.start(lambda frame, place: None)
    wal.begin(1, 50)
    wal.mark_resolved(1, 60)
    wal.close()
    assert cover(tmp_path) == (50, 60)
    wal = Wal(tmp_path, segment_bytes=1 << 20, queue_bytes=1 << 20, on_failure=print)
    wal.start(lambda frame, place: None)
    wal.forget(1)
    wal.close()
    assert cover(tmp_path) == (0, 0)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[[], EventStore]]:
    stores: list[EventStore] = []

    def open_it() -> EventStore:
        for each in stores:
            each.close(flush=False)
        settings = CaptureSettings(
            data=tmp_path / "data",
            flush_interval_s=3600,
            idle_flush_interval_s=10**9,
            wal_segment_bytes=1024,
        )
        storage: ObjectStorage = open_storage(f"file://{tmp_path}/events")
        made = EventStore(settings, storage, decoder=TidbRowDecoder(), schemas=FixedSchemas.of(TABLE))
        stores.append(made)
        made.start()
        return made

    yield open_it
    for each in stores:
        each.close(flush=False)


def test_a_gap_is_pulled_again_however_often_the_capture_is_killed_before_it_was(
    opened: Callable[[], EventStore], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def write(first: int, last: int) -> None:
        rows = store.open_table(1)
        for ts in range(first, last):
            done = threading.Event()
            rows.consume_kv_events(raw([change(TABLE, NOW + ts, {"id": ts, "name": "x" * 60})]), done.set)
            assert done.wait(10)
            rows.advance_resolved_ts(NOW + ts)
            assert store.flush(1)

    store = opened()
    write(1, 3)
    store.close(flush=False)
    shutil.copytree(tmp_path / "events", tmp_path / "backup")
    store = opened()
    write(3, 12)
    store.close(flush=False)
    shutil.rmtree(tmp_path / "events")
    shutil.copytree(tmp_path / "backup", tmp_path / "events")
    for _ in range(3):  # nothing is pulled before the next start
        assert opened().open_table(1).resolved_ts == NOW + 2
    told = [each for each in caplog.records if each.getMessage().startswith("storage is older than the log")]
    assert [(vars(each)["from_ts"], vars(each)["to_ts"] > NOW + 2) for each in told] == [(NOW + 2, True)]
