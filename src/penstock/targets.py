"""Where a tenant may write: targets in parts, prefixes of targets, and addresses that names may lead to.

Changefeeds and jobs run in processes that can reach everything. Text that one parser checked and another one
reads again can lead elsewhere, so a `Target` has the parts that its library gets, and each part has a grammar
that leaves no room for a second meaning. `TenantTargets` decides on these parts, where a job is registered
and again where it is used: links of a file system and names of servers may lead elsewhere by then.

The name of a server is resolved here, and the addresses are checked: connect to them, not to the name.
Tenants cannot name a server of object storage: what their storage options contain cannot change the host.
"""

import os
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Self
from urllib.parse import unquote, urlsplit

from penstock.durable_files import is_content, is_inside
from penstock.errors import Invalid, Unavailable
from penstock.secret_references import has_reference, resolve_values
from penstock.settings import Settings

__all__ = [
    "SYSTEM_ACCOUNT",
    "Target",
    "TenantRefused",
    "TenantTargets",
    "is_below",
    "is_public",
    "resolve_tenant_texts",
]

SYSTEM_ACCOUNT = "sys"
"""The account to which changefeeds of admins, and databases of nobody, belong."""
_PORTS = {"http": 80, "https": 443, "postgresql": 5432}
_ALIASES = {"gcs": "gs", "azure": "az", "azblob": "az", "postgres": "postgresql"}
_STORAGE_URL = re.compile(r"(file|s3|gs|az)://([^/]*)((?:/[^/]+)*)/?")
_BUCKETS = {
    "file": re.compile(r""),
    "s3": re.compile(r"(?!\d+\.\d+\.\d+\.\d+\Z)(?!.*\.\.)[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"),
    "gs": re.compile(r"(?!\d+\.\d+\.\d+\.\d+\Z)(?!.*\.\.)[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]"),
    "az": re.compile(r"[a-z0-9](-?[a-z0-9]){2,62}"),
}
_STEP = re.compile(r"[\w.~!$&'()+,=-]+")
"""A part of a path that every library reads the same way: no escape, no separator, no white space."""
_WEB_STEP = re.compile(r"[!$&-.0-9:;=@A-Z_a-z~]+")
"""A part of the path of a web server, which may have a few more characters."""
_LABEL = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"(?=.{{1,253}}\Z)({_LABEL}\.)*(?!(\d+|0x[0-9a-f]*)\Z){_LABEL}")
"""A name in DNS. The last part is not a number: resolvers read 127.1, 0177.1 and 0x7f000001 as addresses."""
_WORD = re.compile(r"[\x21-\x7e]{1,4096}")  # fits a header
_STORAGE_OPTIONS = {
    "region": re.compile(r"[a-z0-9-]{1,64}"),
    "access_key_id": _WORD,
    "secret_access_key": re.compile(r"[^\x00]{1,4096}"),  # never sent
    "session_token": _WORD,
    "server_side_encryption": _WORD,
    "sse_kms_key_id": _WORD,
    "account_key": _WORD,
    "sas_key": re.compile(r"[A-Za-z0-9+/=:._%&?-]{1,4096}"),
}
"""Storage options of a tenant: its own credentials, and nothing that leads to another server, bucket or file.

`virtual_hosted_style_request` is not among them: with a server of the operator's own, it leaves the bucket
out of the address, so that the first step of the path becomes the bucket.
"""


