"""How long to wait before a retry, and when to give up."""

import pytest

from penstock import metrics
from penstock.errors import Invalid, Unavailable
from penstock.kv.backoff import Backoffer, BackoffKind, BackoffSchedule, Jitter, sleep_ms

TABLE = {
    BackoffKind.TIKV_RPC: ("tikvRPC", 100, 2_000, Jitter.EQUAL, "TiKV server timeout"),
    BackoffKind.TXN_LOCK: ("txnLock", 100, 3_000, Jitter.EQUAL, "resolve lock timeout"),
    BackoffKind.TXN_LOCK_FAST: ("txnLockFast", 10, 3_000, Jitter.EQUAL, "resolve lock timeout"),
    BackoffKind.PD_RPC: ("pdRPC", 500, 3_000, Jitter.EQUAL, "PD server timeout"),
    BackoffKind.REGION_MISS: ("regionMiss", 2, 500, Jitter.NONE, "region unavailable"),
    BackoffKind.REGION_SCHEDULING: ("regionScheduling", 2, 500, Jitter.NONE, "region unavailable"),
    BackoffKind.SERVER_BUSY: ("tikvServerBusy", 2_000, 10_000, Jitter.EQUAL, "server busy"),
    BackoffKind.DISK_FULL: ("tikvDiskFull", 500, 5_000, Jitter.NONE, "disk full"),
    BackoffKind.STALE_COMMAND: ("staleCommand", 2, 1_000, Jitter.NONE, "stale command"),
    BackoffKind.DATA_NOT_READY: ("dataNotReady", 2, 2_000, Jitter.NONE, "data not ready"),
    BackoffKind.IS_WITNESS: ("isWitness", 1_000, 10_000, Jitter.EQUAL, "is witness"),
}


class FakeClock:
    def __init__(self, draw: float = 0.5) -> None:
        self.slept: list[float] = []
        self.draw = draw

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    def random(self) -> float:
        return self.draw


@pytest.mark.parametrize(
    ("kind", "row"), TABLE.items(), ids=lambda v: v.name if isinstance(v, BackoffKind) else ""
)
def test_every_kind_has_the_numbers_of_the_table(kind, row):
    assert (kind.label, kind.base_ms, kind.cap_ms, kind.jitter, kind.message) == row


@pytest.mark.parametrize(
    ("jitter", "attempt", "last_ms", "draw", "expected"),
    [
        (Jitter.NONE, 0, 0, 0.9, 100),
        (Jitter.NONE, 3, 0, 0.9, 800),
        (Jitter.NONE, 9, 0, 0.9, 1000),  # the cap
        (Jitter.NONE, 900, 0, 0.9, 1000),
        (Jitter.FULL, 2, 0, 0.0, 0),
        (Jitter.FULL, 2, 0, 0.5, 200),
        (Jitter.EQUAL, 1, 0, 0.0, 100),
        (Jitter.EQUAL, 1, 0, 0.5, 150),
        (Jitter.DECORRELATED, 0, 0, 0.0, 100),
        (Jitter.DECORRELATED, 5, 200, 0.5, 350),  # base + (3 * last - base) / 2
        (Jitter.DECORRELATED, 5, 900, 0.99, 1000),
    ],
)
def test_a_sleep_is_exponential_with_its_jitter(jitter, attempt, last_ms, draw, expected):
    assert sleep_ms(jitter, 100, 1000, attempt=attempt, last_ms=last_ms, draw=draw) == expected


def test_each_kind_grows_by_itself():
    schedule = BackoffSchedule(1_000_000)
    slept = [
        schedule.next_ms(kind, 0)
        for kind in (
            BackoffKind.REGION_MISS,
            BackoffKind.REGION_MISS,
            BackoffKind.DISK_FULL,
            BackoffKind.REGION_MISS,
        )
    ]
    assert slept == [2, 4, 500, 8]
    assert schedule.total_ms == 514
    assert schedule.longest() is BackoffKind.DISK_FULL


def test_the_budget_ends_the_retries_once_it_is_spent():
    schedule = BackoffSchedule(10)
    assert [schedule.next_ms(BackoffKind.REGION_MISS, 0) for _ in range(4)] == [2, 4, 8, None]


def test_sleeps_for_a_busy_store_do_not_count_up_to_ten_minutes():
    schedule = BackoffSchedule(1_000)
    slept = 0.0
    while (sleep := schedule.next_ms(BackoffKind.SERVER_BUSY, 1.0)) is not None:
        slept += sleep
    assert 600_000 <= slept < 610_000 + 1
    assert schedule.next_ms(BackoffKind.REGION_MISS, 0) == 2  # the others still have their budget


def test_a_sleep_can_be_shortened_and_only_what_was_slept_is_charged():
    schedule = BackoffSchedule(1_000)
    assert schedule.next_ms(BackoffKind.SERVER_BUSY, 0.5, max_ms=30) == 30
    assert schedule.total_ms == 30


async def test_the_error_names_the_kind_that_slept_longest_and_is_caused_by_the_last():
    clock = FakeClock()
    bo = Backoffer(300, clock=clock, weight=1, name="get")
    await bo.backoff(BackoffKind.DISK_FULL, "full")
    with pytest.raises(Unavailable, match="disk full in get after 1 retries in 500 ms: gone") as raised:
        await bo.backoff(BackoffKind.REGION_MISS, ConnectionError("gone"))
    assert isinstance(raised.value.__cause__, ConnectionError)


async def test_the_weight_multiplies_the_budget():
    clock = FakeClock()
    bo = Backoffer(250, clock=clock, weight=2)
    await bo.backoff(BackoffKind.DISK_FULL, "full")
    with pytest.raises(Unavailable):
        await bo.backoff(BackoffKind.DISK_FULL, "full")
    assert clock.slept == [0.5]


async def test_a_budget_of_nothing_never_retries():
    with pytest.raises(Unavailable, match=r"^PD server timeout: down$"):
        await Backoffer(0, clock=FakeClock()).backoff(BackoffKind.PD_RPC, "down")


async def test_a_foreign_cluster_is_never_retried():
    with pytest.raises(Invalid, match="another cluster"):
        await Backoffer(20_000, clock=FakeClock()).backoff(
            BackoffKind.PD_RPC, "rpc error: mismatch cluster id, need 1 but got 2"
        )


async def test_a_fork_goes_on_from_what_was_spent_and_leaves_its_parent_alone():
    clock = FakeClock()
    bo = Backoffer(600, clock=clock, weight=1)
    await bo.backoff(BackoffKind.DISK_FULL, "full")
    child = bo.fork()
    await child.backoff(BackoffKind.DISK_FULL, "full")
    assert clock.slept == [0.5, 1.0]
    assert (bo.total_ms, child.total_ms) == (500, 1500)
    with pytest.raises(Unavailable):
        await child.backoff(BackoffKind.DISK_FULL, "full")
    await bo.backoff(BackoffKind.REGION_MISS, "elsewhere")


async def test_every_sleep_is_observed():
    def total() -> float:
        return metrics.KV_BACKOFF_SECONDS.labels("isWitness")._sum.get()

    before = total()
    await Backoffer(20_000, clock=FakeClock(0.0)).backoff(BackoffKind.IS_WITNESS, "witness")
    assert total() - before == pytest.approx(0.5)
