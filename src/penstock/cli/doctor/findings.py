"""What a check found, how bad that is, and what mends it."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from penstock.errors import PenstockError

__all__ = ["CheckResult", "Finding", "bad", "healthy", "ok", "refused", "shown", "warn"]


class CheckResult(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARN = "warn"
    """It works, or will when something that is meant to run does; somebody should know."""
    BAD = "bad"
    """It cannot work like this."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The answer of one check. Nothing in it is a secret."""

    name: str
    verdict: CheckResult
    what: str
    remedy: str = ""


def ok(name: str, what: str) -> Finding:
    """All is well."""
    return Finding(name, CheckResult.OK, what)


def warn(name: str, what: str, remedy: str) -> Finding:
    """Somebody should know."""
    return Finding(name, CheckResult.WARN, what, remedy)


def bad(name: str, what: str, remedy: str) -> Finding:
    """It cannot work like this."""
    return Finding(name, CheckResult.BAD, what, remedy)


def refused(name: str, error: PenstockError) -> Finding:
    """What an error says: its messages end with the remedy."""
    what, _, remedy = str(error).rpartition("; ")
    return bad(name, what or remedy, remedy if what else "see docs/configuration.md")


def healthy(findings: Iterable[Finding]) -> bool:
    """Whether nothing is bad."""
    return all(each.verdict is not CheckResult.BAD for each in findings)


def shown(finding: Finding) -> dict[str, Any]:
    """As JSON has it."""
    return {
        "name": finding.name,
        "verdict": finding.verdict.value,
        "what": finding.what,
        "remedy": finding.remedy,
    }
