"""The tokens that a deployment makes for itself, so that its default has no open door.

They are files of `secrets_dir`, one token each, which only their owner can read: `admin.token` for the API,
`flight.token` for the captures. The first process that listens makes them. Everything that is given the
settings of the deployment finds them. Tokens and accounts in the settings come first.
"""

import os
from contextlib import suppress
from pathlib import Path

from penstock.clock import secret_token
from penstock.durable_files import make_data_directory, open_private, sync_data, sync_folder
from penstock.errors import Invalid
from penstock.settings.capture import CaptureSettings
from penstock.settings.network import is_loopback
from penstock.settings.services import AccountSettings, ApiSettings

__all__ = ["ADMIN_ACCOUNT", "ADMIN_TOKEN", "FLIGHT_TOKEN", "admin_token_path", "fill_tokens", "make_tokens"]

ADMIN_ACCOUNT = "sys"
"""The account of the admin's token: the catalog's own, which owns every database that nobody else owns."""
ADMIN_TOKEN = "admin.token"  # noqa: S105 - the name of a file
FLIGHT_TOKEN = "flight.token"  # noqa: S105 - the name of a file


def make_tokens(folder: Path) -> None:
    """Make the tokens that are missing; raise Invalid when the folder cannot be used.

    Several processes may do so at once: the first one wins.
    """
    try:
        make_data_directory(folder)
        for name in (ADMIN_TOKEN, FLIGHT_TOKEN):
            if not (folder / name).exists():
                _make_token(folder / name)
        sync_folder(folder)
    except OSError as error:
        raise Invalid(
            f"tokens cannot be kept in {folder} ({error.strerror}); check secrets_dir in the settings"
        ) from error


def _make_token(path: Path) -> None:
    """Make the file of a token, whole at once; keep the one that somebody else has made meanwhile."""
    fresh = path.with_name(f".{path.name}.{secret_token()}")
    try:
        with open_private(fresh, "xb") as file:
            file.write(f"{secret_token()}\n".encode())
            file.flush()
            sync_data(file.fileno())
        with suppress(FileExistsError):
            os.link(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)


def fill_tokens(
    folder: Path, capture: CaptureSettings, api: ApiSettings, *, make: bool = False
) -> tuple[CaptureSettings, ApiSettings]:
    """Return two sections with the deployment's own tokens where they name none; `make` those missing first.

    An address that other machines reach needs tokens in the settings, because the others do not have the
    files.
    """
    needs_flight = (
        capture.flight_token is None
        and capture.flight_token_path is None
        and is_loopback(capture.flight_addr)
    )
    needs_admin = not api.accounts and is_loopback(api.addr)
    if make and (needs_flight or needs_admin):
        make_tokens(folder)
    if needs_flight and _is_there(folder / FLIGHT_TOKEN):
        capture = capture.model_copy(update={"flight_token_path": folder / FLIGHT_TOKEN})
    if needs_admin and _is_there(folder / ADMIN_TOKEN):
        account = AccountSettings(token_path=folder / ADMIN_TOKEN, admin=True)
        api = api.model_copy(update={"accounts": {ADMIN_ACCOUNT: account}})
    return capture, api


def admin_token_path(folder: Path, api: ApiSettings) -> Path | None:
    """Return the file of the admin's token if an API of these settings accepts that one; else None."""
    account = api.accounts.get(ADMIN_ACCOUNT)
    own = folder / ADMIN_TOKEN
    return own if account is not None and account.token_path == own else None


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except PermissionError:  # somebody else's: reading the token says so
        return True
