"""Addresses as people write them: host:port, with an IPv6 host in brackets."""

import ipaddress

from penstock.errors import Invalid

__all__ = ["asked_host", "is_everywhere", "is_loopback", "joined", "parted"]

_PORT_MAX = 65_535
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared, not listened on


def parted(addr: str) -> tuple[str, int]:
    """Host, without brackets, and port; raise Invalid for what is not host:port."""
    host, _, port = addr.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not (port.isascii() and port.isdigit() and int(port) <= _PORT_MAX):
        raise Invalid(f"address {addr!r} is not host:port; write one such as 127.0.0.1:9100")
    return host, int(port)


def joined(host: str, port: int) -> str:
    """The address of a host and a port."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_everywhere(host: str) -> bool:
    """Whether who listens on a host does so on every address of its machine."""
    return host in _EVERYWHERE


def asked_host(host: str) -> str:
    """Where to ask, on its own machine, somebody who listens on a host."""
    return _EVERYWHERE.get(host, host)


def is_loopback(addr: str) -> bool:
    """Whether an address can be reached from its own machine only."""
    host = addr.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
