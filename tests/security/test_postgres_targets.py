"""A tenant's DSN leads to the server that was allowed, and takes nothing of the runner there."""

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg.conninfo import conninfo_to_dict
from pydantic import SecretStr

from penstock.consumers.postgres import Postgres
from penstock.consumers.postgres.dsn import tenant_connection_string, tenant_target
from penstock.errors import Invalid, PenstockError, Unavailable
from penstock.jobs.consumer import JobContext, open_consumer
from penstock.tables.define import define_table
from penstock.targets import TenantRefused, TenantTargets
from penstock.testing.consumers import SourceModel, job_context
from support.postgres import shared_server

_SSL_REQUEST = 80877103
ITEMS = replace(define_table("items", [("id", "bigint primary key"), ("name", "varchar(20)")]), id=1)


class PasswordThief:
    """A server that asks every client for its password in clear, and remembers what it gets."""

    def __init__(self) -> None:
        self.startups: list[bytes] = []
        self.passwords: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client, client.makefile("rb") as stream:
                client.settimeout(10)
                startup = self._read(stream)
                if startup[:4] == struct.pack("!I", _SSL_REQUEST):
                    client.sendall(b"N")
                    startup = self._read(stream)
                self.startups.append(startup)
                client.sendall(b"R" + struct.pack("!II", 8, 3))
                if stream.read(1) == b"p":
                    self.passwords.append(self._read(stream))

    def _read(self, stream: BinaryIO) -> bytes:
        head = stream.read(4)
        return stream.read(struct.unpack("!I", head)[0] - 4) if len(head) == 4 else b""

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)


@pytest.fixture
def thief() -> Iterator[PasswordThief]:
    server = PasswordThief()
    yield server
    server.close()


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, thief: PasswordThief) -> None:
    """The environment of a runner that has its own passwords, services and certificates."""
    passwords, services = tmp_path / "pgpass", tmp_path / "services"
    passwords.write_text("*:*:*:*:from-the-file\n")
    passwords.chmod(0o600)
    services.write_text(f"[own]\nhost=127.0.0.1\nport={thief.port}\nuser=runner\npassword=from-the-service\n")
    monkeypatch.setenv("PGPASSWORD", "from-the-environment")
    monkeypatch.setenv("PGPASSFILE", str(passwords))
    monkeypatch.setenv("PGSERVICEFILE", str(services))
    monkeypatch.setenv("PGSERVICE", "own")
    monkeypatch.setenv("PGUSER", "runner")
    monkeypatch.setenv("PGDATABASE", "runners")
    monkeypatch.setenv("PGHOSTADDR", "127.0.0.1")
    monkeypatch.setenv("PGOPTIONS", "-c search_path=runners")
    monkeypatch.setenv("HOME", str(tmp_path))


def context(folder: Path, dsn: str, *prefixes: str, networks: tuple[str, ...] = ()) -> JobContext:
    made = job_context(folder, "postgres", {"dsn": dsn})
    return replace(made, tenant=TenantTargets("ann", prefixes, networks))


def connect(job: JobContext) -> None:
    """Do what the runner does with a job: ask its target how far it is."""
    consumer = open_consumer(job)
    try:
        consumer.committed_ts()
    finally:
        consumer.close()


