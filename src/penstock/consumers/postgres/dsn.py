"""How a job connects to PostgreSQL: the parts of its DSN as libpq reads them, and nothing else for tenants.

libpq takes what a DSN leaves out from the environment, from a service file, a password file and certificates
of its process. A tenant's DSN names one server, one database and a user, and everything that libpq would take
from elsewhere is given explicitly: the runner's passwords and keys never go to a tenant's server.
"""

import re

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pydantic import SecretStr

from penstock.errors import Invalid
from penstock.targets import Target, TenantRefused

__all__ = ["connection_string", "read_dsn", "tenant_connection_string", "tenant_target"]

_DEFAULTS = {"application_name": "penstock", "connect_timeout": "10"}
_TENANT = frozenset({"host", "port", "dbname", "user", "password", "sslmode"})
_DATABASE = re.compile(r"[\w.$-]+")
_NOWHERE = "/dev/null/none"  # no file can have this path: libpq then goes without
_ISOLATED = {
    "passfile": _NOWHERE,
    "sslcert": _NOWHERE,
    "sslkey": _NOWHERE,
    "sslcrl": _NOWHERE,
    "sslcrldir": _NOWHERE,
    "sslcertmode": "disable",
    "requirepeer": "",
    "gsslib": "",
    "gssencmode": "disable",  # a tenant's server never sees the tickets of the process
    "options": "",
    "require_auth": "none,password,md5,scram-sha-256",  # not by the runner's own Kerberos ticket
    "client_encoding": "utf8",
}
"""What a tenant's connection has in place of the runner's; built-in defaults are given too."""
_VERIFIED = frozenset({"verify-ca", "verify-full"})
_HARMLESS = frozenset({"service", "min_protocol_version", "max_protocol_version", "ssl_max_protocol_version"})
"""Parameters that only the environment sets. A service cannot replace parameters that are given."""


def read_dsn(dsn: SecretStr) -> dict[str, str]:
    """Return the parameters of a DSN as libpq reads them; raise Invalid, without showing it, if it cannot."""
    try:
        given = conninfo_to_dict(dsn.get_secret_value())
    except (psycopg.Error, UnicodeDecodeError):  # escapes may have any bytes
        raise Invalid(
            "option dsn of consumer postgres is not a connection string;"
            " write postgresql://user@host/database or host=… dbname=…"
        ) from None
    return {name: str(value) for name, value in given.items()}


def connection_string(given: dict[str, str]) -> str:
    """Return the connection string of an admin's job; libpq adds what its process has."""
    return make_conninfo("", **{**_DEFAULTS, **given, "client_encoding": "utf8"})


def tenant_target(dsn: SecretStr) -> Target:
    """Return the server and the database of a tenant's DSN; raise TenantRefused unless it is one of each."""
    given = read_dsn(dsn)
    more = sorted(given.keys() - _TENANT)
    if more:
        raise TenantRefused(f"dsn has the parameter {more[0]}, which is for admins only; leave it out")
    if not dsn.get_secret_value().startswith(("postgresql://", "postgres://")):
        raise TenantRefused("dsn is not a URL; write postgresql://user@host/database")
    port, database = given.get("port") or "5432", given.get("dbname", "")
    if not given.get("user") or not _DATABASE.fullmatch(database) or not re.fullmatch(r"[0-9]{1,5}", port):
        raise TenantRefused(
            "dsn does not name one server, one database and a user; write postgresql://user@host/database"
        )
    return Target.of_server("dsn", "postgresql", given.get("host", ""), int(port), f"/{database}")


def tenant_connection_string(dsn: SecretStr, target: Target, address: str) -> str:
    """Return the connection string to one address of a tenant's target; nothing comes from this process."""
    given = read_dsn(dsn)
    mode = given.get("sslmode", "prefer")
    own = {
        "host": target.host,
        "hostaddr": address,
        "port": str(target.port),
        "dbname": "/".join(target.path),
        "user": given["user"],
        "password": given.get("password", ""),
        "sslmode": mode,
        "sslrootcert": "system" if mode in _VERIFIED else _NOWHERE,
    }
    if mode in _VERIFIED:  # libpq's rule for the system's certificates
        own["sslmode"] = "verify-full"
    known = psycopg.pq.Conninfo.get_defaults()
    names = {option.keyword.decode() for option in known}
    built_in = {
        option.keyword.decode(): option.compiled.decode()
        for option in known
        if option.envvar is not None and option.compiled is not None
    }
    isolated = {name: value for name, value in _ISOLATED.items() if name in names}
    return make_conninfo("", **{**built_in, **_DEFAULTS, **isolated, **own})
