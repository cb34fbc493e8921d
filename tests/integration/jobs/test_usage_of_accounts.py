"""What accounts have used, in a real store."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.errors import Corrupt, Unavailable, Undetermined
from penstock.jobs.usage import PREFIX, Usage, UsageMeter, read_usage
from penstock.kv import Client, Transaction
from support.warmstore import WarmStore


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    data = tmp_path_factory.mktemp("usage") / "store"
    with WarmStore.start(data, stores=1) as running, Client.connect([running.pd_addr]) as connected:
        yield connected


@pytest.fixture
def client(store: Client) -> Client:
    with store.begin() as txn:
        for key, _ in txn.scan(PREFIX, PREFIX + b"\xff"):
            txn.delete(key)
    return store


def test_what_was_used_adds_up_over_runners(client: Client) -> None:
    first, second = UsageMeter(client), UsageMeter(client)
    first.add("shop", Usage(10, 1000, 0.5))
    first.add("shop", Usage(1, 1, 0.25))
    second.add("shop", Usage(100, 0, 1.0))
    second.add("bank", Usage(7, 70, 0.0))
    for meter in (first, second, first):
        meter.flush()
    assert read_usage(client) == {"shop": Usage(111, 1001, 1.75), "bank": Usage(7, 70, 0.0)}


class Shaky:
    """A client whose commits fail, before or after they happen."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.faults: list[tuple[str, Exception]] = []

    def begin(self) -> "ShakyTxn":
        return ShakyTxn(self, self.client.begin())


class ShakyTxn:
    def __init__(self, shaky: Shaky, txn: Transaction) -> None:
        self.shaky = shaky
        self.txn = txn

    def __enter__(self) -> Transaction:
        return self.txn.__enter__()

    def __exit__(self, *_: object) -> None:
        fault = self.shaky.faults.pop(0) if self.shaky.faults else None
        if fault is not None and fault[0] == "before":
            self.txn.rollback()
        else:
            self.txn.__exit__(None, None, None)
        if fault is not None:
            raise fault[1]


def test_a_commit_that_was_not_answered_is_not_made_twice(client: Client) -> None:
    shaky = Shaky(client)
    meter = UsageMeter(shaky)  # type: ignore[arg-type] # all that the meter asks of a client
    meter.add("shop", Usage(10, 100, 1.0))
    shaky.faults = [("after", Undetermined("?")), ("before", Undetermined("?"))]
    meter.flush()
    assert read_usage(client)["shop"] == Usage(10, 100, 1.0)


@pytest.mark.parametrize("when", ["before", "after"])
def test_what_the_store_does_not_take_is_kept_for_later_and_counted_once(client: Client, when: str) -> None:
    shaky = Shaky(client)
    meter = UsageMeter(shaky)  # type: ignore[arg-type] # all that the meter asks of a client
    meter.add("shop", Usage(10, 100, 1.0))
    shaky.faults = [(when, Unavailable("away"))]
    meter.flush()
    other = UsageMeter(client)  # who takes over meanwhile
    other.add("shop", Usage(100, 0, 0.0))
    other.flush()
    meter.add("shop", Usage(5, 50, 0.5))
    shaky.faults = [("before", Unavailable("away"))]
    meter.flush()
    meter.flush()
    assert read_usage(client)["shop"] == Usage(115, 150, 1.5)


def test_two_runners_flush_at_the_same_time(client: Client) -> None:
    meters = [UsageMeter(client) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            for meter in meters:
                meter.add("shop", Usage(1, 2, 0.25))
            list(pool.map(UsageMeter.flush, meters))
    for meter in meters:
        meter.flush()
    assert read_usage(client)["shop"] == Usage(20, 40, 5.0)


def test_nothing_is_written_when_nothing_was_used(client: Client) -> None:
    UsageMeter(client).flush()
    assert read_usage(client) == {}


def test_a_damaged_row_is_told(client: Client) -> None:
    with client.begin() as txn:
        txn.put(PREFIX + b"shop", b"{}")
    with pytest.raises(Corrupt):
        read_usage(client)
    meter = UsageMeter(client)
    meter.add("shop", Usage(1, 1, 1.0))
    meter.add("bank", Usage(2, 2, 2.0))
    meter.flush()
    with client.begin() as txn:
        txn.delete(PREFIX + b"shop")
    meter.flush()
    assert read_usage(client) == {"shop": Usage(1, 1, 1.0), "bank": Usage(2, 2, 2.0)}
