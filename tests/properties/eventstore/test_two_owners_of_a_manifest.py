"""Writers race for one manifest: whoever is fenced stops, and nobody's committed entry is ever lost."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.errors import Fenced, Unavailable
from penstock.eventstore.manifest_log import ManifestLog, load
from penstock.object_storage import ObjectStorage, open_storage
from support.campaign import examples

WRITERS = st.sampled_from(["one", "two", "three"])


class _Flaky(ObjectStorage):
    """Fails the next creation, before or after it took effect."""

    fail: str = ""

    def create(self, path: str, data: bytes) -> bool:
        fail, self.fail = self.fail, ""
        if fail == "before":
            raise Unavailable("lost request")
        made = super().create(path, data)
        if fail == "after":
            raise Unavailable("lost answer")
        return made


class TwoOwners(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        clean = open_storage("memory:///")
        self.storage = _Flaky(clean.url, clean._store)
        self.logs: dict[str, ManifestLog] = {}
        self.committed: list[str] = []  # notes whose commit was answered
        self.doubtful: set[str] = set()
        self.notes = 0

    @rule(writer=WRITERS)
    def take_over(self, writer: str) -> None:
        self.logs[writer] = ManifestLog.open(self.storage, "t", writer=writer)

    @rule(writer=WRITERS, fail=st.sampled_from(["", "", "before", "after"]))
    def commit(self, writer: str, fail: str) -> None:
        log = self.logs.get(writer)
        if log is None:
            return
        self.notes += 1
        note = f"{writer}-{self.notes}"
        newest = load(self.storage, "t")
        self.storage.fail = fail
        try:
            log.commit(facts=[{"kind": "note", "note": note}])
        except Unavailable:
            self.doubtful.add(note)
            epoch = log.epoch
            try:
                self.logs[writer] = ManifestLog.open(self.storage, "t", writer=writer, after_epoch=epoch)
            except Fenced:
                assert newest.epoch > epoch
                del self.logs[writer]
        except Fenced:
            assert newest.epoch > log.epoch
            del self.logs[writer]
        else:
            assert newest.epoch == log.epoch
            self.committed.append(note)

    @invariant()
    def everything_answered_is_there_once_and_in_order(self) -> None:
        if not hasattr(self, "storage"):
            return
        notes = [fact["note"] for fact in load(self.storage, "t").facts]
        assert len(set(notes)) == len(notes)
        assert [note for note in notes if note not in self.doubtful] == self.committed


TestTwoOwners = TwoOwners.TestCase
TestTwoOwners.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
