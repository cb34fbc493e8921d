"""Write the tables of docs/configuration.md and docs/consumers.md from the code; `--check` compares them."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from penstock.jobs.consumer import find_consumer
from penstock.settings import (
    AccountSettings,
    ApiSettings,
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
    TracingSettings,
    UpkeepSettings,
    UpSettings,
)
from penstock.settings.frozen import field_texts

DOCS = Path(__file__).parent.parent / "docs"
SETTINGS: dict[str, type[BaseModel]] = {
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
    "api": ApiSettings,
    "api.accounts": AccountSettings,
    "up": UpSettings,
    "tracing": TracingSettings,
}
CONSUMERS = ("fulltext", "vector", "delta", "iceberg", "parquet", "postgres", "kv", "webhook")


def option_types() -> dict[str, type[BaseModel]]:
    """Return the options model of each consumer."""
    models = {f"consumer {name}": find_consumer(name).options_type for name in CONSUMERS}
    return {section: model for section, model in models.items() if model is not None}


def render_table(model: type[BaseModel], key: str) -> str:
    """Return the table of one section: key, default, meaning."""
    rows = [f"| {key} | default | meaning |", "|---|---|---|"]
    texts = field_texts(model)
    for name, field in model.model_fields.items():
        display_name = field.alias or name
        if key == "option" and get_origin(field.annotation) is dict:
            display_name = f"{display_name}.*"
        value = option_default(field) if key == "option" else default_text(field)
        rows.append(f"| `{display_name}` | `{value}` | {texts[name]} |")
    return "\n".join(rows)


def default_text(field: FieldInfo) -> str:
    """Return the default of a settings key as text."""
    if field.is_required():
        return "required"
    if isinstance(field.default, BaseModel):
        return "see below"
    return "none" if field.default is None else str(field.default).lower()


def option_default(field: FieldInfo) -> str:
    """Return the default of a consumer's option as people write it."""
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True, validated_data={})
    if value in (None, (), {}):
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def render_page(page: str, tables: Mapping[str, type[BaseModel]], key: str) -> str:
    """Return the page with every table generated again."""
    for section, model in tables.items():
        head, marker, rest = page.partition(f"<!-- {section} -->\n")
        assert marker, f"the page has no comment <!-- {section} -->"
        _, _, tail = rest.partition("\n<!-- end -->")
        page = f"{head}{marker}{render_table(model, key)}\n<!-- end -->{tail}"
    return page


if __name__ == "__main__":
    pages = {"configuration.md": (SETTINGS, "key"), "consumers.md": (option_types(), "option")}
    for name, (tables, key) in pages.items():
        before = (DOCS / name).read_text()
        written = render_page(before, tables, key)
        if "--check" not in sys.argv:
            (DOCS / name).write_text(written)
        elif written != before:
            sys.exit(f"run 'make docs': docs/{name} is out of date")
