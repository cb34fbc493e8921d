"""A sink URI taken apart: where files go, with which credentials, and the parameters of the sink. Pure.

No message shows a URI as it was given: credentials may be in it. `mask_uri` is what may be shown.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, quote, urlsplit, urlunsplit

from penstock.errors import Invalid

_MASK = "***"
_SECRET_WORDS = ("key", "secret", "token", "password", "sas", "credential", "signature")
_SCHEMES = {"file": "file", "memory": "memory", "s3": "s3"} | {
    "gs": "gs",
    "gcs": "gs",
    "az": "az",
    "azure": "az",
    "azblob": "az",
}
_STORAGE_PARAMETERS: dict[str, dict[str, str]] = {
    "s3": {
        "endpoint": "endpoint",
        "region": "region",
        "access-key": "access_key_id",
        "secret-access-key": "secret_access_key",
        "session-token": "session_token",
        "role-arn": "role_arn",
        "sse": "server_side_encryption",
        "sse-kms-key-id": "sse_kms_key_id",
        "force-path-style": "virtual_hosted_style_request",
    },
    "gs": {"endpoint": "base_url", "credentials-file": "application_credentials"},
    "az": {
        "endpoint": "endpoint",
        "account-name": "account_name",
        "account-key": "account_key",
        "sas-token": "sas_key",
    },
}
STORAGE_PARAMETERS = frozenset(name for names in _STORAGE_PARAMETERS.values() for name in names)


@dataclass(frozen=True, slots=True)
class SinkUri:
    """Where files go, and what the URI says besides. Credentials are in `storage_options` only."""

    url: str
    storage_options: dict[str, str] = field(repr=False)
    parameters: dict[str, str]


def split_uri(uri: str) -> SinkUri:
    """Take a sink URI apart; raise Invalid when it is none, or has what its scheme does not know."""
    try:
        parts = urlsplit(uri.strip())
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise Invalid("the sink URI cannot be parsed; write s3://bucket/prefix?protocol=canal-json") from None
    scheme = _SCHEMES.get(parts.scheme.lower())
    if scheme is None:
        raise Invalid(
            f"sink URI scheme {parts.scheme!r} is unknown; use one of {', '.join(sorted(_SCHEMES))}://"
        )
    if parts.fragment or "@" in parts.netloc:
        raise Invalid(
            "the sink URI has a '#', or something before an '@'; percent-encode these characters, and give"
            " credentials as parameters, in storage_options or in the environment"
        )
    if scheme in _STORAGE_PARAMETERS and not parts.netloc:
        raise Invalid(f"the sink URI {scheme}:// names no bucket or container; write {scheme}://name/prefix")
    if scheme == "file" and not (parts.netloc + parts.path).strip("/"):
        raise Invalid("the sink URI names no directory; write file:///directory")
    given = _once(pairs)
    options = _storage_options(scheme, given)
    rest = {name: value for name, value in given.items() if name not in STORAGE_PARAMETERS}
    url = urlunsplit((scheme, parts.netloc, parts.path.rstrip("/"), "", ""))
    return SinkUri(f"{scheme}:///" if scheme == "memory" and not parts.netloc else url, options, rest)


def mask_uri(uri: str) -> str:
    """The URI with *** in place of everything that may be a secret; safe for logs, lists and errors."""
    try:
        parts = urlsplit(uri.strip())
        pairs = parse_qsl(parts.query, keep_blank_values=True)
    except ValueError:
        return _MASK
    host = parts.netloc.rpartition("@")
    netloc = f"{_MASK}@{host[2]}" if host[1] else host[2]
    shown = ((name, _MASK if is_secret(name) else quote(value, safe="")) for name, value in pairs)
    query = "&".join(f"{quote(name, safe='')}={value}" for name, value in shown)
    return urlunsplit((parts.scheme, netloc, parts.path, query, _MASK if parts.fragment else ""))


def is_secret(name: str) -> bool:
    """Whether a parameter of this name may hold a secret."""
    return name != "sse-kms-key-id" and any(word in name.lower() for word in _SECRET_WORDS)


def _once(pairs: list[tuple[str, str]]) -> dict[str, str]:
    given: dict[str, str] = {}
    for name, value in pairs:
        if name in given:
            raise Invalid(f"sink parameter {name} is given twice; keep one")
        given[name] = value
    return given


def _storage_options(scheme: str, given: Mapping[str, str]) -> dict[str, str]:
    known = _STORAGE_PARAMETERS.get(scheme, {})
    foreign = sorted(name for name in given if name in STORAGE_PARAMETERS and name not in known)
    if foreign:
        raise Invalid(f"sink parameter {foreign[0]} means nothing for {scheme}:// storage; leave it out")
    options = {known[name]: value for name, value in given.items() if name in known}
    if "virtual_hosted_style_request" in options:  # the other way round than force-path-style
        forced = options["virtual_hosted_style_request"].lower() in {"true", "1"}
        options["virtual_hosted_style_request"] = "false" if forced else "true"
    if given.get("endpoint", "").startswith("http://"):
        options["allow_http"] = "true"
    return options
