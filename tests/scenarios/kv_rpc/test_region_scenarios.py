"""Replays the region table's scenarios: commands, a line of dashes, what they answer."""

from pathlib import Path

import pytest

from penstock.kv.region_table import CachedRegion, KeyLocation, RegionTable, RegionVerId
from penstock.proto import metapb_pb2 as metapb

SCENARIOS = sorted(Path(__file__).parent.glob("*.txt"))


def key(word: str) -> bytes:
    return b"" if word == "-" else word.encode()


class Replay:
    def __init__(self) -> None:
        self.table = RegionTable(100)
        self.now = 0.0

    def run(self, line: str) -> str | None:
        command, *words = line.split()
        return getattr(self, command)(*words)

    def insert(self, region_id: str, start: str, end: str, version: str) -> str:
        ver = RegionVerId(int(region_id), 1, int(version[1:]))
        location = KeyLocation(ver, key(start), key(end))
        region = CachedRegion(location, (metapb.Peer(id=1),), 0, 100.0, self.now + 100.0, 0)
        return "ok" if self.table.insert(region) else "outdated"

    def find(self, word: str) -> str:
        return self.show(self.table.find(key(word), self.now))

    def before(self, word: str) -> str:
        return self.show(self.table.find_before(key(word), self.now))

    def at(self, now: str) -> None:
        self.now = float(now)

    def sweep(self) -> str:
        return f"dropped {self.table.sweep(self.now, 50)}"

    def size(self) -> str:
        return str(len(self.table))

    @staticmethod
    def show(region: CachedRegion | None) -> str:
        if region is None:
            return "none"
        found = region.location
        start, end = found.start.decode() or "-", found.end.decode() or "-"
        return f"{found.region.id} [{start}, {end}) v{found.region.version}"


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_the_region_table_answers_as_written(path):
    replay = Replay()
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    for block in "\n".join(lines).strip().split("\n\n"):
        commands, expected = block.split("----\n")
        answers = [replay.run(line) for line in commands.splitlines()]
        assert [answer for answer in answers if answer is not None] == expected.splitlines()


def test_there_are_scenarios():
    assert len(SCENARIOS) >= 3
