"""Bearer tokens: from the settings, or from a file."""

import re
from pathlib import Path

from pydantic import SecretStr

from penstock.errors import Invalid

_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{16,}")
_BAD_BEARER = "a token has at least 16 characters, of letters, digits and -._~+/="


def check_token(token: SecretStr | None) -> SecretStr | None:
    """Return a token that fits a header; raise ValueError for another."""
    if token is not None and not _TOKEN.fullmatch(token.get_secret_value()):
        raise ValueError(_BAD_BEARER)
    return token


def read_token(token: SecretStr | None, path: Path | None, *, key: str) -> SecretStr | None:
    """Return the token of either source; raise Invalid when its file, which `key` names, cannot be used."""
    if path is None:
        return token
    try:
        text = path.read_text(encoding="ascii", errors="replace").strip()
    except OSError as error:
        raise Invalid(f"token file {path} cannot be read ({error.strerror}); check {key}") from error
    if not _TOKEN.fullmatch(text):
        raise Invalid(f"token file {path} is refused: {_BAD_BEARER}")
    return SecretStr(text)
