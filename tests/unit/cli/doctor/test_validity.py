"""Dates of certificates, read from their files."""

import datetime as dt
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from penstock.cli.doctor.tls import validity_periods
from support.certificates import issue


def made(begin: dt.datetime, end: dt.datetime) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "penstock")])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(7).not_valid_before(begin).not_valid_after(end)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


@pytest.mark.parametrize(("first", "last"), [(1999, 2001), (2020, 2049), (2049, 2050), (2060, 2161)])
def test_dates_are_those_that_were_written(first: int, last: int) -> None:
    begin = dt.datetime(first, 2, 3, 4, 5, 6, tzinfo=dt.UTC)
    end = dt.datetime(last, 12, 31, 23, 59, 59, tzinfo=dt.UTC)
    assert validity_periods(made(begin, end)) == [(begin, end)]


def test_every_certificate_of_a_file_is_read(tmp_path: Path) -> None:
    authority = issue(tmp_path, "authority")
    server = issue(tmp_path, "server", authority)
    text = authority.cert_path.read_bytes() + b"some words\n" + server.cert_path.read_bytes()
    expected = authority.certificate.not_valid_after_utc
    assert [end for _, end in validity_periods(text)] == [expected, expected]


def test_an_old_authority_without_a_serial_number_is_read_without_a_warning() -> None:
    begin, end = dt.datetime(2020, 1, 1, tzinfo=dt.UTC), dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
    serial, zero = b"\x02\x01\x07", b"\x02\x01\x00"
    old = ssl.PEM_cert_to_DER_cert(made(begin, end).decode()).replace(serial, zero, 1)
    assert validity_periods(ssl.DER_cert_to_PEM_cert(old).encode()) == [(begin, end)]


@pytest.mark.parametrize(
    "text",
    [b"", b"no certificate", b"-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----"],
)
def test_what_is_no_certificate_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        validity_periods(text)


def test_a_certificate_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    lines = issue(tmp_path, "authority").cert_path.read_bytes().splitlines()
    with pytest.raises(ValueError, match=r"\w"):
        validity_periods(b"\n".join([*lines[:2], lines[-1]]))