class TenantRefused(Invalid):
    """The account may not do this; an admin may."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a job or a changefeed connects to, in the parts that its library gets."""

    option: str
    """The option that names it, for messages."""
    scheme: str
    host: str
    """The bucket, the container or the server; empty for files."""
    port: int | None
    path: tuple[str, ...]
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of_storage(cls, option: str, url: str, storage: Mapping[str, str]) -> Self:
        """Return the target of a storage URL; raise TenantRefused for what libraries may read differently."""
        found = _STORAGE_URL.fullmatch(url)
        steps = found[3].split("/")[1:] if found else []
        if found is None or not _BUCKETS[found[1]].fullmatch(found[2]) or not _are_steps(steps, _STEP):
            raise TenantRefused(
                f"{option} cannot be checked; write file:///folder or s3://bucket/folder, with letters,"
                " digits and . - _ only, without .. and escapes"
            )
        for name, value in storage.items():
            plain = name.lower().removeprefix("aws_").removeprefix("azure_")
            if plain not in _STORAGE_OPTIONS:
                raise TenantRefused(
                    f"storage option {name} is for admins only; give region and credentials only"
                )
            if not _STORAGE_OPTIONS[plain].fullmatch(value):
                raise TenantRefused(f"storage option {name} has characters that it cannot have; correct it")
        return cls(option, found[1], found[2], None, tuple(steps), dict(storage))

    @classmethod
    def of_server(cls, option: str, scheme: str, host: str, port: int | None, path: str) -> Self:
        """Return the target of a server; raise TenantRefused for what libraries may read differently."""
        name = _canonical_host(host)
        steps = path.removesuffix("/").split("/")[1:]
        pattern = _WEB_STEP if scheme in {"http", "https"} else _STEP
        if name is None or not 0 < (port or _PORTS[scheme]) < 65536 or not _are_steps(steps, pattern):
            raise TenantRefused(
                f"{option} cannot be checked; name one server by its name or address, and a path without .."
                " and escapes"
            )
        return cls(option, scheme, name, port or _PORTS[scheme], tuple(steps))

    @property
    def folder(self) -> str:
        """The path of a folder of this machine."""
        return "/" + "/".join(self.path)


def resolve_tenant_texts(texts: Mapping[str, str]) -> dict[str, str]:
    """Return options of a tenant as the process that uses them reads them; refuse references to secrets.

    That process would resolve them: it has the operator's environment and files. Ask this where options are
    used, too: before there were references, a tenant could write such a text.
    """
    for name, text in texts.items():
        if has_reference(text):
            raise TenantRefused(
                f"{name} refers to a secret of the operator, which is for admins only; give the value itself,"
                " and write $${ for ${"
            )
    return resolve_values(texts)


def is_below(target: Target, prefix: str) -> bool:
    """Return whether a target is below a prefix: the same server, and a path within its path.

    Links of this machine's file system are followed.
    """
    try:
        parts = urlsplit(prefix)
        port, path = parts.port, unquote(parts.path)
    except ValueError:
        return False
    scheme = _ALIASES.get(parts.scheme, parts.scheme)
    steps = tuple(step for step in path.split("/") if step)
    if scheme != target.scheme or {".", ".."}.intersection(steps):
        return False
    if scheme == "file":
        return is_inside(target.folder, _real_prefix(prefix))
    if scheme in _PORTS:
        server = _canonical_host(parts.hostname or "") == target.host
        same = server and (port or _PORTS[scheme]) == target.port
    else:
        same = parts.netloc == target.host
    return same and target.path[: len(steps)] == steps


@dataclass(frozen=True, slots=True)
class TenantTargets:
    """Where an account without admin rights may write. `networks` may have addresses that are not public."""

    account: str
    prefixes: tuple[str, ...]
    networks: tuple[str, ...] = ()
    in_settings: bool = True
    """Whether the settings have the account; nothing of one that has left them runs."""

    @classmethod
    def of(cls, settings: Settings, account: str, *, recorded: bool | None = True) -> Self | None:
        """Return where the jobs or changefeeds of an account may write; None: anywhere, as those of admins.

        `recorded` is what a job's row says of whether a tenant made it. Rows of earlier versions say nothing:
        such a job is taken for its account's own, unless the settings have no accounts at all.
        """
        known = settings.api.accounts.get(account)
        by_admin = recorded is False or (account == SYSTEM_ACCOUNT and (recorded is None or known is None))
        if by_admin or (known is not None and known.admin):
            return None
        if known is None:
            unrecorded = recorded is None and not settings.api.accounts
            return None if unrecorded else cls(account, (), in_settings=False)
        return cls(account, known.targets, known.networks)

    def check_account(self) -> None:
        """Raise TenantRefused when the account has left the settings."""
        if not self.in_settings:
            raise TenantRefused(
                f"account {self.account} is not in the settings of this process; add it with its"
                f" api.accounts.{self.account}.targets to those of the API and of all runners, and resume; or"
                " remove what it has"
            )

    def check(self, target: Target) -> None:
        """Raise TenantRefused unless the account may write to a target. Follows links of the file system."""
        self.check_account()
        below = [prefix for prefix in self.prefixes if is_below(target, prefix)]
        if not self.prefixes:
            raise TenantRefused(
                f"account {self.account} may write nowhere by the settings of this process; add an address to"
                f" api.accounts.{self.account}.targets, in the settings of the API and of all runners"
            )
        if not below:
            raise TenantRefused(
                f"{target.option} is not an address where account {self.account} may write; use one below an"
                f" address of api.accounts.{self.account}.targets"
            )
        if target.scheme == "file":
            roots = [_real_prefix(prefix) for prefix in below]
            for entry in _find_special(target.folder):
                place = os.path.relpath(entry.path, target.folder)
                if entry.is_symlink() and not any(is_inside(entry.path, root) for root in roots):
                    raise TenantRefused(
                        f"{target.option} has a symbolic link that leads out of where account {self.account}"
                        f" may write, {place}; remove it"
                    )
                if not _leads_to_content(entry):
                    raise TenantRefused(f"{target.option} has {place}, which is no regular file; remove it")

    def resolve(self, target: Target) -> tuple[str, ...]:
        """Return the addresses of a checked target's server, to which to connect in place of its name.

        Raises Unavailable when it has none, TenantRefused when the account may not connect to one of them.
        """
        if _parse_address(target.host) is not None:
            return (target.host,)  # the prefix has this very address: the operator means it
        try:
            found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            raise Unavailable(f"{target.host} has no address; check the name in {target.option}") from None
        addresses = tuple(dict.fromkeys(str(entry[4][0]) for entry in found))
        if not all(map(partial(self._may_reach, target.host), addresses)):
            raise TenantRefused(
                f"{target.host} has an address that is not public, where account {self.account} may not"
                f" write; an admin can add its network to api.accounts.{self.account}.networks"
            )
        return addresses

    def _may_reach(self, host: str, address: str) -> bool:
        parsed = ip_address(address)
        if host == "localhost" and parsed.is_loopback:
            return True  # the prefix has this very name
        return is_public(parsed) or any(parsed in ip_network(network) for network in self.networks)


