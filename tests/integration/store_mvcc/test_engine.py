import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import Corrupt, Invalid, Unavailable
from penstock.store.engine import Cf, Engine, EngineView


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data"


async def test_a_write_is_there_after_reopening(path: Path) -> None:
    engine = Engine.open(path)
    await engine.write([(Cf.WRITE, b"k", b"v"), (Cf.META, b"m", b"1"), (Cf.LOCK, b"gone", b"x")])
    await engine.write([(Cf.LOCK, b"gone", None)])
    engine.close()
    engine.close()
    engine = Engine.open(path)
    view = engine.view()
    assert view.get(Cf.WRITE, b"k") == b"v"
    assert view.get(Cf.META, b"m") == b"1"
    assert view.get(Cf.LOCK, b"gone") is None
    assert view.get(Cf.DEFAULT, b"k") is None
    del view
    engine.close()


async def test_a_view_does_not_see_later_writes(path: Path) -> None:
    engine = Engine.open(path, sync=False)
    await engine.write([(Cf.WRITE, b"a", b"1")])
    view = engine.view()
    await engine.write([(Cf.WRITE, b"a", b"2"), (Cf.WRITE, b"b", b"2")])
    assert list(view.iterate(Cf.WRITE)) == [(b"a", b"1")]
    assert list(engine.view().iterate(Cf.WRITE)) == [(b"a", b"2"), (b"b", b"2")]
    engine.close()


async def test_ranges_are_half_open_both_ways(path: Path) -> None:
    engine = Engine.open(path, sync=False)
    await engine.write([(Cf.RAW, bytes([i]), b"") for i in range(256)])
    view = engine.view()
    for lower, upper in ((b"", b""), (b"\x05", b"\x09"), (b"\x05", b""), (b"", b"\x09"), (b"\xff", b"")):
        expected = [
            bytes([i]) for i in range(256) if bytes([i]) >= lower and (not upper or bytes([i]) < upper)
        ]
        assert [key for key, _ in view.iterate(Cf.RAW, lower, upper)] == expected
        assert [key for key, _ in view.iterate_reverse(Cf.RAW, lower, upper)] == expected[::-1]
    engine.close()


async def test_iterations_of_a_view_do_not_disturb_each_other(path: Path) -> None:
    engine = Engine.open(path, sync=False)
    await engine.write([(Cf.WRITE, bytes([i]), b"") for i in range(9)])
    view = engine.view()
    pairs = list(zip(view.iterate(Cf.WRITE), view.iterate_reverse(Cf.WRITE), strict=True))
    assert pairs == [((bytes([i]), b""), (bytes([8 - i]), b"")) for i in range(9)]
    running = [view.iterate(Cf.WRITE), view.iterate(Cf.WRITE)]
    assert [next(pairs) for pairs in running] == [(b"\0", b"")] * 2
    with pytest.raises(AssertionError, match="too many iterations"):
        next(view.iterate(Cf.WRITE))
    running.pop().close()
    assert next(view.iterate(Cf.WRITE)) == (b"\0", b"")
    engine.close()


@pytest.mark.parametrize("direction", ["iterate", "iterate_reverse"])
def test_a_read_error_is_not_taken_for_the_end(direction: str) -> None:
    class Broken:
        def seek(self, _: bytes) -> None: ...

        def seek_to_last(self) -> None: ...

        def valid(self) -> bool:
            return False

        def status(self) -> None:
            raise OSError("IO error: a block cannot be read")

    view = EngineView((), [(Cf.RAW, Broken())])
    with pytest.raises(OSError, match="cannot be read"):
        list(getattr(view, direction)(Cf.RAW))


async def test_a_view_is_one_moment_for_every_family(path: Path) -> None:
    engine = Engine.open(path, sync=False)

    async def write() -> None:
        for number in range(400):
            value = b"%d" % number
            await engine.write([(Cf.LOCK, b"k", value), (Cf.WRITE, b"k", value), (Cf.DEFAULT, b"k", value)])

    writing = asyncio.ensure_future(write())
    loop = asyncio.get_running_loop()

    def look() -> set[tuple[bytes | None, ...]]:
        seen = set()
        while not writing.done():
            view = engine.view()
            seen.add(tuple(view.get(cf, b"k") for cf in (Cf.LOCK, Cf.WRITE, Cf.DEFAULT)))
        return seen

    seen = await loop.run_in_executor(None, look)
    await writing
    assert len(seen) > 1
    assert all(len(set(values)) == 1 for values in seen)
    engine.close()


async def test_a_deleted_range_takes_what_was_written_before_and_spares_what_comes_after(path: Path) -> None:
    engine = Engine.open(path, sync=False)
    before = engine.submit([(Cf.RAW, b"b", b"1"), (Cf.RAW, b"\xff" * 40, b"1"), (Cf.RAW, b"a", b"1")])
    await engine.delete_range([(Cf.RAW, b"b", b"")])
    assert before.done()
    await engine.write([(Cf.RAW, b"c", b"2")])
    assert list(engine.view().iterate(Cf.RAW)) == [(b"a", b"1"), (b"c", b"2")]
    await engine.delete_range([(Cf.WRITE, b"", b"")])
    engine.close()


