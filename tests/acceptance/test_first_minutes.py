"""What a newcomer types first: the demonstration, and the check for Java."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from pathlib import Path

import pytest

from penstock.control.part_states import PartStatus, UpStates

ROOT = Path(__file__).parent.parent.parent
PENSTOCK = [sys.executable, "-m", "penstock.cli.main"]


def parts_of(folder: Path) -> tuple[PartStatus, ...]:
    """The parts of a deployment that runs."""
    states = UpStates.read(folder)
    assert states is not None
    return states.parts


def rows_by_engine(addr: str | None) -> Counter[tuple[str, str]]:
    """How many rows a part has worked on, by stage and engine."""
    found = Counter[tuple[str, str]]()
    if addr:
        with urllib.request.urlopen(f"http://{addr}/metrics", timeout=60) as answer:
            for line in answer.read().decode().splitlines():
                sample = re.fullmatch(r'penstock_rows_total\{engine="(\w+)",stage="(\w+)"\} (\S+)', line)
                if sample is not None and float(sample[3]):
                    found[sample[2], sample[1]] += int(float(sample[3]))
    return found


def test_the_demonstration_compares_every_target_and_lets_people_look_at_it(tmp_path: Path) -> None:
    command = [*PENSTOCK, "demo", "--seconds", "5", "--keep", "--data", str(tmp_path / "demo")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        told: list[str] = []
        for line in child.stdout:  # its own waits have deadlines, so it comes to an end
            told.append(line)
            if "Ctrl-C ends it" in line:
                break
        text = "".join(told)
        pages = re.search(r"see (http://127.0.0.1:\d+)/#token=(\S+)\. Ctrl-C", text)
        assert pages is not None, text
        asked = urllib.request.Request(
            f"{pages[1]}/api/v1/overview", headers={"Authorization": f"Bearer {pages[2]}"}
        )
        with urllib.request.urlopen(asked, timeout=60) as answer:
            overview = json.load(answer)
        worked = {part.name: rows_by_engine(part.metrics_addr) for part in parts_of(tmp_path / "demo" / "up")}
        child.send_signal(signal.SIGINT)
        child.stdout.read()
        assert child.wait(120) == 0
    assert "all 5 targets equal their source" in text
    equal = [int(rows.replace(",", "")) for rows in re.findall(r"equal:\s+([\d,]+)", text)]
    assert len(equal) == 5
    assert min(equal) > 0
    for change in ("column channel added to shop.orders", "table shop.reviews created"):
        assert change in text
    assert re.search(r"│ \d+\.\d\d │ .*(copper|kettle)", text), "neither index found anything"
    assert {each["id"] for each in overview["changefeeds"]} == {"shop-canal-json", "shop-parquet"}
    assert len(overview["jobs"]) == 3
    feeds, jobs = worked["changefeeds"], worked["jobs"]
    assert feeds.keys() == {("read", "spark"), ("encode", "spark"), ("write", "spark")}
    # Executors write both indexes; batches are for the later changes of the Delta table.
    assert jobs.keys() <= {("read", "spark"), ("consume", "spark"), ("consume", "local")}
    assert jobs["consume", "spark"] > 0
    parts = (tmp_path / "demo" / "parts.log").read_text()
    assert "penstock" not in parts.lower() or "ERROR" not in parts, parts


def java(directory: Path, version: str) -> None:
    script = directory / "java"
    script.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    script.chmod(0o755)


@pytest.mark.parametrize(
    ("version", "enough"),
    [("17.0.15", True), ("21", True), ("11.0.2", False), ("1.8.0_392", False), (None, False)],
)
def test_java_17_is_made_sure_of_or_asked_for_in_one_line(
    tmp_path: Path, version: str | None, enough: bool
) -> None:
    for tool in ("bash", "id", "sed", "head"):
        (tmp_path / tool).symlink_to(Path("/usr/bin") / tool)
    if version is not None:
        java(tmp_path, version)
    environment = {**os.environ, "PATH": str(tmp_path)}  # no apt-get here: nothing is installed
    done = subprocess.run(
        [ROOT / "tools" / "ensure-java"], env=environment, capture_output=True, text=True, check=False
    )
    if enough:
        assert (done.returncode, done.stderr) == (0, "")
    else:
        assert done.returncode == 2
        assert "Java 17 or newer is needed; install it" in done.stderr
        assert done.stderr.count("\n") == 1