_NOT_PUBLIC = tuple(
    map(
        IPv4Network,
        (
            *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
            *("192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15"),
            *("198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/3"),
            "168.63.129.16/32",  # Azure's own, which every machine there can reach
        ),
    )
)
_PUBLIC_V6 = IPv6Network("2000::/3")
_NOT_PUBLIC_V6 = tuple(map(IPv6Network, ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")))
_NAT64 = IPv6Network("64:ff9b::/96")
"""Addresses of IPv4 in the last 32 bits, which a gateway translates."""


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Return whether an address belongs to a host of the Internet, by IANA's special-purpose registries.

    Python's `is_global` differs from version to version, and does not look into addresses of IPv4 in IPv6.
    """
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped or (IPv4Address(address.packed[-4:]) if address in _NAT64 else None)
        if inner is not None:
            return is_public(inner)
        return address in _PUBLIC_V6 and not any(address in network for network in _NOT_PUBLIC_V6)
    return not any(address in network for network in _NOT_PUBLIC)


def _canonical_host(host: str) -> str | None:
    """Return the one spelling of a server's name or address; None for what is neither."""
    address = _parse_address(host)
    if address is not None:
        return address.compressed
    name = host.lower()
    return name if host.isascii() and _NAME.fullmatch(name) else None


def _parse_address(host: str) -> IPv4Address | IPv6Address | None:
    """Return a numeric address, written in the usual way and without a zone."""
    try:
        return None if "%" in host else ip_address(host)
    except ValueError:
        return None


def _are_steps(steps: Sequence[str], pattern: re.Pattern[str]) -> bool:
    # Some web servers drop what follows a semicolon before they go up.
    return all(pattern.fullmatch(step) and step.partition(";")[0] not in {".", ".."} for step in steps)


def _real_prefix(prefix: str) -> str:
    parts = urlsplit(prefix)
    return os.path.realpath(unquote(parts.netloc + parts.path))


def _leads_to_content(entry: "os.DirEntry[str]") -> bool:
    """Return whether a file or a folder is there once links are followed, or nothing."""
    try:
        return is_content(entry.stat().st_mode)
    except OSError:
        return True


def _find_special(folder: str) -> Iterator["os.DirEntry[str]"]:
    """Yield what is neither file nor folder below a folder: links, FIFOs, sockets, devices. Follow no link.

    To open a FIFO, libraries would wait for ever.
    """
    waiting = [folder]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    elif not entry.is_file(follow_symlinks=False):
                        yield entry
        except (FileNotFoundError, NotADirectoryError):
            continue  # nothing is there yet, or not any more
        except OSError as error:
            raise TenantRefused(
                f"a folder of the target cannot be searched for links ({error.strerror})"
            ) from None
