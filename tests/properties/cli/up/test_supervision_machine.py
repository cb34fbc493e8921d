"""Whatever happens to the parts, they begin in order, wait as they should, and end in the reverse order."""

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.cli.up.supervision import Rank, Supervision
from penstock.settings import UpSettings
from support.campaign import examples

BACKOFF_S, BACKOFF_MAX_S, STEADY_S = 1.0, 10.0, 30.0
SETTINGS = UpSettings(backoff_s=BACKOFF_S, backoff_max_s=BACKOFF_MAX_S, steady_s=STEADY_S)


class Parts(RuleBasedStateMachine):
    """Parts that start, become ready and end as they like; what is known of each is kept beside the core."""

    @initialize(captures=st.integers(0, 3), rest=st.integers(0, 3), store=st.booleans())
    def build(self, captures: int, rest: int, store: bool) -> None:
        self.ranks = {
            **{f"rest-{number}": Rank.REST for number in range(rest)},
            **{f"capture-{number}": Rank.CAPTURE for number in range(captures)},
            **({"store": Rank.STORE} if store else {}),
        }
        self.core = Supervision(self.ranks, SETTINGS)
        self.now = 0.0
        self.alive: dict[str, float | None] = {}  # since when it is ready
        self.were_ready: set[str] = set()
        self.were_ended: set[str] = set()
        self.waits: dict[str, float] = {}  # the last wait of each
        self.due_at: dict[str, float] = {}
        self.stopping = False

    @rule(seconds=st.floats(0, 100))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def start_what_is_due(self) -> None:
        names = self.core.due_parts(self.now)
        assert not (names and self.stopping)
        for name in names:
            assert name not in self.alive
            assert self.now >= self.due_at.get(name, 0)
            self.in_order(name)
            self.core.record_start(name)
            self.alive[name] = None
        assert self.core.due_parts(self.now) == []

    def in_order(self, name: str) -> None:
        for other, rank in self.ranks.items():
            if rank < self.ranks[name] and name not in self.were_ended:
                assert other in self.were_ready or (rank is not Rank.STORE and other in self.were_ended)

    @precondition(lambda self: any(ready is None for ready in self.alive.values()))
    @rule(data=st.data())
    def one_is_ready(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from([name for name, ready in self.alive.items() if ready is None]))
        self.core.record_ready(name, self.now)
        self.alive[name] = self.now
        self.were_ready.add(name)

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), error=st.sampled_from(["a", "b"]))
    def one_ends(self, data: st.DataObject, error: str) -> None:
        name = data.draw(st.sampled_from(sorted(self.alive)))
        ready_at = self.alive.pop(name)
        again = self.core.record_exit(name, self.now, error)
        self.were_ended.add(name)
        if self.stopping:
            assert again is None
            return
        assert again is not None
        steady = ready_at is not None and self.now - ready_at >= STEADY_S
        before = None if steady else self.waits.get(name)
        assert again.wait_s == (BACKOFF_S if before is None else min(before * 2, BACKOFF_MAX_S))
        self.waits[name] = again.wait_s
        self.due_at[name] = self.now + again.wait_s

    @rule()
    def all_is_to_stop(self) -> None:
        self.core.stop()
        self.stopping = True

    @invariant()
    def what_may_end_first_has_the_highest_rank(self) -> None:
        found = self.core.stoppable_parts()
        highest = max((self.ranks[name] for name in self.alive), default=None)
        assert sorted(found) == sorted(name for name in self.alive if self.ranks[name] == highest)

    @invariant()
    def who_is_not_due_yet_is_due_at_the_moment_that_is_told(self) -> None:
        at = self.core.next_start_at()
        if at is None:
            assert self.core.due_parts(self.now + 1e9) == []
        else:
            assert self.core.due_parts(at) != []
            assert at <= self.now + BACKOFF_MAX_S

    @invariant()
    def it_knows_who_was_ready(self) -> None:
        assert self.core.all_were_ready == (self.were_ready == set(self.ranks))


Parts.TestCase.settings = hypothesis_settings(
    max_examples=examples(60), stateful_step_count=40, deadline=None
)
TestParts = Parts.TestCase
