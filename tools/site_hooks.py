"""What mkdocs does beyond its configuration: decisions in the navigation, the changelog as a page."""

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
_IN_DOCS = re.compile(r"\]\(docs/")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Name every decision where the navigation has their folder: `adr/`."""
    docs = Path(config.docs_dir)
    config.nav = _expanded(config.nav or [], docs)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Make the changelog a page; its links lead from the repository's root."""
    text = _IN_DOCS.sub("](", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    files.append(File.generated(config, "changelog.md", content=text))
    return files


def _expanded(entries: list[Any], docs: Path) -> list[Any]:
    return [_entry(entry, docs) for entry in entries]


def _entry(entry: Any, docs: Path) -> Any:
    if isinstance(entry, dict):
        return {title: _entry(value, docs) for title, value in entry.items()}
    if isinstance(entry, list):
        return _expanded(entry, docs)
    if entry.endswith("/"):
        return [path.relative_to(docs).as_posix() for path in sorted((docs / entry).glob("*.md"))]
    return entry
