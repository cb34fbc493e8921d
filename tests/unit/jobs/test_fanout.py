"""One reader and consumers of different speeds."""

import threading
from collections import deque
from collections.abc import Callable, Hashable

import pytest
from prometheus_client import REGISTRY

from penstock.clock import SYSTEM
from penstock.errors import Aborted, PenstockError, Unavailable
from penstock.jobs.error_codes import CutOff
from penstock.jobs.iteration.fan_out import FanOut, SpoolTotals
from support.jobdoubles import until


class ListSpool:
    """A disk that is a list: each piece is as many bytes as it is."""

    def __init__(self, fault: Callable[[], None] = lambda: None) -> None:
        self.pieces: deque[int] = deque()
        self.kept: list[int] = []
        self.closed = False
        self.fault = fault

    @property
    def nbytes(self) -> int:
        return sum(self.pieces)

    @property
    def empty(self) -> bool:
        return not self.pieces

    def append(self, piece: int) -> None:
        self.fault()
        self.pieces.append(piece)
        self.kept.append(piece)

    def take(self) -> int | None:
        self.fault()
        return self.pieces.popleft() if self.pieces else None

    def close(self) -> None:
        self.closed = True
        self.pieces.clear()


class Taps:
    """A fan-out whose consumers are asked by hand, each in a thread of its own."""

    def __init__(
        self, *names: str, patience_s: float = 0.0, spool_bytes: int = 10**9, batches_max: int = 2
    ) -> None:
        self.spools: dict[Hashable, ListSpool] = {}
        self.fault: Callable[[], None] = lambda: None
        self.fan: FanOut[int] = FanOut(
            names,
            batches_max=batches_max,
            patience_s=patience_s,
            spool_bytes=spool_bytes,
            open_spool=self._spool,
        )
        self.taken: dict[str, list[int]] = {name: [] for name in names}
        self.ended: dict[str, BaseException | None] = {}
        self.reading: threading.Thread | None = None

    def _spool(self, name: Hashable) -> ListSpool:
        self.spools[name] = ListSpool(self._fail)
        return self.spools[name]

    def _fail(self) -> None:
        self.fault()

    def read(self, pieces: int) -> None:
        """Give numbers in a thread, then the end."""

        def work() -> None:
            if all(self.fan.give(number) for number in range(1, pieces + 1)):
                self.fan.end()

        self.reading = threading.Thread(target=work)
        self.reading.start()

    def drain(self, *names: str) -> None:
        """Take everything, each consumer in a thread of its own; `ended` says how that ended."""

        def work(name: str) -> None:
            try:
                while (piece := self.fan.take(name)) is not None:
                    self.taken[name].append(piece)
                self.ended[name] = None
            except PenstockError as error:
                self.ended[name] = error

        for name in names:
            threading.Thread(target=work, args=(name,)).start()

    @property
    def done(self) -> bool:
        return self.reading is not None and not self.reading.is_alive()


def test_everyone_gets_everything_in_order() -> None:
    taps = Taps("a", "b", "c")
    taps.drain("a", "b", "c")
    taps.read(100)
    until(lambda: len(taps.ended) == 3)
    assert all(taken == list(range(1, 101)) for taken in taps.taken.values())


def test_a_lone_consumer_holds_the_reader_back_and_needs_no_disk() -> None:
    taps = Taps("a")
    taps.read(10)
    until(lambda: len(taps.fan._queues["a"].batches) == 2)
    assert not taps.done
    taps.drain("a")
    until(lambda: "a" in taps.ended)
    assert taps.taken["a"] == list(range(1, 11))
    assert not taps.spools


def test_consumers_that_are_equally_slow_need_no_disk() -> None:
    taps = Taps("a", "b")
    taps.read(10)
    until(lambda: all(len(queue.batches) == 2 for queue in taps.fan._queues.values()))
    assert not taps.spools
    taps.drain("a", "b")
    until(lambda: len(taps.ended) == 2)


def test_a_slow_consumer_holds_others_back_by_the_bound_then_goes_on_from_disk() -> None:
    taps = Taps("quick", "slow")
    taps.drain("quick")
    taps.read(50)
    until(lambda: "quick" in taps.ended)
    assert taps.taken["quick"] == list(range(1, 51))
    assert taps.spools["slow"].kept == list(range(1, 51))  # nothing of it stays in memory
    assert not taps.fan._queues["slow"].batches
    taps.drain("slow")
    until(lambda: "slow" in taps.ended)
    assert taps.taken["slow"] == list(range(1, 51))


def test_others_wait_for_a_slow_consumer_for_a_while() -> None:
    taps = Taps("quick", "slow", patience_s=60.0)
    taps.drain("quick")
    taps.read(3)
    until(lambda: len(taps.taken["quick"]) == 2)
    assert not taps.spools
    taps.drain("slow")
    until(lambda: len(taps.ended) == 2)
    assert taps.taken["slow"] == [1, 2, 3]
    assert not taps.spools


def test_the_waits_for_a_consumer_add_up() -> None:
    taps = Taps("quick", "slow", patience_s=0.05, batches_max=1)
    taps.drain("quick")
    taps.read(400)
    taken = 0
    while "slow" not in taps.spools:  # it takes one piece at a time, each just in time
        before = SYSTEM.monotonic()
        until(lambda: bool(taps.fan._queues["slow"].batches) or "slow" in taps.spools)
        SYSTEM.pause(max(0.0, 0.01 - (SYSTEM.monotonic() - before)))
        if "slow" not in taps.spools:
            taken += 1
            assert taps.fan.take("slow") == taken
    assert taken < 100
    until(lambda: "quick" in taps.ended)


