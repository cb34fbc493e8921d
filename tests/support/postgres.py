"""A PostgreSQL server for tests: of PyPI's pgserver, else of Debian. It listens on a socket file alone.

dsn = shared_server().new_database()
"""

import atexit
import os
import pwd
import shutil
import subprocess
import tempfile
from functools import cache
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import BinaryIO, Self

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from penstock.clock import SYSTEM, Clock

__all__ = ["PostgresServer", "shared_server"]

_START_S = 60.0
_STOP_S = 30.0
_POLL_S = 0.02
_UNPRIVILEGED = "nobody"
_DEBIAN = Path("/usr/lib/postgresql")
# Ends the server when its standard input is closed, also because the test process was killed.
_WATCHED = '"$@" & child=$!; cat > /dev/null; kill -INT "$child" 2> /dev/null; wait "$child"'
_FAST = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "max_connections": "50"}


class PostgresServer:
    """A context: a server with a directory of its own, which is gone with it.

    PostgreSQL does not run as root; started by root, it runs as `nobody`.
    """

    def __init__(self, *, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._account = pwd.getpwnam(_UNPRIVILEGED) if os.geteuid() == 0 else None
        self._folder = Path()
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = count(1)

    def __enter__(self) -> Self:
        # A path of its own in /tmp: names of sockets are short, and pytest's directories are root's alone.
        self._folder = Path(tempfile.mkdtemp(prefix="penstock-pg-"))
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.communicate(timeout=_STOP_S)
        self._process = None
        shutil.rmtree(self._folder, ignore_errors=True)

    def new_database(self) -> str:
        """Make an empty database and return how to connect to it."""
        name = f"test_{next(self._numbers)}"
        self._admin(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return self._dsn(name)

    def end_connections(self, dsn: str) -> None:
        """End everybody's connections to a database, whatever they are doing, as an administrator would."""
        name = psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]
        self._admin(
            sql.SQL("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = {}").format(
                sql.Literal(name)
            )
        )

    def _start(self) -> None:
        if self._account is not None:
            os.chown(self._folder, self._account.pw_uid, self._account.pw_gid)
        binaries, data = self._binaries(), str(self._folder / "data")
        initdb = [str(binaries / "initdb"), "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8"]
        self._run([*initdb, "--locale=C", "--no-sync"])
        options = [f"--{name}={value}" for name, value in _FAST.items()]
        server = [str(binaries / "postgres"), "-D", data, "-k", str(self._folder), "-h", "", *options]
        with (self._folder / "log").open("wb") as log:
            self._process = self._launch(["/bin/sh", "-c", _WATCHED, "sh", *server], log)
        self._wait()

    def _binaries(self) -> Path:
        """Return the first directory of PostgreSQL's programs that the account can run."""
        packaged = find_spec("pgserver")  # not imported: it warns about directories that are not used here
        places = [Path(packaged.origin).parent / "pginstall/bin"] if packaged and packaged.origin else []
        places += sorted(_DEBIAN.glob("*/bin"), key=lambda each: int(each.parent.name), reverse=True)
        for place in places:
            try:
                self._run([str(place / "postgres"), "--version"])
            except (OSError, AssertionError):
                continue
            return place
        raise AssertionError("there is no PostgreSQL; install pgserver or Debian's postgresql")

    def _run(self, command: list[str]) -> None:
        process = self._launch(command, subprocess.PIPE)
        output, _ = process.communicate(timeout=_START_S)
        assert process.returncode == 0, f"{command[0]} failed:\n{output.decode(errors='replace')}"

    def _launch(self, command: list[str], output: int | BinaryIO) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603 - PostgreSQL's own programs
            command,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=self._folder,
            user=self._account and self._account.pw_uid,
            group=self._account and self._account.pw_gid,
            extra_groups=() if self._account else None,
        )

    def _wait(self) -> None:
        deadline = self._clock.monotonic() + _START_S
        while True:
            try:
                self._admin(sql.SQL("SELECT 1"))
            except psycopg.OperationalError:
                if self._clock.monotonic() > deadline:
                    log = (self._folder / "log").read_text(errors="replace")
                    raise AssertionError(f"PostgreSQL did not start:\n{log}") from None
                self._clock.pause(_POLL_S)
            else:
                return

    def _dsn(self, database: str) -> str:
        return make_conninfo(host=str(self._folder), user="postgres", dbname=database)

    def _admin(self, statement: sql.SQL | sql.Composed) -> None:
        with psycopg.connect(self._dsn("postgres"), autocommit=True) as connection:
            connection.execute(statement)


@cache
def shared_server() -> PostgresServer:
    """Return the process's server, started when it is first asked for; it ends with the process."""
    server = PostgresServer().__enter__()
    atexit.register(server.__exit__)
    return server
