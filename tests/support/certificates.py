"""Certificates made on the spot, for tests of TLS on loopback. Needs the package `cryptography`."""

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

__all__ = ["Identity", "issue"]


@dataclass(frozen=True, slots=True)
class Identity:
    """A certificate with its key, and the PEM files they are in."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate
    cert_path: Path
    key_path: Path


def _usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def issue(folder: Path, name: str, issuer: Identity | None = None) -> Identity:
    """Make a certificate for 127.0.0.1, signed by `issuer`; without one, an authority.

    It has what RFC 5280 demands: Python verifies that from 3.13 on.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    begin = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    signer = (issuer.key if issuer else key).public_key()
    loopback = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.certificate.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + datetime.timedelta(days=36500))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(_usage(authority=issuer is None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer), critical=False)
        .add_extension(x509.SubjectAlternativeName([loopback]), critical=False)
        .sign(issuer.key if issuer else key, hashes.SHA256())
    )
    made = Identity(key, certificate, folder / f"{name}.pem", folder / f"{name}.key")
    made.cert_path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    made.key_path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return made
