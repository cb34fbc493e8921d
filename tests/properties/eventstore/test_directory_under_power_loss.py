"""A directory as storage, against a dict: what was answered is there whenever the power was lost."""

import random  # noqa: TID251 - by seeds of Hypothesis
import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from penstock.errors import Unavailable
from penstock.object_storage import ObjectStorage, open_storage
from support.campaign import examples
from support.powerloss import Disk

PATHS = st.sampled_from(["a", "f/a", "f/b", "f/g/a"])


class DirectoryUnderPowerLoss(RuleBasedStateMachine):
    """`known` has, for each path, every content that it may have: more than one after a call that failed."""

    @initialize()
    def start(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="penstock-directory-"))
        self.disk = Disk(self.root)
        self.disk.__enter__()
        self.count = 0
        self.known: dict[str, set[bytes | None]] = {}
        self.open()

    def open(self) -> None:
        self.storage: ObjectStorage = open_storage(f"file://{self.root}/data/objects")

    def content(self) -> bytes:
        self.count += 1
        return b"%d" % self.count

    @rule(path=PATHS)
    def create(self, path: str) -> None:
        data = self.content()
        before = self.known.get(path, {None})
        try:
            if self.storage.create(path, data):
                assert None in before
                self.known[path] = {data}
            else:
                self.known[path] = {self.storage.read(path)}  # who made it may have been killed
                assert self.known[path] <= before - {None}
        except Unavailable:
            self.known[path] = before | ({data} if None in before else set())

    @rule(path=PATHS)
    def write(self, path: str) -> None:
        data = self.content()
        try:
            self.storage.write(path, data)
        except Unavailable:
            self.known[path] = self.known.get(path, {None}) | {data}
        else:
            self.known[path] = {data}

    @rule(path=PATHS)
    def swap(self, path: str) -> None:
        data, seen = self.content(), self.storage.read(path)
        before = self.known.get(path, {None})
        assert seen in before
        try:
            assert self.storage.swap(path, data, seen=seen)
        except Unavailable:
            self.known[path] = before | {data}
        else:
            self.known[path] = {data}

    @rule(path=PATHS)
    def delete(self, path: str) -> None:
        try:
            self.storage.delete(path)
        except Unavailable:
            self.known[path] = self.known.get(path, {None}) | {None}
        else:
            self.known[path] = {None}

    @rule(syncs=st.integers(0, 8))
    def kill_at_a_later_sync(self, syncs: int) -> None:
        self.restart()
        self.disk.kill_at(syncs)

    @rule(syncs=st.integers(0, 8), luck=st.integers(0, 1 << 32))
    def lose_power_at_a_later_sync(self, syncs: int, luck: int) -> None:
        self.restart()
        self.disk.lose_power_at(syncs, random.Random(luck).random)

    @rule()
    def restart(self) -> None:
        self.disk.restart()
        self.open()
        for path, contents in self.known.items():
            assert self.storage.read(path) in contents

    def teardown(self) -> None:
        if hasattr(self, "storage"):
            self.restart()
            self.disk.__exit__()
            shutil.rmtree(self.root)


TestDirectoryUnderPowerLoss = DirectoryUnderPowerLoss.TestCase
TestDirectoryUnderPowerLoss.settings = settings(
    max_examples=examples(100), stateful_step_count=25, deadline=None
)
