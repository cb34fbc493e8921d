"""TLS files: whether they can be read, fit together, and are valid for some time to come."""

import ssl
import warnings
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.utils import CryptographyDeprecationWarning

from penstock.cli.doctor.findings import Finding, bad, ok, warn
from penstock.clock import SYSTEM, Clock
from penstock.settings import ServerTlsSettings, Settings, TlsSettings

__all__ = ["certificates", "judge_validity", "periods", "tls_sections"]

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
