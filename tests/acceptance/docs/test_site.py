"""The documentation as a site: it builds, needs nothing from elsewhere, and leads nowhere wrong."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent.parent
GUARANTEES = ROOT / "docs" / "guarantees.md"
_LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)(?:#[^)]*)?\)")
_LOADED = re.compile(
    r"<(?:script|img|iframe|source)[^>]*\ssrc=\"?(?:https?:)?//|<link[^>]*\shref=\"?(?:https?:)?//"
)
_PROOF = re.compile(
    r"`((?:unit|scenarios|properties|security|simulation|integration|acceptance|judges)/[\w./-]+)`"
)
_TEST = re.compile(r"`(test_\w+)`")


def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {path.relative_to(tmp_path).as_posix(): path.read_text() for path in tmp_path.rglob("*.html")}
    assert {"index.html", "quickstart.html", "reference/cli.html", "changelog.html"} <= pages.keys()
    assert "<table>" in pages["configuration.html"], "comments around tables hide them"
    assert [name for name, text in pages.items() if _LOADED.search(text)] == []


@pytest.mark.parametrize("name", ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"])
def test_links_of_the_pages_outside_of_the_site_lead_somewhere(name: str) -> None:
    links = _LINK.findall((ROOT / name).read_text())
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_promise_names_tests_that_exist() -> None:
    text = GUARANTEES.read_text()
    missing = [path for path in _PROOF.findall(text) if not (ROOT / "tests" / path).exists()]
    assert missing == []
    known = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    assert [name for name in _TEST.findall(text) if name not in known] == []
    rows = [line for line in text.splitlines() if line.startswith("| ") and "|---" not in line]
    promises = [line for line in rows if not line.startswith("| promise ")]
    assert [line for line in promises if not (_PROOF.search(line) or "the same" in line)] == []
