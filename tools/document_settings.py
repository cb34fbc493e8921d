"""Write the tables of docs/configuration.md from the settings: `python tools/document_settings.py`."""

import sys
from pathlib import Path

from pydantic import BaseModel

from penstock.settings import (
    CaptureSettings,
    ChangefeedSettings,
    ColumnSelectorSettings,
    JobsSettings,
    KvSettings,
    PoolSettings,
    PullerSettings,
    RowFilterSettings,
    ServerTlsSettings,
    SparkSettings,
    StoreSettings,
    TlsSettings,
    UpkeepSettings,
)

PAGE = Path(__file__).parent.parent / "docs" / "configuration.md"
TABLES = {
    "tls": TlsSettings,
    "kv": KvSettings,
    "store": StoreSettings,
    "store.tls": ServerTlsSettings,
    "puller": PullerSettings,
    "capture": CaptureSettings,
    "capture.upkeep": UpkeepSettings,
    "spark": SparkSettings,
    "spark.pools": PoolSettings,
    "changefeeds": ChangefeedSettings,
    "changefeeds.column_selectors": ColumnSelectorSettings,
    "changefeeds.row_filters": RowFilterSettings,
    "jobs": JobsSettings,
}


def table(model: type[BaseModel]) -> str:
    """The rows of one section: key, default, meaning."""
    rows = ["| key | default | meaning |", "|---|---|---|"]
    for name, field in model.model_fields.items():
        default = "none" if field.default is None else str(field.default).lower()
        if isinstance(field.default, BaseModel):
            default = "see below"
        if field.is_required():
            default = "required"
        rows.append(f"| `{name}` | `{default}` | {field.description} |")
    return "\n".join(rows)


def render(page: str) -> str:
    """Return the page with every table made anew."""
    for section, model in TABLES.items():
        head, _, rest = page.partition(f"<!-- {section} -->\n")
        _, _, tail = rest.partition("\n<!-- end -->")
        page = f"{head}<!-- {section} -->\n{table(model)}\n<!-- end -->{tail}"
    return page


if __name__ == "__main__":
    written = render(PAGE.read_text())
    if "--check" in sys.argv:
        sys.exit(
            "run 'make docs': docs/configuration.md is out of date" if written != PAGE.read_text() else 0
        )
    PAGE.write_text(written)
