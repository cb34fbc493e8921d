"""Where a Spark session runs, and whether it is there: Spark itself would take a minute to say no."""

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from penstock.errors import Invalid, Unavailable

_LOCAL = re.compile(r"local(\[(\*|[1-9]\d*)(,\s*\d+)?\])?|local-cluster\[\d+,\s*\d+,\s*\d+\]")
_CONNECT_TIMEOUT_S = 5.0
_ALLOWED = "use local[*], local[N], spark://host:port, yarn or k8s://https://host:port"


@dataclass(frozen=True, slots=True)
class Master:
    """A master URL taken apart: which addresses must answer before a session can start."""

    url: str
    in_process: bool = False
    addresses: tuple[tuple[str, int], ...] = ()


def parse_master(url: str) -> Master:
    """Take a master URL apart; raise Invalid when it is none that Spark knows."""
    if _LOCAL.fullmatch(url):
        return Master(url, in_process=not url.startswith("local-cluster"))
    if url == "yarn":
        return Master(url)
    if url.startswith("spark://"):
        return Master(url, addresses=tuple(_address(url, each) for each in url[8:].split(",")))
    if url.startswith("k8s://"):
        parts = urlsplit(url[6:] if "://" in url[6:] else f"https://{url[6:]}")
        default = 80 if parts.scheme == "http" else 443
        return Master(url, addresses=(_address(url, parts.netloc, default),))
    if url.startswith("sc://"):
        raise Invalid(
            f"spark.master = {url!r} is a Spark Connect server; build that session with"
            " SparkSession.builder.remote and give it to penstock.spark.register"
        )
    raise Invalid(f"spark.master = {url!r} is no master of Spark's; {_ALLOWED}")


def require_master(master: Master, environ: Mapping[str, str] = os.environ) -> None:
    """Raise Unavailable when none of the master's addresses answers, Invalid when YARN is not configured."""
    if master.url == "yarn" and not (environ.get("HADOOP_CONF_DIR") or environ.get("YARN_CONF_DIR")):
        raise Invalid(
            "spark.master = 'yarn' needs the cluster's configuration; set HADOOP_CONF_DIR to its folder"
        )
    reason: OSError | None = None
    for host, port in master.addresses:
        try:
            socket.create_connection((host, port), _CONNECT_TIMEOUT_S).close()
        except OSError as error:
            reason = error
        else:
            return
    if reason is not None:
        why = reason.strerror or str(reason)
        raise Unavailable(
            f"Spark master {master.url} does not answer ({why.lower()}); start it, or correct spark.master"
        ) from reason


def _address(url: str, text: str, default_port: int | None = None) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port or default_port
    except ValueError:
        host, port = None, None
    if not host or not port:
        raise Invalid(f"spark.master = {url!r} has an address that is not host:port; {_ALLOWED}")
    return host, port
