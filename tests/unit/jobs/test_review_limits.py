"""What one job says must not stop the others, nor the command that asks for it."""

import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.control import jobs
from penstock.durations import parse_duration
from penstock.errors import Invalid
from penstock.jobs.consumer import find_consumer
from penstock.jobs.runner.custom_triggers import find_trigger
from penstock.jobs.runner.tracked_job import TriggerRule
from penstock.jobs.spec import JobSpec

AGES = "9" * 400 + "d"


@pytest.mark.parametrize(
    "tree",
    [
        {"trigger": {"job_type": "periodic", "schedule": {"interval": AGES}}},
        {"detail": {"span": AGES}},
    ],
)
def test_a_duration_that_no_clock_reaches_is_refused(tree: dict[str, Any]) -> None:
    with pytest.raises(Invalid, match="longer than"):
        TriggerRule.of(JobSpec.parse(tree))


def test_long_durations_are_durations() -> None:
    assert parse_duration("3650d") == 3650 * 86400


@pytest.mark.parametrize("broken", ["raise RuntimeError('no')", "def f(:", "1 / 0"])
def test_a_module_that_cannot_be_imported_is_told_whatever_it_raises(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_by_its_author.py").write_text(broken)
    monkeypatch.syspath_prepend(tmp_path)
    for find in (find_consumer, find_trigger):
        with pytest.raises(Invalid, match="broken_by_its_author"):
            find("broken_by_its_author:Thing", ("broken_by_its_author",))
    sys.modules.pop("broken_by_its_author", None)


@pytest.mark.parametrize("name", [".relative:Thing", ":Thing", "..:Thing"])
def test_names_that_are_no_modules_are_told(name: str) -> None:
    for find in (find_consumer, find_trigger):
        with pytest.raises(Invalid):
            find(name, ("relative",))


def test_a_spec_file_that_is_no_text_is_told(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_bytes(b"\xff\xfe\x00trigger")
    with pytest.raises(Invalid, match=r"spec\.yaml is not valid"):
        jobs.read_spec(path, {})