HOSTILE = (
    "postgresql://ann@127.0.0.1:PORT%2C@db.example/ann",
    "postgresql://ann@127.0.0.1%3APORT%2C@db.example/ann",
    "postgresql://ann:x@127.0.0.1:PORT,db.example/ann",
    "postgresql://ann@db.example,127.0.0.1:5432,PORT/ann",
    "postgresql://ann@db.example%2C127.0.0.1:5432%2CPORT/ann",
    "postgresql://ann@db.example/ann?host=127.0.0.1&port=PORT",
    "postgresql://ann@db.example/ann?hostaddr=127.0.0.1&port=PORT",
    "postgresql://ann@db.example:PORT/ann?hostaddr=127.0.0.1",
    "postgresql://ann@db.example/ann?service=own",
    "postgresql://ann@db.example/ann?passfile=/etc/passwd",
    "postgresql://ann@db.example/ann?sslkey=/etc/ssl/private/key.pem&sslcert=/etc/ssl/cert.pem",
    "postgresql://ann@db.example/ann?sslrootcert=/etc/passwd",
    "postgresql://ann@db.example/ann?sslkeylogfile=/tmp/keys",
    "postgresql://ann@db.example/ann?options=-c%20search_path%3Dbob",
    "postgresql:///ann?host=/var/run/postgresql&user=ann",
    "postgresql:///ann?user=ann",
    "postgresql://ann@%2Fvar%2Frun%2Fpostgresql/ann",
    "postgresql://ann@@abstract/ann",
    "postgresql://ann@db.example@127.0.0.1:PORT/ann",
    "postgresql://ann@db.example#@127.0.0.1:PORT/ann",
    "postgresql://ann@db.example\\@127.0.0.1:PORT/ann",
    "postgresql://ann@DB.EXAMPLE.:PORT/ann",
    "postgresql://ann@db。example/ann",
    "postgresql://ann@\uff44\uff42.example/ann",
    "postgresql://ann@db.example/bob",
    "postgresql://ann@db.example/ann%2Fbob",
    "postgresql://ann@db.example/ann%00bob",
    "postgresql://ann@db.example/",
    "postgresql://db.example/ann",
    "postgresql://ann@2130706433:PORT/ann",
    "postgresql://ann@0x7f.1:PORT/ann",
    "postgresql://ann@017700000001:PORT/ann",
    "postgresql://ann@[::ffff:127.0.0.1]:PORT/ann",
    "postgresql://ann@[fe80::1%25lo]:PORT/ann",
    "host=db.example,127.0.0.1 port=5432,PORT dbname=ann user=ann",
    "host=127.0.0.1 port=PORT dbname=ann user=ann",
    "host=db.example hostaddr=127.0.0.1 port=PORT dbname=ann user=ann",
    "host=db.example dbname='host=127.0.0.1 port=PORT' user=ann",
    "service=own",
    "dbname=postgresql://ann@127.0.0.1:PORT/ann",
    "",
)


@pytest.mark.parametrize("dsn", HOSTILE)
@pytest.mark.usefixtures("runner")
def test_no_dsn_leads_elsewhere(tmp_path: Path, thief: PasswordThief, dsn: str) -> None:
    hostile = dsn.replace("PORT", str(thief.port))
    with pytest.raises(Invalid):
        connect(context(tmp_path, hostile, "postgresql://db.example/ann"))
    assert (thief.startups, thief.passwords) == ([], [])


@pytest.mark.parametrize("query", ["", "?sslmode=disable", "?sslmode=prefer"])
@pytest.mark.usefixtures("runner")
def test_a_tenants_server_gets_no_password_of_the_runner(
    tmp_path: Path, thief: PasswordThief, query: str
) -> None:
    place = f"127.0.0.1:{thief.port}/ann"
    with pytest.raises(Unavailable):
        connect(context(tmp_path, f"postgresql://ann@{place}{query}", f"postgresql://{place}"))
    assert thief.startups, "the connection was made"
    assert thief.passwords == []
    assert b"runner" not in b"".join(thief.startups)
    assert b"search_path" not in b"".join(thief.startups)
    with pytest.raises(Unavailable):
        connect(context(tmp_path, f"postgresql://ann:own@{place}{query}", f"postgresql://{place}"))
    assert thief.passwords == [b"own\0"], "its own password it gets"


@pytest.mark.usefixtures("runner")
def test_an_admins_job_still_uses_the_password_of_the_runner(tmp_path: Path, thief: PasswordThief) -> None:
    dsn = f"postgresql://ann@127.0.0.1:{thief.port}/ann?sslmode=disable"
    with pytest.raises(Unavailable):
        connect(replace(context(tmp_path, dsn), tenant=None))
    assert thief.passwords == [b"from-the-service\0"], "which wins over the environment"


@pytest.mark.usefixtures("runner")
def test_a_name_that_leads_to_the_machine_itself_is_not_connected_to(
    tmp_path: Path, thief: PasswordThief, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve_as(monkeypatch, {"db.example": ["93.184.216.34", "127.0.0.1"]})
    job = context(
        tmp_path, f"postgresql://ann@db.example:{thief.port}/ann", f"postgresql://db.example:{thief.port}"
    )
    with pytest.raises(TenantRefused, match=r"api\.accounts\.ann\.networks"):
        connect(job)
    assert thief.startups == []


def resolve_as(monkeypatch: pytest.MonkeyPatch, names: dict[str, list[str]]) -> None:
    """Let names have these addresses: a test has no DNS of its own."""
    real = socket.getaddrinfo

    def look_up(host: object, *more: object, **named: object) -> object:
        if not isinstance(host, str) or host not in names:
            return real(host, *more, **named)  # type: ignore[arg-type]
        return [found for address in names[host] for found in real(address, *more, **named)]  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)


