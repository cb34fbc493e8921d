"""Sink URIs: where files go, with which credentials, and the parameters of the sink. Pure.

No message shows a URI as it was given, because it may hold credentials; `mask_uri` returns what may be shown.

`Location` says where a target is, however its URL is spelled, so that two changefeeds can be kept apart.
Paths are read as storage reads them: escapes are decoded, `.` and empty parts are dropped, `..` goes up. An
object store is identified by its bucket or container and the endpoint that was given for it. Two names of one
server cannot be recognised; the check for existing files at a changefeed's first start finds that case.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit, urlunsplit

from penstock.errors import Invalid
from penstock.secret_masks import MASK, is_secret

_SCHEME_ALIASES = {"gcs": "gs", "azure": "az", "azblob": "az"}
_SCHEMES = {scheme: scheme for scheme in ("file", "memory", "s3", "gs", "az")} | _SCHEME_ALIASES
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
    """A parsed URI: where files go, and its parameters. Credentials are in `storage_options` only."""

    url: str
    storage_options: dict[str, str] = field(repr=False)
    parameters: dict[str, str]


def split_uri(uri: str) -> SinkUri:
    """Parse a sink URI; raise Invalid when it is malformed or has parameters of another kind of storage."""
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
    given = _unique_parameters(pairs)
    options = _storage_options(scheme, given)
    rest = {name: value for name, value in given.items() if name not in STORAGE_PARAMETERS}
    url = urlunsplit((scheme, parts.netloc, parts.path.rstrip("/"), "", ""))
    return SinkUri(f"{scheme}:///" if scheme == "memory" and not parts.netloc else url, options, rest)


def mask_uri(uri: str) -> str:
    """Return the URI with *** in place of everything that may be a secret; safe for logs and errors."""
    try:
        parts = urlsplit(uri.strip())
        pairs = parse_qsl(parts.query, keep_blank_values=True)
    except ValueError:
        return MASK
    host = parts.netloc.rpartition("@")
    netloc = f"{MASK}@{host[2]}" if host[1] else host[2]
    shown = ((name, MASK if is_secret(name) else quote(value, safe="")) for name, value in pairs)
    query = "&".join(f"{quote(name, safe='')}={value}" for name, value in shown)
    return urlunsplit((parts.scheme, netloc, parts.path, query, MASK if parts.fragment else ""))


def _unique_parameters(pairs: list[tuple[str, str]]) -> dict[str, str]:
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
    if "virtual_hosted_style_request" in options:  # the opposite of force-path-style
        forced = options["virtual_hosted_style_request"].lower() in {"true", "1"}
        options["virtual_hosted_style_request"] = "false" if forced else "true"
    if given.get("endpoint", "").startswith("http://"):
        options["allow_http"] = "true"
    return options


_SIZE = re.compile(r"(?P<number>-?\d+(?:\.\d+)?)\s*(?P<unit>[A-Za-z]*)")
_SIZE_UNITS = (
    {"": 1, "b": 1}
    | {"k": 1 << 10, "kib": 1 << 10, "m": 1 << 20, "mib": 1 << 20, "g": 1 << 30, "gib": 1 << 30}
    | {"t": 1 << 40, "tib": 1 << 40, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
)


def parse_size(text: str, name: str) -> int:
    """Return the bytes of a size such as 64MiB; raise Invalid for another text.

    KiB, MiB, GiB and TiB are powers of 1024, KB, MB, GB and TB of 1000; a plain number is bytes.
    """
    found = _SIZE.fullmatch(text.strip())
    unit = _SIZE_UNITS.get(found["unit"].lower()) if found else None
    if found is None or unit is None:
        raise Invalid(f"{name} = {text!r} is no size; write bytes, or a number with KiB, MiB or GiB")
    return int(Decimal(found["number"]) * unit)


_LOCATION_ALIASES = {**_SCHEME_ALIASES, "postgres": "postgresql"}
_BUCKETS = frozenset({"s3", "gs", "az", "memory"})
_PORTS = {"http": 80, "https": 443, "postgresql": 5432}
_ENDPOINTS = ("endpoint", "endpoint_url", "base_url")
_ACCOUNTS = ("account_name", "storage_account_name")


@dataclass(frozen=True, slots=True)
class Location:
    """A file system, bucket or server, and the parts of a path in it."""

    store: str
    parts: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.store}/{'/'.join(self.parts)}"

    def contains(self, other: "Location") -> bool:
        """Return whether the other one is this location or below it."""
        return self.store == other.store and other.parts[: len(self.parts)] == self.parts

    def overlaps(self, other: "Location") -> bool:
        """Return whether a reader of one location may read what is written to the other."""
        return self.contains(other) or other.contains(self)


def location_of(
    url: str, options: Mapping[str, str] | None = None, *, follow_links: bool = False
) -> Location:
    """Return where a URL leads to, with the options of its storage; there is no secret in it.

    `follow_links` resolves the links of this machine's file system. Without it the answer is the same on
    every machine, except for relative paths.
    """
    split = urlsplit(url)
    scheme = split.scheme.lower()
    scheme = _LOCATION_ALIASES.get(scheme, scheme)
    if scheme == "file":
        path = unquote(split.netloc + split.path)  # as storage does: what follows two slashes is relative
        found = Path(path).resolve() if follow_links else Path(path).absolute()
        return Location("file://", _parts(str(found)))
    host = (split.hostname or "").lower()
    if scheme in _BUCKETS:
        return Location(f"{scheme}://{host}{_describe_server(options or {})}", _parts(unquote(split.path)))
    port = _port(split) or _PORTS.get(scheme)
    return Location(f"{scheme}://{host}{f':{port}' if port else ''}", _parts(unquote(split.path)))


def _port(split: SplitResult) -> int | str | None:
    try:
        return split.port
    except ValueError:  # not a number: keep the text, so that two such URLs still differ
        return split.netloc.rpartition(":")[2]


def _describe_server(options: Mapping[str, str]) -> str:
    """Return the part of storage options that tells one server or account from another."""
    plain = {_strip_vendor_prefix(name): value for name, value in options.items()}
    endpoint = next((plain[name] for name in _ENDPOINTS if plain.get(name)), "")
    account = next((plain[name] for name in _ACCOUNTS if plain.get(name)), "")
    owner = f" of {account.lower()}" if account else ""
    return f"{owner} at {location_of(endpoint)}" if endpoint else owner


def _strip_vendor_prefix(name: str) -> str:
    lowered = name.lower()
    for prefix in ("aws_", "azure_", "google_"):
        lowered = lowered.removeprefix(prefix)
    return lowered


def _parts(path: str) -> tuple[str, ...]:
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in {"", "."}:
            parts.append(part)
    return tuple(parts)
