"""Dates of certificates, read from their bytes."""

import datetime as dt
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from penstock.app.doctor.validity import periods
from support.certificates import issue


def made(begin: dt.datetime, end: dt.datetime) -> str:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "penstock")])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(7).not_valid_before(begin).not_valid_after(end)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


@pytest.mark.parametrize(("first", "last"), [(1999, 2001), (2020, 2049), (2049, 2050), (2060, 2161)])
def test_dates_are_those_that_were_written(first: int, last: int) -> None:
    begin = dt.datetime(first, 2, 3, 4, 5, 6, tzinfo=dt.UTC)
    end = dt.datetime(last, 12, 31, 23, 59, 59, tzinfo=dt.UTC)
    assert periods(made(begin, end)) == [(begin, end)]


def test_every_certificate_of_a_file_is_read(tmp_path: Path) -> None:
    authority = issue(tmp_path, "authority")
    server = issue(tmp_path, "server", authority)
    text = authority.cert_path.read_text() + "some words\n" + server.cert_path.read_text()
    expected = authority.certificate.not_valid_after_utc
    assert [end for _, end in periods(text)] == [expected, expected]


@pytest.mark.parametrize(
    "text",
    ["", "no certificate", "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----"],
)
def test_what_is_no_certificate_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        periods(text)


def test_a_certificate_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    lines = issue(tmp_path, "authority").cert_path.read_text().splitlines()
    with pytest.raises(ValueError, match=r"\w"):
        periods("\n".join([*lines[:2], lines[-1]]))
