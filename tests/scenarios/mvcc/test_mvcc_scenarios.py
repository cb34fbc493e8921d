"""Replays the text scenarios of the transactional storage (see support.mvcc_script).

Each block is a scenario of its own: a comment, commands, and indented under each command what it tells.
PENSTOCK_REWRITE_SCENARIOS=1 writes down what is told now, to be read before it is kept.
"""

import os
from pathlib import Path

import pytest

from penstock import eventloop
from support.mvcc_script import Script

SCENARIOS = sorted(Path(__file__).parent.glob("*.txt"))


async def replay(scenario: str, directory: Path) -> str:
    script = Script(directory)
    told = []
    for line in scenario.splitlines():
        if line.startswith("#"):
            told.append(line)
        elif not line.startswith(" "):
            told += [line, *(f"  {outcome}" for outcome in await script.run(line))]
    await script.close()
    return "\n".join(told)


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_a_scenario_tells_the_same_story(path: Path, tmp_path: Path) -> None:
    said = path.read_text()
    scenarios = said.strip().split("\n\n")
    told = [
        eventloop.run(replay(scenario, tmp_path / str(number))) for number, scenario in enumerate(scenarios)
    ]
    if os.environ.get("PENSTOCK_REWRITE_SCENARIOS"):
        path.write_text("\n\n".join(told) + "\n")
    for expected, actual in zip(scenarios, told, strict=True):
        assert actual.splitlines() == expected.splitlines()
