"""A capture as a process of its own, for tests that crash it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from support.command import ServiceProcess
from support.warmstart import shared_start

__all__ = ["CaptureProcess"]


class CaptureProcess(ServiceProcess):
    """`penstock capture` as a child process. As a context manager it ends the process.

    Unless the settings say where, its tokens are below `folder`; who reads its rows needs the same settings.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        config = folder / "penstock.yaml"
        warm = shared_start("penstock.cli.services.capture")
        super().__init__(folder / "capture.log", "capture", "--config", str(config), warm=warm)
        config.write_text(yaml.safe_dump({"secrets_dir": str(folder / "secrets"), **settings}))

    @property
    def flight_addr(self) -> str:
        """Where its Flight service listens."""
        addr: str = self.ready["flight"]
        return addr

    @property
    def tables(self) -> list[int]:
        """Ids of the tables that it had when it was ready."""
        tables: list[int] = self.ready["tables"]
        return tables
