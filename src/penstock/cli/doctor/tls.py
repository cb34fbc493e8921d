"""TLS files: whether they can be read, fit together, and are valid for some time to come.

Files with secrets: whether others can read them.
"""

import ssl
import stat
import warnings
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml
from cryptography import x509
from cryptography.utils import CryptographyDeprecationWarning

from penstock.changefeeds.sink_uri import is_secret, mask_uri
from penstock.cli.doctor.findings import Finding, bad, ok, refused, warn
from penstock.clock import SYSTEM, Clock
from penstock.errors import Invalid
from penstock.settings import ServerTlsSettings, Settings, TlsSettings
from penstock.settings.network import read_token

__all__ = [
    "certificates",
    "config_file",
    "judge_mode",
    "judge_validity",
    "literal_secrets",
    "periods",
    "secret_files",
    "tls_sections",
    "token_file",
]


_SOON = timedelta(days=14)

Section = TlsSettings | ServerTlsSettings


def tls_sections(settings: Settings) -> Iterator[tuple[str, Section]]:
    """The sections of the settings that name TLS files, by their keys."""
    sections: dict[str, Section | None] = {
        "tls": settings.tls,
        "store.tls": settings.store.tls,
        "capture.flight_tls": settings.capture.flight_tls,
        "capture.flight_client_tls": settings.capture.flight_client_tls,
        "api.tls": settings.api.tls,
    }
    yield from ((key, section) for key, section in sections.items() if section is not None)


def certificates(key: str, section: Section, *, clock: Clock = SYSTEM) -> list[Finding]:
    """One finding for each file of certificates, and one for a key that does not fit."""
    now = datetime.fromtimestamp(clock.wall_ms() / 1000, UTC)
    named = {"ca_path": section.ca_path, "cert_path": section.cert_path}
    found = [_valid(f"{key}.{name}", path, now) for name, path in named.items() if path is not None]
    if section.cert_path is not None and section.key_path is not None:
        found += _fitting(f"{key}.key_path", section.cert_path, section.key_path)
    return found


def _valid(key: str, path: Path, now: datetime) -> Finding:
    try:
        found = periods(path.read_bytes())
    except OSError as error:
        return bad(key, f"{path} cannot be read ({error.strerror})", f"put the file there, or change {key}")
    except ValueError:
        return bad(key, f"{path} has no certificate in PEM", f"put one there, or change {key}")
    return judge_validity(key, path, found, now)


def periods(pem: bytes) -> list[tuple[datetime, datetime]]:
    """From when to when each certificate of a PEM file is valid; ValueError when there is none."""
    with warnings.catch_warnings():  # old authorities of system bundles have serial numbers of zero
        warnings.simplefilter("ignore", CryptographyDeprecationWarning)
        found = x509.load_pem_x509_certificates(pem)
    return [(each.not_valid_before_utc, each.not_valid_after_utc) for each in found]


def judge_validity(
    key: str, path: Path, found: Sequence[tuple[datetime, datetime]], now: datetime
) -> Finding:
    """Whether all certificates of a file are valid now, and for two weeks to come."""
    begin, end = max(each[0] for each in found), min(each[1] for each in found)
    if now < begin:
        what = f"{path} is not valid before {begin:%Y-%m-%d %H:%M} UTC"
        return bad(key, what, "set the machine's clock right, or issue another certificate")
    if now >= end:
        return bad(key, f"{path} has expired at {end:%Y-%m-%d %H:%M} UTC", "issue another certificate")
    what = f"{path} is valid until {end:%Y-%m-%d}"
    return ok(key, what) if end - now > _SOON else warn(key, what, "issue another certificate soon")


def _fitting(key: str, cert_path: Path, key_path: Path) -> list[Finding]:
    """What is wrong with a key."""
    if not cert_path.is_file():
        return []  # said already
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(cert_path, key_path, password=lambda: "")
    except ssl.SSLError:
        what = f"{key_path} is no key of the certificate {cert_path}, or has a password"
        return [bad(key, what, f"give the key that belongs to it, without one, as {key}")]
    except OSError as error:
        return [bad(key, f"{key_path} cannot be read ({error.strerror})", f"check its rights, or {key}")]
    return []


_OTHERS, _GROUP = stat.S_IRWXO, stat.S_IRWXG
_OPTION_TABLES = ("storage_options", "headers")


def secret_files(settings: Settings) -> list[Finding]:
    """A finding for every file of a key or token."""
    found = [
        _mode(f"{key}.key_path", section.key_path)
        for key, section in tls_sections(settings)
        if section.key_path is not None
    ]
    tokens = {"capture.flight_token_path": settings.capture.flight_token_path} | {
        f"api.accounts.{name}.token_path": account.token_path
        for name, account in settings.api.accounts.items()
    }
    return found + [token_file(key, path) for key, path in tokens.items() if path is not None]


def token_file(key: str, path: Path) -> Finding:
    """Whether a token can be read from its file, and who else can."""
    try:
        read_token(None, path, key=key)
    except Invalid as error:
        return refused(key, error)
    return _mode(key, path)


def config_file(path: Path) -> list[Finding]:
    """Who can read a settings file that has secrets in it."""
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
        mode = path.stat().st_mode
    except (OSError, ValueError, yaml.YAMLError):  # who loads the settings says so
        return []
    secrets = sorted(literal_secrets(tree))
    if not secrets or not mode & (_OTHERS | _GROUP):
        return []
    what = f"{path} has {secrets[0]} in it, and others can read it (mode {stat.S_IMODE(mode):03o})"
    return [warn("settings", what, f"chmod 600 {path}, or take it from the environment with ${{NAME}}")]


def literal_secrets(tree: Any, key: str = "") -> Iterator[str]:
    """The keys of a settings tree whose values are secrets, and are not taken from the environment."""
    if isinstance(tree, dict):
        for name, value in tree.items():
            inner = f"{key}.{name}" if key else str(name)
            of_options = key.rpartition(".")[2] in _OPTION_TABLES
            if isinstance(value, str):
                if _is_literal_secret(str(name), value, of_options=of_options):
                    yield inner
            else:
                yield from literal_secrets(value, inner)
    elif isinstance(tree, list):
        for number, value in enumerate(tree):
            yield from literal_secrets(value, f"{key}.{number}")


def _is_literal_secret(name: str, value: str, *, of_options: bool) -> bool:
    if "${" in value or name.endswith("_path"):
        return False
    if name == "sink_uri":
        return mask_uri(value) != mask_uri(value.partition("?")[0]) and "***" in mask_uri(value)
    return is_secret(name) if of_options else name in {"token", "flight_token"}


def _mode(key: str, path: Path) -> Finding:
    try:
        mode = path.stat().st_mode
    except OSError as error:
        return bad(key, f"{path} cannot be read ({error.strerror})", f"put the file there, or change {key}")
    return judge_mode(key, path, mode)


def judge_mode(key: str, path: Path, mode: int) -> Finding:
    """Who can read a file: its owner should, and nobody else."""
    what = f"{path} has mode {stat.S_IMODE(mode):03o}"
    if mode & _OTHERS:
        return bad(key, f"{what}: every user of the machine can read it", f"chmod 600 {path}")
    if mode & _GROUP:
        return warn(key, f"{what}: its group can read it", f"chmod 600 {path}, unless that is meant")
    return ok(key, what)
