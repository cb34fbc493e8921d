"""A sink URI taken apart: where files go, with which credentials, and the parameters of the sink. Pure.

No message shows a URI as it was given: credentials may be in it. `mask_uri` is what may be shown.

Sizes as people write them in a sink URI: 64MiB. Pure.

Where a target is, however its URL is spelled: what counts when two targets must not meet.

Paths are read as storage reads them: escapes are decoded, and `.`, `..` and empty parts mean nothing of their
own. An object store is known by its bucket or container and the endpoint that was given for it. Two names of
one server cannot be told: what is there already is found when a changefeed begins.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit, urlunsplit

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


_SIZE = re.compile(r"(?P<number>-?\d+(?:\.\d+)?)\s*(?P<unit>[A-Za-z]*)")
_SIZE_UNITS = (
    {"": 1, "b": 1}
    | {"k": 1 << 10, "kib": 1 << 10, "m": 1 << 20, "mib": 1 << 20, "g": 1 << 30, "gib": 1 << 30}
    | {"t": 1 << 40, "tib": 1 << 40, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
)


def parse_size(text: str, name: str) -> int:
    """Bytes: a number, perhaps with KiB, MiB, GiB, TiB (1024) or KB, MB, GB, TB (1000); else Invalid."""
    found = _SIZE.fullmatch(text.strip())
    unit = _SIZE_UNITS.get(found["unit"].lower()) if found else None
    if found is None or unit is None:
        raise Invalid(f"{name} = {text!r} is no size; write bytes, or a number with KiB, MiB or GiB")
    return int(Decimal(found["number"]) * unit)


_SAME = {"gcs": "gs", "azure": "az", "azblob": "az", "postgres": "postgresql"}
_BUCKETS = frozenset({"s3", "gs", "az", "memory"})
_PORTS = {"http": 80, "https": 443, "postgresql": 5432}
_SERVERS = ("endpoint", "endpoint_url", "base_url")
_ACCOUNTS = ("account_name", "storage_account_name")


@dataclass(frozen=True, slots=True)
class Location:
    """A file system, bucket or server, and the parts of a path there."""

    store: str
    parts: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.store}/{'/'.join(self.parts)}"

    def holds(self, other: "Location") -> bool:
        """Whether the other one is this place, or is below it."""
        return self.store == other.store and other.parts[: len(self.parts)] == self.parts

    def meets(self, other: "Location") -> bool:
        """Whether what is written to one may be read in the other."""
        return self.holds(other) or other.holds(self)


def location_of(
    url: str, options: Mapping[str, str] | None = None, *, follow_links: bool = False
) -> Location:
    """The place that a URL leads to, with the options of its storage; no secret is in it.

    `follow_links` goes through the links of this machine's file system; without it the answer is the same
    everywhere, but for relative paths.
    """
    split = urlsplit(url)
    scheme = split.scheme.lower()
    scheme = _SAME.get(scheme, scheme)
    if scheme == "file":
        path = unquote(split.netloc + split.path)  # as storage does: what follows two slashes is relative
        found = Path(path).resolve() if follow_links else Path(path).absolute()
        return Location("file://", _parts(str(found)))
    host = (split.hostname or "").lower()
    if scheme in _BUCKETS:
        return Location(f"{scheme}://{host}{_server(options or {})}", _parts(unquote(split.path)))
    port = _port(split) or _PORTS.get(scheme)
    return Location(f"{scheme}://{host}{f':{port}' if port else ''}", _parts(unquote(split.path)))


def _port(split: SplitResult) -> int | str | None:
    try:
        return split.port
    except ValueError:  # it is no number, and leads nowhere
        return split.netloc.rpartition(":")[2]


def _server(options: Mapping[str, str]) -> str:
    """What of storage options tells one server, or account, from another."""
    plain = {_plain(name): value for name, value in options.items()}
    endpoint = next((plain[name] for name in _SERVERS if plain.get(name)), "")
    account = next((plain[name] for name in _ACCOUNTS if plain.get(name)), "")
    shown = f" of {account.lower()}" if account else ""
    return f"{shown} at {location_of(endpoint)}" if endpoint else shown


def _plain(name: str) -> str:
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
