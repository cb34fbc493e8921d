"""Where a target is, however its URL is spelled: what counts when two targets must not meet.

Paths are read as storage reads them: escapes are decoded, and `.`, `..` and empty parts mean nothing of their
own. An object store is known by its bucket or container and the endpoint that was given for it. Two names of
one server cannot be told: what is there already is found when a changefeed begins.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

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