async def test_calls_are_answered_in_the_order_they_were_made(path: Path) -> None:
    engine = Engine.open(path, sync=False)
    done: list[int] = []
    futures = []
    for number in range(200):
        future = engine.submit([(Cf.RAW, b"k", b"%d" % number)])
        future.add_done_callback(lambda _, number=number: done.append(number))
        futures.append(future)
    await asyncio.gather(*futures)
    assert done == list(range(200))
    assert engine.view().get(Cf.RAW, b"k") == b"199"
    engine.close()


async def test_a_failed_group_fails_every_call_in_it_and_every_later_one(path: Path) -> None:
    engine = Engine.open(path, sync=False)
    await engine.write([(Cf.RAW, b"before", b"1")])
    with engine._writing:  # the writer cannot begin: all of these end in one group or right after it
        bad = engine.submit([(Cf.RAW, b"k", "no bytes")])
        good = [engine.submit([(Cf.RAW, b"k%d" % n, b"1")]) for n in range(3)]
    results = await asyncio.gather(bad, *good, return_exceptions=True)
    assert all(isinstance(result, Unavailable) for result in results)
    assert "check the disk" in str(results[0])
    with pytest.raises(Unavailable):
        await engine.write([(Cf.RAW, b"later", b"1")])
    assert list(engine.view().iterate(Cf.RAW)) == [(b"before", b"1")]
    engine.close()


async def test_a_write_whose_caller_went_away_is_still_applied(path: Path) -> None:
    engine = Engine.open(path, sync=False)
    with engine._writing:
        caller = asyncio.ensure_future(engine.write([(Cf.RAW, b"k", b"1")]))
        await asyncio.wait([caller], timeout=0.01)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
    await engine.write([])
    assert engine.view().get(Cf.RAW, b"k") == b"1"
    engine.close()


async def test_a_closed_engine_refuses_writes(path: Path) -> None:
    engine = Engine.open(path, sync=False)
    engine.close()
    with pytest.raises(Unavailable, match="closed"):
        await engine.write([(Cf.RAW, b"k", b"1")])


def test_what_was_written_is_there_when_it_is_opened_again(path: Path) -> None:
    engine = Engine.open(path)
    asyncio.run(engine.write([(Cf.META, b"k", b"1")]))
    engine.close()
    engine = Engine.open(path)
    assert engine.view().get(Cf.META, b"k") == b"1"
    engine.close()


def test_a_directory_in_use_is_refused(path: Path) -> None:
    engine = Engine.open(path)
    with pytest.raises(Invalid, match="in use by another process; stop it"):
        Engine.open(path)
    engine.close()


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_a_path_that_cannot_be_a_directory_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Invalid, match="choose another one"):
        Engine.open(tmp_path / name)


@pytest.mark.parametrize(
    ("reason", "error", "advice"),
    [
        ("Permission denied (os error 13)", Invalid, "is not writable; give this user the right"),
        ("IO error: while open a file for lock: /d/LOCK: Permission denied", Invalid, "is not writable"),
        ("IO error: While lock file: /d/LOCK: Resource temporarily unavailable", Invalid, "is in use"),
        ("IO error: lock hold by current process, acquire time 1", Invalid, "is in use"),
        ("Corruption: bad record", Corrupt, "is damaged .Corruption: bad record.; keep a copy"),
        ("Invalid argument: something new", Invalid, "cannot be opened .Invalid argument: something new."),
    ],
)
def test_each_reason_not_to_open_is_one_clear_line(
    reason: str, error: type[Exception], advice: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(reason)

    monkeypatch.setattr("penstock.store.engine.Rdict", refuse)
    with pytest.raises(error, match=advice) as caught:
        Engine.open(path)
    assert "\n" not in str(caught.value)


def test_damaged_files_are_reported_and_kept(path: Path) -> None:
    engine = Engine.open(path)
    asyncio.run(engine.write([(Cf.META, b"k", b"1")]))
    engine.close()
    (manifest,) = path.glob("MANIFEST-*")
    with manifest.open("r+b") as file:
        file.write(b"garbage" * 20)
    with pytest.raises(Corrupt, match="damaged"):
        Engine.open(path)
    assert manifest.exists()


_WRITER = """
import asyncio, os, sys
from pathlib import Path
from penstock.store.engine import Cf, Engine

async def main():
    engine = Engine.open(Path(sys.argv[1]))

    async def write(worker):
        number = 0
        while True:
            key = b"%d-%06d" % (worker, number)
            await engine.write([(Cf.WRITE, key, b"v" * 100), (Cf.LOCK, key, b"v" * 100)])
            os.write(1, key + b"\\n")
            number += 1

    await asyncio.gather(*(write(worker) for worker in range(8)))

asyncio.run(main())
"""


@pytest.mark.parametrize("lines", [1, 40, 400])
def test_everything_acknowledged_is_there_after_a_kill(path: Path, lines: int) -> None:
    child = subprocess.Popen([sys.executable, "-c", _WRITER, str(path)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    acknowledged = [child.stdout.readline() for _ in range(lines)]
    os.kill(child.pid, signal.SIGKILL)
    acknowledged += child.stdout.readlines()
    child.wait()
    child.stdout.close()
    engine = Engine.open(path)
    view = engine.view()
    for line in acknowledged:
        if line.endswith(b"\n"):
            assert view.get(Cf.WRITE, line.strip()) == b"v" * 100
    written = [key for key, _ in view.iterate(Cf.WRITE)]
    assert written == [key for key, _ in view.iterate(Cf.LOCK)]  # each call is there whole or not at all
    del view
    engine.close()