def test_who_has_caught_up_is_attached_again() -> None:
    taps = Taps("quick", "slow")
    taps.drain("quick")
    for number in (1, 2, 3):
        taps.fan.give(number)
    assert taps.spools["slow"].kept == [1, 2, 3]
    assert [taps.fan.take("slow") for _ in range(3)] == [1, 2, 3]
    taps.fan.give(4)
    assert taps.spools["slow"].closed
    assert list(taps.fan._queues["slow"].batches) == [4]
    taps.fan.give(5)
    taps.fan.give(6)
    assert taps.spools["slow"].kept == [4, 5, 6]  # its time was used up before
    taps.fan.end()
    taps.drain("slow")
    until(lambda: len(taps.ended) == 2)
    assert taps.taken == {"quick": [1, 2, 3, 4, 5, 6], "slow": [4, 5, 6]}


def test_a_spool_that_grows_too_large_cuts_its_consumer_off_alone() -> None:
    before = REGISTRY.get_sample_value("penstock_jobs_cut_off_total") or 0.0
    taps = Taps("quick", "slow", spool_bytes=100)
    taps.drain("quick")
    taps.read(50)
    until(lambda: "quick" in taps.ended)
    assert taps.ended["quick"] is None
    with pytest.raises(CutOff, match=r"jobs\.spool_bytes"):
        taps.fan.take("slow")
    assert taps.spools["slow"].closed
    assert REGISTRY.get_sample_value("penstock_jobs_cut_off_total") == before + 1


def test_a_disk_that_fails_ends_its_consumer_alone() -> None:
    taps = Taps("quick", "slow")

    def full() -> None:
        raise OSError(28, "No space left on device")

    taps.fault = full
    taps.drain("quick")
    taps.read(50)
    until(lambda: "quick" in taps.ended)
    assert taps.ended["quick"] is None
    with pytest.raises(Unavailable, match="No space left"):
        taps.fan.take("slow")


def test_a_consumer_that_leaves_holds_nobody_back() -> None:
    taps = Taps("a", "b", patience_s=60.0)
    taps.drain("a")
    taps.read(50)
    until(lambda: len(taps.taken["a"]) == 2)
    taps.fan.close("b")
    until(lambda: "a" in taps.ended)
    assert taps.taken["a"] == list(range(1, 51))
    with pytest.raises(Aborted):
        taps.fan.take("b")


def test_canceling_wakes_a_consumer_that_waits() -> None:
    taps = Taps("a")
    taps.drain("a")
    until(lambda: taps.fan._queues["a"].asked)
    taps.fan.close("a")
    until(lambda: "a" in taps.ended)
    assert isinstance(taps.ended["a"], Aborted)


def test_the_reader_ends_when_nobody_is_left() -> None:
    taps = Taps("a", "b", patience_s=60.0)
    taps.read(1000)
    taps.fan.close("a")
    taps.fan.close("b", CutOff("enough"))
    until(lambda: taps.done)
    with pytest.raises(CutOff, match="enough"):
        taps.fan.take("b")


def test_a_source_that_fails_fails_everybody() -> None:
    taps = Taps("a", "b")
    taps.drain("a", "b")
    taps.fan.give(1)
    taps.fan.fail(Unavailable("the capture is away"))
    until(lambda: len(taps.ended) == 2)
    assert all(isinstance(each, Unavailable) for each in taps.ended.values())


def test_the_largest_spool_of_an_account_is_cut_off_when_all_of_them_are_too_large() -> None:
    totals = SpoolTotals({"ann": 100})
    cut: list[str] = []

    def put(account: str, spool: str, nbytes: int) -> None:
        totals.put(account, spool, nbytes, lambda limit: cut.append(f"{account}.{spool} {limit}"))

    put("ann", "a", 40)
    put("ann", "b", 50)
    put("bob", "a", 1000)
    put("ann", "c", 10)
    assert cut == []
    put("ann", "c", 20)
    assert cut == ["ann.b 100"]
    put("ann", "a", 0)
    put("ann", "d", 80)
    assert len(cut) == 1
    put("ann", "d", 500)
    assert cut[1:] == ["ann.d 100"]


def test_spools_of_several_iterations_share_the_limit_of_their_account() -> None:
    totals = SpoolTotals({"ann": 100})
    spools = {name: ListSpool() for name in ("a", "b")}
    fans = {
        name: FanOut[int](
            ["slow", "quick"],
            batches_max=1,
            patience_s=0,
            spool_bytes=10**9,
            open_spool=lambda _, name=name: spools[name],  # type: ignore[misc] # bound now
            account="ann",
            totals=totals,
        )
        for name in ("a", "b")
    }
    for name, sizes in (("a", [10, 60]), ("b", [10, 50])):
        for size in sizes:
            taken = threading.Thread(target=fans[name].take, args=("quick",), daemon=True)
            taken.start()
            fans[name].give(size)
            taken.join(30)
    until(lambda: spools["a"].closed)
    with pytest.raises(CutOff, match="spool_bytes_max"):
        fans["a"].take("slow")
    assert fans["b"].take("slow") == 10
