"""The audit log: who did what, to which object, with which outcome. It has no values.

The API, captures and commands write entries: one for each change, for each read of rows over the API, and for
each caller that was refused. An entry has who it was, the action, the object and the outcome; never a query,
a filter, an option, a body or a token.
"""

import logging
import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager
from logging.handlers import WatchedFileHandler
from pathlib import Path

from penstock.durable_files import create_private
from penstock.errors import Invalid
from penstock.process import JsonFormatter
from penstock.settings import Settings

__all__ = ["audit_command", "open_audit_file", "write_entry"]

_OBJECT_CHARS = 300

_log = logging.getLogger("penstock.audit")


def write_entry(action: str, named: str | None, outcome: str, **who: object) -> None:
    """Write an entry about an object. `who` has the account, the user or the address, as they are known."""
    facts = {"action": action, "object": (named or "")[:_OBJECT_CHARS] or None, "outcome": outcome}
    _log.info("audit", extra=who | facts)


@contextmanager
def audit_command(settings: Settings, action: str, named: str | None = None) -> Iterator[None]:
    """Write an entry about what the block changes, with the user of the operating system, once it has ended.

    A command's own log is the terminal of whoever types it, so there is an entry only when the settings have
    `api.audit_path`. Raises Invalid when that file cannot be written: nothing is changed then.
    """
    if settings.api.audit_path is None:
        yield
        return
    open_audit_file(settings.api.audit_path, "command")
    outcome = "broken off"
    try:
        yield
        outcome = "done"
    except Invalid:
        outcome = "refused"
        raise
    except Exception:
        outcome = "failed"
        raise
    finally:
        write_entry(action, named, outcome, user=_user())


def _user() -> str:
    """Return the real user of this process: unlike the environment, the caller cannot choose it."""
    number = os.getuid()
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def open_audit_file(path: Path, part: str) -> None:
    """Append this part's entries to a file of this user, one JSON object per line, and to nothing else.

    Several processes may append to it, and it may be moved away at any time, as logrotate does: the next
    entry begins a new one. Raises Invalid when it cannot be written.
    """
    try:
        if not path.exists():
            create_private(path)
        handler = WatchedFileHandler(path, encoding="utf-8")
    except OSError as error:
        raise Invalid(
            f"the audit log {path} cannot be written ({error.strerror}); check api.audit_path"
        ) from error
    handler.setFormatter(JsonFormatter(part))
    for former in _log.handlers:
        former.close()
    _log.handlers = [handler]
    _log.setLevel(logging.INFO)
    _log.propagate = False
