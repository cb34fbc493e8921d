"""What documentation imports: the names that a user starts with, and few packages beside them."""

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import penstock

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
FIRST = [ROOT / "README.md", DOCS / "quickstart.md", *sorted((DOCS / "guides").glob("*.md"))]
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md")), *sorted((DOCS / "guides").glob("*.md"))]
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
INDENTED = re.compile(r"^    (from penstock[.\w]* import .*)$", re.MULTILINE)
NAMED = re.compile(r"`(penstock(?:[.]\w+){2,})\b")
FIRST_PLACES = {
    "penstock": "what a user starts with",
    "penstock.errors": "what calls raise",
    "penstock.jobs": "what consumers and triggers are written with",
}
"""What README and guides import from: whatever else they need belongs there."""
PLACES = {
    **FIRST_PLACES,
    "penstock.changefeeds": "reading a directory of changes",
    "penstock.consumers": "what consumers of one's own share with ours",
    "penstock.spark": "a session of one's own",
    "penstock.tables": "defining tables",
    "penstock.verify": "verifying and repairing targets",
}
"""What the other pages import from, or name."""
DOUBLES = "penstock.testing"
"""Each of its modules is public."""
SECTIONS = ROOT / "docs" / "guarantees.md"
"""It names packages, for what they promise."""


def imports_of(page: Path) -> Iterator[tuple[str, str]]:
    """Each module of ours from which a page imports a name, and the name."""
    text = page.read_text()
    for program in (*PYTHON.findall(text), *INDENTED.findall(text)):
        for node in ast.walk(ast.parse(program)):
            if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == "penstock":
                yield from ((str(node.module), each.name) for each in node.names)
            elif isinstance(node, ast.Import):
                assert not any(each.name.startswith("penstock.") for each in node.names), page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_import_in_documentation_works(page: Path) -> None:
    for module, name in imports_of(page):
        assert hasattr(import_module(module), name), f"{page.name}: from {module} import {name}"


def test_pages_import_from_few_places_and_what_is_public_from_the_first() -> None:
    found = [(page, *each) for page in PAGES for each in imports_of(page)]
    assert len(found) > 60
    for page, module, name in found:
        places = FIRST_PLACES if page in FIRST else PLACES
        assert module in places, f"{page}: from {module} import {name}"
        assert (module == "penstock") == (name in penstock.__all__), f"{page}: from {module} import {name}"


@pytest.mark.parametrize(
    "page", sorted({*PAGES} - {SECTIONS, DOCS / "architecture.md"}), ids=lambda page: page.stem
)
def test_names_in_the_text_are_public_too(page: Path) -> None:
    for name in NAMED.findall(page.read_text()):
        place, _, last = name.rpartition(".")
        assert place in PLACES or place.startswith(DOUBLES), f"{page.name}: {name}"
        assert hasattr(import_module(place), last), f"{page.name}: {name} is not there"


@pytest.mark.parametrize("place", sorted(PLACES))
def test_what_a_place_offers_is_there(place: str) -> None:
    module = import_module(place)
    assert all(hasattr(module, name) for name in module.__all__)
