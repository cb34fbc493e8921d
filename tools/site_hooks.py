"""Hooks of mkdocs: list the decisions in the navigation, and add the changelog as a page."""

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
_IN_DOCS = re.compile(r"\]\(docs/")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Replace the folder `adr/` in the navigation with every decision in it."""
    docs = Path(config.docs_dir)
    config.nav = _expand_entries(config.nav or [], docs)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the changelog as a page, with its links relative to the docs folder."""
    text = _IN_DOCS.sub("](", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    files.append(File.generated(config, "changelog.md", content=text))
    return files


def _expand_entries(entries: list[Any], docs: Path) -> list[Any]:
    return [_expand_entry(entry, docs) for entry in entries]


def _expand_entry(entry: Any, docs: Path) -> Any:
    if isinstance(entry, dict):
        return {title: _expand_entry(value, docs) for title, value in entry.items()}
    if isinstance(entry, list):
        return _expand_entries(entry, docs)
    if entry.endswith("/"):
        return [path.relative_to(docs).as_posix() for path in sorted((docs / entry).glob("*.md"))]
    return entry
