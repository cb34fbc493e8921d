"""Storage: the same promises for every kind."""

import fcntl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from penstock import object_storage
from penstock.errors import Denied, Invalid, Unavailable
from penstock.object_storage import ObjectStorage, open_storage
from penstock.testing.clock import ManualClock
from support.powerloss import Disk


@pytest.fixture(params=["file", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStorage:
    return open_storage(f"file://{tmp_path}/root" if request.param == "file" else "memory:///")


def test_folders_are_those_right_below(storage: ObjectStorage) -> None:
    for path in ("a/b/c/1", "a/b/2", "a/d/3", "a/4", "ab/5"):
        storage.write(path, b"")
    assert storage.folders("a") == ["b", "d"]
    assert storage.folders("none") == []


def test_an_object_is_created_once_and_keeps_its_first_content(storage: ObjectStorage) -> None:
    assert storage.create("a/b", b"one")
    assert not storage.create("a/b", b"two")
    assert storage.read("a/b") == b"one"


def test_writing_replaces_and_takes_local_files(storage: ObjectStorage, tmp_path: Path) -> None:
    storage.write("a", b"one")
    local = tmp_path / "local"
    local.write_bytes(b"two" * 1000)
    storage.write("a", local)
    assert storage.read("a") == b"two" * 1000
    with storage.open("a") as file:
        file.seek(3)
        assert file.read(3) == b"two"


def test_names_come_in_order_and_after_a_given_one(storage: ObjectStorage) -> None:
    for name in ("f/2", "f/1", "f/3", "g/1"):
        storage.write(name, b"")
    assert storage.names("f/") == ["f/1", "f/2", "f/3"]
    assert storage.names("f/", after="f/1") == ["f/2", "f/3"]
    assert storage.names("nothing/") == []


def test_what_is_not_there_reads_as_none_and_deletes_in_silence(storage: ObjectStorage) -> None:
    assert storage.read("x") is None
    storage.delete("x")
    storage.write("x", b"1")
    storage.delete("x")
    assert storage.read("x") is None
    with pytest.raises(Unavailable, match="object x does not exist at"):
        storage.open("x")


def test_a_swap_needs_the_content_that_was_seen(storage: ObjectStorage) -> None:
    assert storage.swap("a/m", b"one", seen=None)
    assert not storage.swap("a/m", b"two", seen=None)
    assert not storage.swap("a/m", b"two", seen=b"other")
    assert storage.read("a/m") == b"one"
    assert storage.swap("a/m", b"two", seen=b"one")
    assert not storage.swap("a/m", b"three", seen=b"one")
    assert storage.read("a/m") == b"two"
    assert not storage.swap("a/gone", b"x", seen=b"was there")
    assert not storage.exists("a/gone")


def test_of_racing_swaps_one_wins_each_time(storage: ObjectStorage) -> None:
    storage.write("m", b"0")
    won: list[int] = []

    def race(me: int) -> None:
        for _ in range(20):
            seen = storage.read("m")
            assert seen is not None
            count = int(seen.split(b" ")[0])
            longer_or_shorter = b"." * (count * 7 % 11)
            if storage.swap("m", b"%d by %d%b" % (count + 1, me, longer_or_shorter), seen=seen):
                won.append(count + 1)

    racers = [threading.Thread(target=race, args=(me,)) for me in range(4)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert sorted(won) == list(range(1, len(won) + 1))
    assert (storage.read("m") or b"").startswith(b"%d by" % len(won))


def is_less_than(number: int) -> Callable[[bytes], bool]:
    return lambda content: int(content) < number


def test_an_object_that_advances_never_goes_back(storage: ObjectStorage) -> None:
    storage.advance("a/m", b"5", is_older=is_less_than(5))
    assert storage.read("a/m") == b"5"
    for late in (4, 5, 1):
        storage.advance("a/m", b"%d" % late, is_older=is_less_than(late))
        assert storage.read("a/m") == b"5"
    storage.advance("a/m", b"12", is_older=is_less_than(12))
    assert storage.read("a/m") == b"12"


def test_of_racing_advances_the_newest_stays(storage: ObjectStorage) -> None:
    seen: list[int] = []

    def race(me: int) -> None:
        for number in range(me, 60, 4):
            storage.advance("m", b"%d" % number, is_older=is_less_than(number))
            now = int(storage.read("m") or b"-1")
            assert now >= number
            if me == 0:
                seen.append(now)

    racers = [threading.Thread(target=race, args=(me,)) for me in range(4)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert storage.read("m") == b"59"
    assert seen == sorted(seen)


def test_a_swap_does_not_wait_for_ever_for_a_process_that_stands_still(tmp_path: Path) -> None:
    storage = open_storage(f"file://{tmp_path}", clock=ManualClock())
    storage.write("m", b"0")
    with (tmp_path / "staging/lock").open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(Unavailable, match=r"cannot replace m at .* another process holds its lock"):
            storage.swap("m", b"1", seen=b"0")
    assert storage.swap("m", b"1", seen=b"0")


def test_a_local_write_leaves_nothing_staged(tmp_path: Path) -> None:
    storage = open_storage(f"file://{tmp_path}/with%20space")
    storage.create("a", b"1")
    storage.create("a", b"2")
    storage.write("b", b"3")
    assert list((tmp_path / "with space" / "staging").iterdir()) == []


def test_an_object_that_was_made_by_somebody_killed_outlives_the_power_once_it_was_met(
    tmp_path: Path,
) -> None:
    storage = open_storage(f"file://{tmp_path}/root")
    storage.write("f/other", b"0")
    with Disk(tmp_path) as disk:
        disk.kill_at(1)  # its content is synced, its name is not
        with pytest.raises(Unavailable):
            storage.create("f/a", b"1")
        disk.restart()
        assert not storage.create("f/a", b"2")
        disk.lose_power()
        assert storage.read("f/a") == b"1"


def test_an_object_that_was_deleted_by_somebody_killed_stays_away_once_it_was_missed(tmp_path: Path) -> None:
    storage = open_storage(f"file://{tmp_path}/root")
    storage.write("f/a", b"1")
    with Disk(tmp_path) as disk:
        disk.kill_at(0)
        with pytest.raises(Unavailable):
            storage.delete("f/a")
        disk.restart()
        storage.delete("f/a")
        disk.lose_power()
        assert storage.read("f/a") is None


@pytest.mark.parametrize("url", ["ftp://host/x", "nothing", "file:///proc/nowhere/x"])
def test_a_url_that_cannot_work_is_refused_with_a_remedy(url: str) -> None:
    with pytest.raises(Invalid, match=r"use one of|check the directory"):
        open_storage(url)


def test_storage_that_does_not_answer_is_unavailable() -> None:
    storage = open_storage(
        "s3://bucket",
        {
            "endpoint": "http://127.0.0.1:1",
            "allow_http": "true",
            "access_key_id": "a",
            "secret_access_key": "secret-b",
        },
    )
    with pytest.raises(Unavailable, match="cannot read") as caught:
        storage.read("x")
    assert "secret-b" not in str(caught.value)


class _Forbidding(BaseHTTPRequestHandler):
    """An S3 server that knows nobody."""

    def _refuse(self) -> None:
        self.send_response(403)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_HEAD = do_PUT = _refuse  # noqa: N815 - what the base class calls

    def log_message(self, *_: object) -> None:
        pass


def test_credentials_that_storage_refuses_are_told_from_a_call_that_is_wrong() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Forbidding) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        options = {
            "endpoint": f"http://127.0.0.1:{server.server_port}",
            "allow_http": "true",
            "access_key_id": "a",
            "secret_access_key": "b",
        }
        storage = open_storage("s3://lake/x", options)
        calls = (
            lambda: storage.exists("a"),
            lambda: storage.read("a"),
            lambda: storage.write("a", b""),
            lambda: storage.create("a", b""),
        )
        for call in calls:
            with pytest.raises(Denied, match="check its credentials"):
                call()
        with pytest.raises(Unavailable, match="403"):  # of a listing, obstore does not tell what it was
            storage.names("a")
        server.shutdown()


class _SlowWhenLarge(BaseHTTPRequestHandler):
    """An S3 server that answers a put of much only when it is told to."""

    answers = threading.Event()

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if len(body) > 10:
            self.answers.wait(60)
        self.send_response(200)
        self.send_header("ETag", '"e"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_a_put_that_hangs_is_given_up_by_a_deadline_that_its_bytes_give_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(object_storage, "REQUEST_S", 0.2)
    monkeypatch.setattr(object_storage, "_QUICK_BYTES", 10)
    monkeypatch.setattr(object_storage, "_SLOWEST_BYTES_PER_S", 100)
    with ThreadingHTTPServer(("127.0.0.1", 0), _SlowWhenLarge) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        storage = open_storage(
            "s3://lake/x",
            {
                "endpoint": f"http://127.0.0.1:{server.server_port}",
                "allow_http": "true",
                "access_key_id": "a",
                "secret_access_key": "b",
            },
        )
        try:
            assert storage.create("small", b"few")
            with pytest.raises(Unavailable, match="create large"):
                storage.create("large", b"many more bytes")
            assert not _SlowWhenLarge.answers.is_set()
        finally:
            _SlowWhenLarge.answers.set()
        monkeypatch.setattr(object_storage, "REQUEST_S", 60.0)
        assert storage.create("large", b"many more bytes"), "it has as long as the slowest line takes"
        server.shutdown()


def test_larger_puts_have_more_time() -> None:
    mib = 1024 * 1024
    assert [object_storage.put_timeout_s(size * mib) for size in (0, 8, 16, 60, 64, 65)] == [
        30,
        30,
        34,
        58,
        58,
        90,
    ]
