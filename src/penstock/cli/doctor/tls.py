"""Checks TLS files: readable, matching, and valid for some time; and who can read files with secrets."""

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

from penstock.changefeeds.sink_uri import mask_uri
from penstock.cli.doctor.findings import Finding, bad, from_error, ok, warn
from penstock.clock import SYSTEM, Clock
from penstock.errors import Invalid
from penstock.secret_masks import is_secret
from penstock.settings import ServerTlsSettings, Settings, TlsSettings
from penstock.settings.network import read_token

__all__ = [
    "check_certificates",
    "check_config_file",
    "check_secret_files",
    "check_token_file",
    "find_literal_secrets",
    "judge_mode",
    "judge_validity",
    "tls_sections",
    "validity_periods",
]


_SOON = timedelta(days=14)

Section = TlsSettings | ServerTlsSettings


def tls_sections(settings: Settings) -> Iterator[tuple[str, Section]]:
    """Yield the sections of the settings with TLS files, with their keys."""
    sections: dict[str, Section | None] = {
        "tls": settings.tls,
        "store.tls": settings.store.tls,
        "capture.flight_tls": settings.capture.flight_tls,
        "capture.flight_client_tls": settings.capture.flight_client_tls,
        "api.tls": settings.api.tls,
    }
    yield from ((key, section) for key, section in sections.items() if section is not None)


def check_certificates(key: str, section: Section, *, clock: Clock = SYSTEM) -> list[Finding]:
    """Return a finding for each file of certificates, and one for a key that does not match."""
    now = datetime.fromtimestamp(clock.wall_ms() / 1000, UTC)
    files = {"ca_path": section.ca_path, "cert_path": section.cert_path}
    findings = [
        _check_validity(f"{key}.{name}", path, now) for name, path in files.items() if path is not None
    ]
    if section.cert_path is not None and section.key_path is not None:
        findings += _check_key(f"{key}.key_path", section.cert_path, section.key_path)
    return findings


def _check_validity(key: str, path: Path, now: datetime) -> Finding:
    try:
        periods = validity_periods(path.read_bytes())
    except OSError as error:
        return bad(key, f"{path} cannot be read ({error.strerror})", f"put the file there, or change {key}")
    except ValueError:
        return bad(key, f"{path} has no certificate in PEM format", f"write one to it, or change {key}")
    return judge_validity(key, path, periods, now)


def validity_periods(pem: bytes) -> list[tuple[datetime, datetime]]:
    """Return the validity period of each certificate in a PEM file; raise ValueError when there is none."""
    with warnings.catch_warnings():  # old authorities in system bundles have the serial number 0
        warnings.simplefilter("ignore", CryptographyDeprecationWarning)
        certificates = x509.load_pem_x509_certificates(pem)
    return [(cert.not_valid_before_utc, cert.not_valid_after_utc) for cert in certificates]


def judge_validity(
    key: str, path: Path, periods: Sequence[tuple[datetime, datetime]], now: datetime
) -> Finding:
    """Judge whether all certificates of a file are valid now, and for two more weeks."""
    begin, end = max(period[0] for period in periods), min(period[1] for period in periods)
    if now < begin:
        what = f"{path} is not valid before {begin:%Y-%m-%d %H:%M} UTC"
        return bad(key, what, "correct the machine's clock, or issue another certificate")
    if now >= end:
        return bad(key, f"{path} has expired at {end:%Y-%m-%d %H:%M} UTC", "issue another certificate")
    what = f"{path} is valid until {end:%Y-%m-%d}"
    return ok(key, what) if end - now > _SOON else warn(key, what, "issue another certificate soon")


def _check_key(key: str, cert_path: Path, key_path: Path) -> list[Finding]:
    """Return what is wrong with a private key; nothing when it matches its certificate."""
    if not cert_path.is_file():
        return []  # reported already
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(cert_path, key_path, password=lambda: "")
    except ssl.SSLError:
        what = f"{key_path} is not the key of the certificate {cert_path}, or has a password"
        return [bad(key, what, f"set {key} to the matching key without a password")]
    except OSError as error:
        return [bad(key, f"{key_path} cannot be read ({error.strerror})", f"check its permissions, or {key}")]
    return []


_OTHERS, _GROUP = stat.S_IRWXO, stat.S_IRWXG
_OPTION_TABLES = ("storage_options", "headers")


def check_secret_files(settings: Settings) -> list[Finding]:
    """Return a finding for every file with a private key or a token."""
    findings = [
        _check_mode(f"{key}.key_path", section.key_path)
        for key, section in tls_sections(settings)
        if section.key_path is not None
    ]
    tokens = {"capture.flight_token_path": settings.capture.flight_token_path} | {
        f"api.accounts.{name}.token_path": account.token_path
        for name, account in settings.api.accounts.items()
    }
    return findings + [check_token_file(key, path) for key, path in tokens.items() if path is not None]


def check_token_file(key: str, path: Path) -> Finding:
    """Check that a token can be read from its file, and who else can read it."""
    try:
        read_token(None, path, key=key)
    except Invalid as error:
        return from_error(key, error)
    return _check_mode(key, path)


def check_config_file(path: Path) -> list[Finding]:
    """Check who can read a settings file that contains secrets."""
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
        mode = path.stat().st_mode
    except (OSError, ValueError, yaml.YAMLError):  # loading the settings reports it
        return []
    secrets = sorted(find_literal_secrets(tree))
    if not secrets or not mode & (_OTHERS | _GROUP):
        return []
    what = f"{path} contains {secrets[0]}, and others can read it (mode {stat.S_IMODE(mode):03o})"
    return [warn("settings", what, f"chmod 600 {path}, or take it from the environment with ${{NAME}}")]


def find_literal_secrets(tree: Any, key: str = "") -> Iterator[str]:
    """Yield the keys of a settings tree whose values are secrets and do not come from the environment."""
    if isinstance(tree, dict):
        for name, value in tree.items():
            inner = f"{key}.{name}" if key else str(name)
            of_options = key.rpartition(".")[2] in _OPTION_TABLES
            if isinstance(value, str):
                if _is_literal_secret(str(name), value, of_options=of_options):
                    yield inner
            else:
                yield from find_literal_secrets(value, inner)
    elif isinstance(tree, list):
        for number, value in enumerate(tree):
            yield from find_literal_secrets(value, f"{key}.{number}")


def _is_literal_secret(name: str, value: str, *, of_options: bool) -> bool:
    if "${" in value or name.endswith("_path"):
        return False
    if name == "sink_uri":
        return mask_uri(value) != mask_uri(value.partition("?")[0]) and "***" in mask_uri(value)
    return is_secret(name) if of_options else name in {"token", "flight_token"}


def _check_mode(key: str, path: Path) -> Finding:
    try:
        mode = path.stat().st_mode
    except OSError as error:
        return bad(key, f"{path} cannot be read ({error.strerror})", f"put the file there, or change {key}")
    return judge_mode(key, path, mode)


def judge_mode(key: str, path: Path, mode: int) -> Finding:
    """Judge who can read a file: only its owner should."""
    what = f"{path} has mode {stat.S_IMODE(mode):03o}"
    if mode & _OTHERS:
        return bad(key, f"{what}: every user of the machine can read it", f"chmod 600 {path}")
    if mode & _GROUP:
        return warn(key, f"{what}: its group can read it", f"chmod 600 {path}, unless that is intended")
    return ok(key, what)
