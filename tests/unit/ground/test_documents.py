"""The documents name only what is there."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent.parent


def test_the_tests_behind_the_guarantees_exist() -> None:
    page = (ROOT / "docs" / "guarantees.md").read_text()
    named = {path for path in re.findall(r"`([\w/]+/[\w/]*(?:\.py)?)`", page) if path != "tests/"}
    assert len(named) > 5
    missing = sorted(path for path in named if not (ROOT / "tests" / path).exists())
    assert missing == []


def test_the_links_between_documents_lead_somewhere() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    broken = [
        f"{page.name}: {target}"
        for page in pages
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())
        if not (page.parent / target).exists()
    ]
    assert broken == []


def test_the_readme_stays_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 120
