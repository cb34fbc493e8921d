"""A MariaDB server of Debian for the judges: on a loopback port, with a directory of its own.

with MariaDb.start() as database:
    database.query("SELECT 1")
"""

import os
import shutil
import socket
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Self

from penstock.clock import SYSTEM, Clock
from penstock.errors import Invalid, Unavailable

__all__ = ["Column", "MariaDb", "quote"]

_START_S = 60.0
_STOP_S = 30.0
_POLL_S = 0.05
_HEX_TYPES = frozenset({"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "bit"})
_DEFINITION = ("column_type", "is_nullable", "column_default", "extra", "collation_name", "column_comment")
_SETTINGS = (
    "--bind-address=127.0.0.1",
    "--character-set-server=utf8mb4",
    "--collation-server=utf8mb4_bin",
    "--default-time-zone=+00:00",
    "--innodb-buffer-pool-size=64M",
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-log-file-size=16M",
    "--max-allowed-packet=256M",
    "--skip-log-bin",
    "--skip-name-resolve",
)
Column = tuple[str, str]
"""A column's name and type, without its length."""


def quote(name: str) -> str:
    """Return an identifier in backquotes."""
    return "`{}`".format(name.replace("`", "``"))


def _literal(text: str) -> str:
    return f"x'{text.encode().hex()}'" if text else "''"


class MariaDb:
    """A context: the server ends with it, and its directory is gone. `port` is where it listens."""

    def __init__(self, *, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        # Names of sockets are short; pytest's folders are not.
        self._folder = Path(tempfile.mkdtemp(prefix="penstock-mariadb-"))
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    @classmethod
    def start(cls) -> Self:
        """Start a server; raise Invalid when there is none to start, Unavailable when it does not come up."""
        if shutil.which("mariadbd") is None or shutil.which("mariadb-install-db") is None:
            raise Invalid("the judges need MariaDB; install it, for instance: apt-get install mariadb-server")
        server = cls()
        try:
            server._install()
            server._launch()
        except BaseException:
            server.close()
            raise
        return server

    @property
    def uri(self) -> str:
        """The address for TiCDC's sinks, without parameters."""
        return f"mysql://root@127.0.0.1:{self.port}/"

    @property
    def log(self) -> str:
        """What the server wrote to its log."""
        return (self._folder / "server.log").read_text(errors="replace")

    def _install(self) -> None:
        command = ["mariadb-install-db", "--no-defaults", f"--datadir={self._data}", *self._user]
        command += ["--auth-root-authentication-method=normal", "--skip-test-db"]
        made = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_START_S)  # noqa: S603
        if made.returncode:
            raise Unavailable(f"mariadb-install-db failed: {made.stderr.strip()[-300:]}")

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    @property
    def _user(self) -> list[str]:
        return ["--user=root"] if os.geteuid() == 0 else []

    def _launch(self) -> None:
        self.port = _free_port()
        command = ["mariadbd", "--no-defaults", f"--datadir={self._data}", f"--socket={self._socket}"]
        command += [f"--port={self.port}", f"--pid-file={self._folder}/pid", *self._user, *_SETTINGS]
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)  # noqa: S603
        deadline = self._clock.monotonic() + _START_S
        while True:
            try:
                self.query("SELECT 1")
            except Unavailable:
                if self._process.poll() is not None or self._clock.monotonic() > deadline:
                    raise Unavailable(f"MariaDB did not start: {self.log[-500:]}") from None
                self._clock.pause(_POLL_S)
            else:
                return

    @property
    def _socket(self) -> Path:
        return self._folder / "socket"

    def query(self, statement: str) -> list[list[str]]:
        """Run a statement; return its rows as the client prints them, with NULL for no value."""
        command = ["mariadb", "--no-defaults", f"--socket={self._socket}", "--user=root", "--batch"]
        command += ["--skip-column-names", "--default-character-set=utf8mb4"]
        done = subprocess.run(  # noqa: S603
            command, input=statement.encode(), capture_output=True, check=False, timeout=120
        )
        if done.returncode:
            raise Unavailable(done.stderr.decode(errors="replace").strip())
        return [line.split("\t") for line in done.stdout.decode().splitlines()]

    def tables(self) -> set[str]:
        """Return the names of all base tables that are no system tables, as `database.table`."""
        rows = self.query(
            "SELECT HEX(CONCAT(table_schema, '.', table_name)) FROM information_schema.tables"
            " WHERE table_type = 'BASE TABLE'"
            " AND table_schema NOT IN ('mysql', 'information_schema', 'performance_schema', 'sys')"
        )
        return {_text(name) for (name,) in rows}

    def columns(self, table: str) -> list[Column]:
        """Return the columns of `database.table` in order."""
        database, _, name = table.partition(".")
        rows = self.query(
            "SELECT HEX(column_name), data_type FROM information_schema.columns"  # noqa: S608 - literals in hex
            f" WHERE table_schema = {_literal(database)} AND table_name = {_literal(name)}"
            " ORDER BY ordinal_position"
        )
        return [(_text(column), kind) for column, kind in rows]

    def definitions(self, table: str) -> dict[str, dict[str, str | None]]:
        """Return what information_schema says of each column of `database.table`."""
        database, _, name = table.partition(".")
        said = ", ".join(f"HEX({field})" for field in _DEFINITION)
        rows = self.query(
            f"SELECT HEX(column_name), {said} FROM information_schema.columns"  # noqa: S608 - literals in hex
            f" WHERE table_schema = {_literal(database)} AND table_name = {_literal(name)}"
            " ORDER BY ordinal_position"
        )
        return {
            _text(column): dict(
                zip(_DEFINITION, [None if cell == "NULL" else _text(cell) for cell in cells], strict=True)
            )
            for column, *cells in rows
        }

    def rows(self, table: str) -> list[tuple[str | None, ...]]:
        """Return every row as text: binary strings and BIT as 0x and hex, all else as MariaDB prints it."""
        database, _, name = table.partition(".")
        columns = self.columns(table)
        wanted = ", ".join(_as_hex(column, kind) for column, kind in columns)
        answer = self.query(f"SELECT {wanted} FROM {quote(database)}.{quote(name)}")  # noqa: S608
        return [
            tuple(_value(cell, kind) for cell, (_, kind) in zip(row, columns, strict=True)) for row in answer
        ]

    def create_statement(self, table: str) -> str:
        """Return SHOW CREATE TABLE."""
        database, _, name = table.partition(".")
        (row,) = self.query(f"SHOW CREATE TABLE {quote(database)}.{quote(name)}")
        return row[1].replace("\\n", "\n").replace("\\\\", "\\")

    def close(self) -> None:
        """End the server and remove its directory."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self.close()


def _as_hex(column: str, kind: str) -> str:
    """The client's text escapes and its NULL are ambiguous; hex is not."""
    name = quote(column)
    if kind == "bit":
        return f"HEX(CAST({name} AS BINARY))"
    if kind in _HEX_TYPES:
        return f"HEX({name})"
    if kind == "float":
        return f"HEX(CAST(CAST({name} AS DOUBLE) AS CHAR CHARACTER SET utf8mb4))"
    return f"HEX(CAST({name} AS CHAR CHARACTER SET utf8mb4))"


def _value(cell: str, kind: str) -> str | None:
    if cell == "NULL":
        return None
    return f"0x{cell.lower()}" if kind in _HEX_TYPES else _text(cell)


def _text(cell: str) -> str:
    return bytes.fromhex(cell).decode()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
