"""Point reads among locks, against scripted answers."""

from types import SimpleNamespace
from typing import Any

from penstock.clock import SYSTEM, TS_MAX
from penstock.kv.backoff import Backoffer
from penstock.kv.reading import ReadView
from penstock.kv.resolver import ReadOutcome
from penstock.kv.scope import SafePoint
from penstock.proto import kvrpcpb_pb2 as kvrpcpb
from penstock.settings import KvSettings


class Script:
    """A router and resolver that answer from a list and write down what they are asked."""

    def __init__(self, *answers: kvrpcpb.GetResponse, outcome: ReadOutcome | None = None) -> None:
        self.answers = list(answers)
        self.outcome = outcome or ReadOutcome()
        self.contexts: list[tuple[list[int], list[int]]] = []
        self.resolved: list[int] = []

    async def send_to_key(self, bo: Backoffer, method: str, request: Any, key: bytes, answer: Any) -> Any:
        context = request.context
        self.contexts.append((list(context.resolved_locks), list(context.committed_locks)))
        return self.answers.pop(0)

    async def resolve_for_read(self, bo: Backoffer, locks: Any, read_ts: int, *, lite: bool) -> ReadOutcome:
        self.resolved += [lock.start_ts for lock in locks]
        return self.outcome

    async def get_gc_safe_point(self) -> int:
        return 0

    def view(self, ts: int) -> ReadView:
        session: Any = SimpleNamespace(
            router=self,
            resolver=self,
            safe_point=SafePoint(self, settings=KvSettings(), clock=SYSTEM),
            backoffer=lambda budget, name: Backoffer(budget, clock=SYSTEM, name=name),
        )
        return ReadView(session, ts)


def locked(start_ts: int) -> kvrpcpb.GetResponse:
    info = kvrpcpb.LockInfo(key=b"k", primary_lock=b"p", lock_version=start_ts, lock_ttl=3000)
    return kvrpcpb.GetResponse(error=kvrpcpb.KeyError(locked=info))


FOUND = kvrpcpb.GetResponse(value=b"v")


async def test_transactions_out_of_the_way_are_named_in_the_next_request() -> None:
    script = Script(locked(5), FOUND, outcome=ReadOutcome(ignored={5}, committed={6}))
    assert await script.view(10).get(b"k") == b"v"
    assert script.contexts == [([], []), ([5], [6])]


async def test_a_live_owner_is_waited_for_and_asked_after_again() -> None:
    script = Script(locked(5), locked(5), FOUND, outcome=ReadOutcome(wait_ms=1))
    assert await script.view(10).get(b"k") == b"v"
    assert script.resolved == [5, 5]


async def test_a_read_of_the_newest_value_is_held_up_by_the_first_lock_only() -> None:
    script = Script(locked(5), locked(6), locked(7), FOUND, outcome=ReadOutcome(wait_ms=1))
    assert await script.view(TS_MAX).get(b"k") == b"v"
    assert script.resolved == [5]
    assert sorted(script.contexts[-1][0]) == [6, 7]


async def test_a_key_without_a_value_is_none() -> None:
    assert await Script(kvrpcpb.GetResponse(not_found=True)).view(10).get(b"k") is None
