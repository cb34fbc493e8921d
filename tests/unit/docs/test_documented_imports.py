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
PACKAGES = {"penstock", "penstock.errors", "penstock.jobs", "penstock.spark", "penstock.tables"}
"""Those that README and guides may name; what else they need belongs there."""


def imports_of(page: Path) -> Iterator[tuple[str, str]]:
    """Each module of ours from which a page imports a name, and the name."""
    for program in PYTHON.findall(page.read_text()):
        for node in ast.walk(ast.parse(program)):
            if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == "penstock":
                yield from ((str(node.module), each.name) for each in node.names)
            elif isinstance(node, ast.Import):
                assert not any(each.name.startswith("penstock.") for each in node.names), page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_import_in_documentation_works(page: Path) -> None:
    for module, name in imports_of(page):
        assert hasattr(import_module(module), name), f"{page.name}: from {module} import {name}"


def test_readme_and_guides_import_from_few_packages_and_what_is_public_from_the_first() -> None:
    found = [(page.name, *each) for page in FIRST for each in imports_of(page)]
    assert len(found) > 20
    for page, module, name in found:
        assert module in PACKAGES, f"{page}: from {module} import {name}"
        assert (module == "penstock") == (name in penstock.__all__), f"{page}: from {module} import {name}"
