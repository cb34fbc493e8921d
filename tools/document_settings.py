"""Write the tables of docs/configuration.md from the settings: `python tools/document_settings.py`."""

import re
import sys
from pathlib import Path

from pydantic import BaseModel

from penstock.settings import KvSettings, StoreSettings

PAGE = Path(__file__).parent.parent / "docs" / "configuration.md"
TABLES = {"kv": KvSettings, "store": StoreSettings}


def table(model: type[BaseModel]) -> str:
    """The rows of one section: key, default, meaning."""
    rows = [
        f"| `{name}` | `{'none' if field.default is None else str(field.default).lower()}` | {field.description} |"
        for name, field in model.model_fields.items()
    ]
    return "\n".join(["| key | default | meaning |", "|---|---|---|", *rows])


def render(page: str) -> str:
    """Return the page with every table made anew."""
    for section, model in TABLES.items():
        pattern = rf"(?<=<!-- {section} -->\n).*?(?=\n<!-- end -->)"
        page = re.sub(pattern, table(model).replace("\\", r"\\"), page, flags=re.DOTALL)
    return page


if __name__ == "__main__":
    written = render(PAGE.read_text())
    if "--check" in sys.argv:
        sys.exit(
            0 if written == PAGE.read_text() else "docs/configuration.md is out of date; run 'make docs'"
        )
    PAGE.write_text(written)
