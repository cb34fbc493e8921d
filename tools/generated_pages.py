"""Generated pages of the documentation: write them, or with `--check` compare them."""

import sys
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"


def write_or_check(name: str, text: str) -> None:
    """Write a page; with --check, exit with an error when the page on disk is out of date."""
    page = DOCS / name
    if "--check" not in sys.argv:
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text, encoding="utf-8")
    elif not page.exists() or page.read_text(encoding="utf-8") != text:
        sys.exit(f"run 'make docs': docs/{name} is out of date")


def escape_cell(text: str) -> str:
    """Return a text for a table cell: one line, with escaped bars."""
    return " ".join(text.split()).replace("|", "\\|")
