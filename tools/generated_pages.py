"""Pages of the documentation that are made of the code: written, or compared with what there is."""

import sys
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"


def settle(name: str, text: str) -> None:
    """Write a page, or with --check end with what to do when it is not what the code says."""
    page = DOCS / name
    if "--check" not in sys.argv:
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text, encoding="utf-8")
    elif not page.exists() or page.read_text(encoding="utf-8") != text:
        sys.exit(f"run 'make docs': docs/{name} is out of date")


def cell(text: str) -> str:
    """Text for a cell of a table: one line, without a sign that would end the cell."""
    return " ".join(text.split()).replace("|", "\\|")
