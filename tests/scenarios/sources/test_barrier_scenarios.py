"""Replays the text scenarios of the span's barriers: commands, a line of dashes, what was told."""

from pathlib import Path

import pytest

from penstock.sources.barriers import Barriers

HERE = Path(__file__).parent
SCENARIOS = sorted(HERE.glob("*.txt"))


def run(commands: list[str]) -> list[str]:
    barriers, told = Barriers(), []
    for command in commands:
        verb, *numbers = command.split()
        if verb == "data":
            told.append(f"batch {barriers.add_data()}")
        elif verb == "resolved":
            told.append(f"{barriers.add_resolved(int(numbers[0])).value}")
        else:
            assert verb == "persisted", command
            barriers.mark_persisted(int(numbers[0]))
        while (ts := barriers.take_ready()) is not None:
            told.append(f"advance {ts}")
    return told


@pytest.mark.parametrize("path", SCENARIOS, ids=[path.stem for path in SCENARIOS])
def test_the_scenario_is_told_as_it_is_written(path: Path) -> None:
    steps = path.read_text().split("\n\n")
    commands: list[str] = []
    expected: list[str] = []
    for step in steps:
        asked, _, answered = step.partition("----")
        commands += [line for line in asked.splitlines() if line and not line.startswith("#")]
        expected += answered.split("\n")
        assert run(commands) == [line for line in expected if line], step
