"""What commands that answer have in common: their settings, and how they say things."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.settings import Settings

__all__ = ["load", "print_json"]


def load(config: Path | None, pd: list[str] | None) -> "Settings":
    """The settings that a command works with: of a file, or the defaults; placement drivers may be given."""
    from penstock import settings
    from penstock.settings import Settings

    loaded = settings.load(config) if config is not None else Settings()
    return loaded.model_copy(update={"pd_addrs": tuple(pd)}) if pd else loaded


def print_json(tree: Any) -> None:
    """One value, for people and machines."""
    print(json.dumps(tree, indent=2))
