"""`penstock up` in the foreground."""

import sys
from pathlib import Path

from penstock import process, settings
from penstock.cli.signals import run_until_signalled
from penstock.cli.up.display import Display, LogDisplay, TerminalDisplay
from penstock.cli.up.parts import under
from penstock.cli.up.supervisor import Supervisor
from penstock.settings import Settings

__all__ = ["serve", "up_settings"]


def up_settings(config: Path | None, data: Path | None) -> Settings:
    """The settings of a file, or the defaults; folders that they do not choose are put under `data`.

    Raises Invalid for a value that is refused.
    """
    loaded = settings.load(config) if config is not None else Settings()
    return under(loaded, data) if data is not None else loaded


def serve(settings: Settings, *, log_format: str, log_level: str | None) -> None:
    """Run a deployment until SIGTERM or SIGINT, then stop it; the next signal ends it at once.

    On a terminal it tells people what happens, and parts say what is wrong only, unless `log_level` asks for
    more. Elsewhere it logs, and prints one line of JSON when everything is ready. Raises Invalid when
    another `penstock up` has the folder.
    """
    watched = sys.stdout.isatty()
    level = log_level or ("WARNING" if watched else "INFO")
    process.configure(style=log_format, level=level)
    display: Display = TerminalDisplay() if watched else LogDisplay(announce=True)
    supervisor = Supervisor(settings, log_format=log_format, log_level=level, display=display)
    run_until_signalled(supervisor.run())
