"""Run a transaction until it commits: what is repeated, for how long, and what ends it."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest

from penstock.errors import Conflict, Invalid, PenstockError, Unavailable, Undetermined
from penstock.kv.transact import transact, transact_async
from penstock.testing.clock import ManualClock


class RecordingClock(ManualClock):
    """Pauses take no time and are recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[float] = []

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)

    def random(self) -> float:
        return 0.5


class Commits:
    """Transactions whose commits fail in this order, and then succeed; each is its own number."""

    def __init__(self, *failures: PenstockError) -> None:
        self._failures = list(failures)
        self.begun = 0

    @contextmanager
    def begin(self) -> Iterator[int]:
        self.begun += 1
        yield self.begun
        if self._failures:
            raise self._failures.pop(0)

    @asynccontextmanager
    async def begin_async(self) -> AsyncIterator[int]:
        with self.begin() as txn:
            yield txn


@pytest.fixture(params=["blocking", "async"])
def face(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def run(face: str, commits: Commits, clock: RecordingClock, *, repeatable: bool = False) -> int:
    """Run work that returns the number of its transaction."""
    if face == "blocking":
        return transact(commits.begin, lambda txn: txn, repeatable=repeatable, clock=clock)

    async def work(txn: int) -> int:
        return txn

    return await transact_async(commits.begin_async, work, repeatable=repeatable, clock=clock)


async def test_what_commits_at_once_is_run_once(face: str) -> None:
    clock = RecordingClock()
    assert await run(face, Commits(), clock) == 1
    assert clock.pauses == []


async def test_a_conflict_runs_the_work_again_after_a_pause_that_doubles(face: str) -> None:
    clock = RecordingClock()
    assert await run(face, Commits(*[Conflict("busy")] * 9), clock) == 10
    assert clock.pauses == [0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.5, 0.5]


async def test_an_unknown_outcome_is_raised_at_once(face: str) -> None:
    clock, commits = RecordingClock(), Commits(Conflict("busy"), Undetermined("no answer"))
    with pytest.raises(Undetermined, match="no answer"):
        await run(face, commits, clock)
    assert commits.begun == 2


async def test_an_unknown_outcome_is_repeated_when_the_work_bears_it(face: str) -> None:
    commits = Commits(Undetermined("no answer"), Conflict("busy"), Undetermined("no answer"))
    assert await run(face, commits, RecordingClock(), repeatable=True) == 4


async def test_after_twenty_conflicts_the_last_one_is_raised(face: str) -> None:
    clock = RecordingClock()
    commits = Commits(*(Conflict(f"conflict {number}") for number in range(1, 30)))
    with pytest.raises(Conflict, match="conflict 20"):
        await run(face, commits, clock)
    assert (commits.begun, len(clock.pauses)) == (20, 19)


@pytest.mark.parametrize("error", [Conflict("busy"), Undetermined("no answer")])
async def test_what_bears_repetition_may_be_called_again_after_twenty_tries(
    face: str, error: PenstockError
) -> None:
    commits = Commits(*[error] * 30)
    with pytest.raises(Unavailable, match="did not commit in 20 tries") as raised:
        await run(face, commits, RecordingClock(), repeatable=True)
    assert raised.value.__cause__ is error
    assert commits.begun == 20


@pytest.mark.parametrize("repeatable", [False, True])
async def test_any_other_error_is_raised_at_once(face: str, repeatable: bool) -> None:
    commits = Commits(Invalid("no"))
    with pytest.raises(Invalid, match="no"):
        await run(face, commits, RecordingClock(), repeatable=repeatable)
    assert commits.begun == 1
