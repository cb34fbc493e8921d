"""Manifest: entries, folding, owners."""

from dataclasses import replace

import pytest

from penstock.errors import Corrupt, Fenced, Unavailable
from penstock.eventstore import manifest_log, paths
from penstock.eventstore.manifest import (
    ManifestEntry,
    ManifestState,
    ObjectInfo,
    Removal,
    read_entry,
    read_state,
    write_entry,
    write_state,
)
from penstock.eventstore.manifest_log import ManifestLog, load
from penstock.object_storage import ObjectStorage, open_storage

ROOT = "tables/7"


def an_object(name: str, ts: int = 10, **changes: object) -> ObjectInfo:
    info = ObjectInfo(
        id=name, side="data", kind="appendable", schema_version=1, create_ts=ts, min_ts=ts - 5, max_ts=ts,
        rows=3, size_bytes=100, key_min=b"\x00a", key_max=b"\xffz",
    )  # fmt: skip
    return replace(info, **changes)  # type: ignore[arg-type] # names are checked by replace itself


def an_entry(seq: int = 1, epoch: int = 1, **rest: object) -> ManifestEntry:
    return replace(ManifestEntry(seq=seq, epoch=epoch, writer="w", id=f"id-{seq}"), **rest)


@pytest.fixture
def storage() -> ObjectStorage:
    return open_storage("memory:///")


def test_an_entry_survives_writing_and_reading() -> None:
    entry = an_entry(
        add=(an_object("a"),), remove=(Removal(id="b", delete_ts=4),), flushed_ts=9, facts=({"kind": "x"},)
    )
    assert read_entry(write_entry(entry), path="p") == entry


def test_a_state_survives_a_checkpoint() -> None:
    state = ManifestState().apply(
        an_entry(add=(an_object("a", delete_ts=3),), flushed_ts=9, facts=({"kind": "x"},))
    )
    assert read_state(write_state(state), path="p") == state


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{", b'{"format":3}', b'{"format":2,"seq":1}',
     write_entry(an_entry(add=(an_object("a"),))).replace(b'"data"', b'"other"'),
     write_entry(an_entry(add=(an_object("a"),))).replace(b'"rows"', b'"lines"')],
)  # fmt: skip
def test_a_damaged_file_is_corrupt_and_named(data: bytes) -> None:
    with pytest.raises(Corrupt, match=r"some/path"):
        read_entry(data, path="some/path")


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (an_entry(seq=3), "is missing"),
        (an_entry(seq=2, epoch=1), "epoch"),
        (an_entry(seq=2, epoch=2, flushed_ts=5), "back"),
        (an_entry(seq=2, epoch=2, add=(an_object("a"),)), "second time"),
        (an_entry(seq=2, epoch=2, remove=(Removal(id="x", delete_ts=1),)), "not there"),
    ],
)
def test_an_entry_that_cannot_follow_is_corrupt(entry: ManifestEntry, why: str) -> None:
    state = ManifestState().apply(an_entry(epoch=2, flushed_ts=9, add=(an_object("a"),)))
    with pytest.raises(Corrupt, match=why):
        state.apply(entry)


def test_objects_are_visible_from_their_creation_until_their_removal() -> None:
    state = ManifestState().apply(an_entry(add=(an_object("b", 20), an_object("a", 10))))
    state = state.apply(an_entry(seq=2, remove=(Removal(id="a", delete_ts=30),)))
    assert [each.id for each in state.visible_objects("data", 9)] == []
    assert [each.id for each in state.visible_objects("data", 29)] == ["a", "b"]
    assert [each.id for each in state.visible_objects("data", 30)] == ["b"]
    assert state.visible_objects("tombstone", 30) == []


def test_the_log_reads_back_what_was_committed(storage: ObjectStorage) -> None:
    log = ManifestLog.open(storage, ROOT, writer="one")
    log.commit(add=[an_object("a")], flushed_ts=10)
    assert load(storage, ROOT) == log.state
    assert (log.state.seq, log.state.epoch, log.state.flushed_ts) == (2, 1, 10)


def test_a_second_owner_fences_the_first(storage: ObjectStorage) -> None:
    first = ManifestLog.open(storage, ROOT, writer="one")
    second = ManifestLog.open(storage, ROOT, writer="two")
    with pytest.raises(Fenced, match="owned by two since epoch 2"):
        first.commit(flushed_ts=5)
    second.commit(flushed_ts=6)
    assert load(storage, ROOT).flushed_ts == 6


def test_opening_again_after_doubt_keeps_ownership_but_never_takes_it_back(storage: ObjectStorage) -> None:
    first = ManifestLog.open(storage, ROOT, writer="one")
    again = ManifestLog.open(storage, ROOT, writer="one", after_epoch=first.epoch)
    assert again.epoch == 2
    ManifestLog.open(storage, ROOT, writer="two")
    with pytest.raises(Fenced):
        ManifestLog.open(storage, ROOT, writer="one", after_epoch=again.epoch)


def test_a_checkpoint_saves_reading_and_a_damaged_one_is_passed_over(
    storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest_log, "CHECKPOINT_ENTRIES", 4)
    log = ManifestLog.open(storage, ROOT, writer="one")
    for ts in range(1, 11):
        log.commit(add=[an_object(f"o{ts}", ts)], flushed_ts=ts)
    checkpoints = [name for name in storage.names(paths.manifest_folder(ROOT)) if "checkpoint" in name]
    assert [paths.checkpoint_seq(name) for name in checkpoints] == [4, 8]
    storage.delete(paths.manifest_entry(ROOT, 3))
    assert load(storage, ROOT) == log.state
    storage.write(checkpoints[-1], b"{}")
    assert load(storage, ROOT) == log.state
    storage.write(checkpoints[0], b"{}")
    with pytest.raises(Corrupt, match="checkpoint 8"):  # only now the hole shows
        load(storage, ROOT)


class _LosesAnswers(ObjectStorage):
    """Creates, then claims that it did not."""

    def create(self, path: str, data: bytes) -> bool:
        super().create(path, data)
        return False


def test_a_lost_answer_is_told_from_a_rival(storage: ObjectStorage) -> None:
    lossy = _LosesAnswers(storage.url, storage._store)
    log = ManifestLog.open(lossy, ROOT, writer="one")
    log.commit(flushed_ts=3)
    assert load(storage, ROOT) == log.state


def test_a_failed_checkpoint_does_not_fail_the_commit(
    storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest_log, "CHECKPOINT_ENTRIES", 2)
    log = ManifestLog.open(storage, ROOT, writer="one")

    def refuse(path: str, data: object) -> None:
        raise Unavailable("no")

    monkeypatch.setattr(storage, "write", refuse)
    for ts in range(1, 6):
        log.commit(flushed_ts=ts)
    assert load(storage, ROOT).flushed_ts == 5


def test_history_begins_where_a_load_or_the_cluster_begins_it() -> None:
    state = ManifestState().apply(an_entry(facts=({"kind": "begun", "ts": 7},)))
    assert state.oldest_ts == 7
    state = state.apply(an_entry(2, facts=({"kind": "load", "id": "x", "ts": 9},)))
    assert state.oldest_ts == 9
    assert state.apply(an_entry(3, facts=({"kind": "begun", "ts": 8},))).oldest_ts == 9