def serve_over_tcp(path: Path) -> int:
    """Forward one connection to a Unix socket; return the port: the tests' server has no other."""
    listener = socket.create_server(("127.0.0.1", 0))

    def pump(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def forward() -> None:
        with listener:
            client, _ = listener.accept()
            with client, socket.socket(socket.AF_UNIX) as server:
                server.connect(str(path))
                answers = threading.Thread(target=pump, args=(server, client), daemon=True)
                answers.start()
                pump(client, server)
                answers.join(10)

    threading.Thread(target=forward, daemon=True).start()
    return int(listener.getsockname()[1])


def test_a_tenants_copy_is_kept_over_a_name_in_an_allowed_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve_as(monkeypatch, {"db.example": ["127.0.0.1"]})
    server = conninfo_to_dict(shared_server().new_database())
    port = serve_over_tcp(Path(str(server["host"]), ".s.PGSQL.5432"))
    place = f"db.example:{port}/{server['dbname']}"
    job = context(
        tmp_path,
        f"postgresql://{server['user']}@{place}",
        f"postgresql://{place}",
        networks=("127.0.0.1/32",),
    )
    source = SourceModel(ITEMS)
    source.commit({"id": 1, "name": "one"})
    consumer = open_consumer(job)
    assert isinstance(consumer, Postgres)
    try:
        consumer.consume(source.retriever(0, source.ts))
        assert consumer.committed_ts() == source.ts
    finally:
        consumer.close()


def test_every_parameter_that_libpq_takes_from_its_environment_is_given() -> None:
    """A newer libpq may know more of them: each is given a value, or is known to do no harm."""
    from penstock.consumers.postgres import dsn as module

    target = tenant_target(SecretStr("postgresql://ann@db.example/ann"))
    text = tenant_connection_string(SecretStr("postgresql://ann@db.example/ann"), target, "93.184.216.34")
    options = psycopg.pq.Conninfo.get_defaults()
    from_environment = {option.keyword.decode() for option in options if option.envvar is not None}
    given = conninfo_to_dict(text)
    assert from_environment - given.keys() == module._HARMLESS & from_environment
    assert given["gssencmode"] == "disable", "the process's Kerberos ticket stays its own"


_PART = st.text(st.sampled_from("abz019.-_@:/?#%,=&[]\\' \n\x00é\uff41。*"), max_size=12)
_ALLOWED = st.sampled_from(
    ["db.example", "db.example:5432", "DB.example", "ann", "127.0.0.1", "%2C", "%40", "host="]
)
_DSN = st.one_of(
    st.builds(
        "{}://{}@{}/{}{}".format,
        st.sampled_from(["postgresql", "postgres"]),
        st.one_of(_PART, _ALLOWED),
        st.lists(st.one_of(_PART, _ALLOWED), min_size=1, max_size=3).map("".join),
        st.one_of(_PART, _ALLOWED),
        st.one_of(
            st.just(""), st.builds("?{}={}".format, st.sampled_from(["host", "port", "sslmode"]), _PART)
        ),
    ),
    st.lists(st.builds("{}={}".format, st.sampled_from(["host", "port", "dbname"]), _PART), max_size=4).map(
        " ".join
    ),
)


@settings(max_examples=1500)
@given(_DSN)
def test_what_was_accepted_is_what_is_connected_to(dsn: str) -> None:
    tenant = TenantTargets("ann", ("postgresql://db.example/ann",))
    try:
        target = tenant_target(SecretStr(dsn))
        tenant.check(target)
    except PenstockError:
        return
    found = conninfo_to_dict(tenant_connection_string(SecretStr(dsn), target, "93.184.216.34"))
    assert (found["host"], found["hostaddr"], found["port"], found["dbname"]) == (
        "db.example",
        "93.184.216.34",
        "5432",
        "ann",
    )
    assert not found.keys() & {"service", "servicefile"}
