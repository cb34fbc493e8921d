"""What a part is told when it starts: one line of JSON on its standard input, secrets and all."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from penstock import settings as settings_
from penstock.control.part_states import PartKind
from penstock.errors import Invalid
from penstock.settings import Settings

__all__ = ["STOP", "ServiceConfig"]

STOP = b"stop\n"
"""What a supervisor writes before it ends a part's input; without it, the supervisor is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceConfig:
    """What to run, and how to log. It holds secrets: a pipe may carry it, a disk or command line may not."""

    kind: PartKind
    settings: Settings
    log_format: str = "text"
    log_level: str = "INFO"

    def line(self) -> bytes:
        """As it goes over the pipe."""
        tree = {
            "kind": self.kind,
            "settings": _revealed(self.settings.model_dump(exclude_unset=True)),
            "log_format": self.log_format,
            "log_level": self.log_level,
        }
        return json.dumps(tree).encode() + b"\n"

    @classmethod
    def parse(cls, line: bytes) -> "ServiceConfig":
        """Read a line; raise Invalid for what is none, with nothing of what it says."""
        try:
            tree = json.loads(line)
            kind, settings = PartKind(tree["kind"]), tree["settings"]
            log_format, log_level = str(tree["log_format"]), str(tree["log_level"])
        except (ValueError, KeyError, TypeError):
            raise Invalid("standard input has no order; parts are started by `penstock up`") from None
        parsed = settings_.parse(settings, origin="the order of penstock up")
        return cls(kind=kind, settings=parsed, log_format=log_format, log_level=log_level)


def _revealed(value: Any) -> Any:
    """A tree of settings as JSON has it, with its secrets in clear."""
    if isinstance(value, dict):
        return {key: _revealed(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_revealed(each) for each in value]
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    return str(value) if isinstance(value, Path) else value
