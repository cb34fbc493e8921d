"""What commands that answer have in common: their settings, and how they say things."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from penstock.settings import Settings

__all__ = ["MetricsAddr", "load", "print_json"]

MetricsAddr = Annotated[
    str | None, typer.Option(help="Where to show metrics, as in 127.0.0.1:9100; port 0 takes a free one.")
]


def load(config: Path | None, pd: list[str] | None = None, *, metrics_addr: str | None = None) -> "Settings":
    """The settings that a command works with: of a file, or the defaults; what is given comes first."""
    from penstock import settings
    from penstock.settings import Settings

    loaded = settings.load(config) if config is not None else Settings()
    given: dict[str, Any] = {"pd_addrs": tuple(pd)} if pd else {}
    if metrics_addr is not None:
        given["metrics_addr"] = metrics_addr
    return loaded.model_copy(update=given)


def print_json(tree: Any) -> None:
    """One value, for people and machines."""
    print(json.dumps(tree, indent=2))
