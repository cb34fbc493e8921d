"""What consumers are told of a changefeed's checkpoint, and what people see when they cannot be told."""

import pytest

from penstock.changefeeds.model import ChangefeedState
from penstock.errors import Invalid, Unavailable
from penstock.follow.slices import Position
from support.ddlevents import table_schema

A, B = table_schema(1), table_schema(2)


class Refusing:
    """Lets nobody write the checkpoint for as long as `refuses`."""

    def __init__(self, error: Exception | None = None) -> None:
        self.refuses = True
        self.error = error or Unavailable("metadata cannot be written")
        self.count = 0

    def __call__(self, name: str) -> None:
        if name == "tell" and self.refuses:
            self.count += 1
            raise self.error


async def test_consumers_are_told_nothing_that_is_not_kept(world) -> None:
    w = world(A)
    early = []
    write = w.remote.write_checkpoint

    def told(ts: int) -> None:
        if ts > w.progress.checkpoints[-1]:
            early.append(ts)
        write(ts)

    w.remote.write_checkpoint = told
    w.source.put(1, 20)
    w.source.advance(30)
    w.start()
    await w.reached(30)
    w.sink.write = False
    w.source.put(1, 35)
    w.source.advance(40)
    await w.until(lambda: "dml 1 30..40" in w.log)
    await w.pause()  # which writes it
    assert w.remote.checkpoints[-1] == 40
    w.source.advance(50)
    w.start(target_ts=50)
    await w.task
    assert w.remote.checkpoints[-1] == 50
    assert not early


async def test_a_checkpoint_that_is_not_kept_is_told_to_nobody(world) -> None:
    w = world(A)
    w.source.advance(30)

    def fault(name: str) -> None:
        if name == "keep_checkpoint":
            raise OSError("no database")

    w.progress.fault = fault
    w.give_up_s = 0.0
    w.start()
    with pytest.raises(OSError, match="no database"):
        await w.task
    assert w.remote.checkpoints == []


async def test_the_checkpoint_does_not_pass_what_consumers_can_be_told(world) -> None:
    w = world(A)
    refusing = Refusing()
    w.sink_options = {"fault": refusing}
    w.source.advance(20)
    w.start()
    await w.until(lambda: refusing.count > 0)
    kept = w.progress.checkpoints[-1]
    states = set()

    def tried_again() -> float:
        """Time goes on meanwhile."""
        states.add((w.feed.state, w.feed.error))
        w.source.advance(w.source.resolved_ts + 10)
        w.source.put(1, w.source.resolved_ts - 5)
        return 0.5

    w.clock.random = tried_again
    with pytest.raises(Unavailable, match="metadata cannot be written"):
        await w.task
    assert w.feed.state is ChangefeedState.FAILED
    assert "metadata cannot be written" in w.feed.error
    assert {state for state, _ in states} == {ChangefeedState.WARNING}
    assert w.progress.checkpoints[-1] == kept, "people are not told more than consumers"
    assert w.feed.checkpoint_ts == kept
    assert len(w.sinks) < 60, "each try waits longer than the one before"
    assert 1800 <= w.clock.now < 2000


async def test_one_that_could_not_tell_goes_on_once_it_can(world) -> None:
    w = world(A, B)
    refusing = Refusing()
    w.sink_options = {"fault": refusing}
    w.source.advance(20)
    w.start()
    await w.until(lambda: refusing.count > 2)
    assert w.feed.state is ChangefeedState.WARNING
    refusing.refuses = False
    w.source.put(1, 25)
    w.source.advance(40)
    await w.reached(40)
    await w.settle()
    assert w.remote.checkpoints[-1] == 40
    assert w.feed.state is ChangefeedState.NORMAL
    assert w.rows() == [(1, 25, b"row")]


async def test_a_pause_keeps_no_more_than_consumers_can_be_told(world, monkeypatch) -> None:
    w = world(A)
    refusing = Refusing()
    w.sink_options = {"fault": refusing}
    monkeypatch.setattr(w.remote, "write_checkpoint", lambda _: refusing("tell"))
    w.source.advance(20)
    w.start()
    await w.until(lambda: refusing.count > 0)
    kept = w.progress.checkpoints[-1]
    for _ in range(3):
        await w.pause()
        w.source.advance(w.source.resolved_ts + 10)
        w.start()
        sinks = len(w.sinks)
        await w.until(lambda: len(w.sinks) > sinks)  # noqa: B023 - awaited at once
    await w.pause()
    assert w.progress.checkpoints[-1] == kept


async def test_one_that_starts_again_tells_what_was_kept_before_it_keeps_more(world) -> None:
    w = world(A)
    w.source.advance(50)
    w.start()
    await w.reached(50)
    await w.kill()
    w.source.advance(60)
    w.sink_options = {"fault": Refusing(Invalid("a policy forbids it"))}
    w.start()
    with pytest.raises(Invalid, match="a policy forbids it"):
        await w.task
    assert w.progress.checkpoints[-1] == 50


async def test_files_of_a_snapshot_are_progress_before_there_is_anything_to_tell(world) -> None:
    w = world(A, begin=Position(10, b""))
    w.source.put(1, 5, *(b"%03d" % each for each in range(4)))
    w.source.advance(50)
    refusing = Refusing()
    w.sink_options = {"fault": refusing}
    w.start()
    await w.until(lambda: len(w.rows()) == 4)
    assert (w.feed.state, refusing.count, w.remote.checkpoints) == (ChangefeedState.NORMAL, 0, [])
