"""A target in PostgreSQL against a table as a dict.

Connections break at any byte, iterations are repeated, overtaken and given up. Whatever happens, the target
is the source at the watermark that it says it has.
"""

import random  # noqa: TID251 - seeded
import shutil
import tempfile
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from penstock.consumers.postgres import Postgres
from penstock.errors import Fenced, Unavailable
from penstock.tables import alter
from penstock.tables.define import define_table
from penstock.testing.consumers import ListRetriever, SourceModel, job_context
from penstock.testing.proxy import CuttingProxy
from support.campaign import examples
from support.postgres import shared_server

TABLES = {
    "number": define_table(
        "items", [("id", "bigint primary key"), ("_commit_ts", "varchar(99)"), ("_deleted", "decimal(8,2)")]
    ),
    "pair": define_table(
        "items", [("_handle", "varchar(9)"), ("n", "int"), ("doc", "json")], primary_key=["_handle", "n"]
    ),
    "no key": define_table("items", [("name", "varchar(99)"), ("at", "datetime(3)")]),
}
SOCKET = ".s.PGSQL.5432"
_schemas = count(1)
_dsn: list[str] = []


def dsn() -> str:
    """One database for all examples; each has a schema of its own."""
    if not _dsn:
        _dsn.append(shared_server().new_database())
    return _dsn[0]


class Target(RuleBasedStateMachine):
    @initialize(kind=st.sampled_from(sorted(TABLES)), seed=st.integers(0, 2**32))
    def begin(self, kind: str, seed: int) -> None:
        self.mix = random.Random(seed)
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-cut-"))
        given = conninfo_to_dict(dsn())
        self.proxy = CuttingProxy(self.folder / SOCKET, Path(str(given["host"])) / SOCKET).__enter__()
        self.schema = f"s{next(_schemas)}"
        self.direct = psycopg.connect(dsn(), autocommit=True)
        self.direct.execute(f"CREATE SCHEMA {self.schema}")
        shaky = make_conninfo(**{**given, "host": str(self.folder)})
        options = {"dsn": shaky, "schema": self.schema}
        self.context = job_context(self.folder, "postgres", options)
        self.source = SourceModel(replace(TABLES[kind], id=1))
        self.source.churn(self.mix, commits=3)
        self.log_ts = 0
        self.columns = 0

    def teardown(self) -> None:
        if hasattr(self, "direct"):
            self.direct.execute(f"DROP SCHEMA {self.schema} CASCADE")
            self.direct.close()
            self.proxy.__exit__()
            shutil.rmtree(self.folder)

    def committed_ts(self) -> int:
        consumer = Postgres(self.context)
        try:
            return consumer.committed_ts()
        finally:
            consumer.close()

    def iteration(self, *, resync: bool = False) -> ListRetriever:
        """What the runner begins: the log follows the target."""
        self.log_ts = max(self.log_ts, self.committed_ts())
        from_ts = 0 if resync else self.log_ts
        return self.source.retriever(
            from_ts,
            self.source.ts,
            batch_rows=self.mix.choice([1, 5, 100]),
            ends_of_updates=self.mix.random() < 0.5,
        )

    def consume(self, data: ListRetriever) -> None:
        consumer = Postgres(self.context)
        try:
            consumer.consume(data)
        finally:
            consumer.close()
        self.log_ts = data.to_ts

    @rule(commits=st.integers(1, 5))
    def change(self, commits: int) -> None:
        self.source.churn(self.mix, commits=commits, numbers=12)

    @rule()
    def add_a_column(self) -> None:
        self.columns += 1
        default = self.mix.choice(["", " default 'old'", " not null default 'older'"])
        self.source.alter(alter.add_column(self.source.table, f"c{self.columns}", f"varchar(9){default}"))

    @rule()
    def drop_a_column(self) -> None:
        names = [each.name for each in self.source.table.columns if each.name.startswith("c")]
        if names:
            self.source.alter(alter.drop_column(self.source.table, self.mix.choice(names)))

    @rule(resync=st.booleans())
    def go_on(self, resync: bool) -> None:
        self.consume(self.iteration(resync=resync))

    @rule(resync=st.booleans(), nbytes=st.integers(1, 9_000))
    def break_off(self, resync: bool, nbytes: int) -> None:
        data = self.iteration(resync=resync)
        self.proxy.cut_after(nbytes)
        try:
            self.consume(data)
        except Unavailable:
            pass
        finally:
            self.proxy.heal()

    @rule(resync=st.booleans())
    def repeat(self, resync: bool) -> None:
        data = self.iteration(resync=resync)
        again = data.again()
        self.consume(data)
        if not resync and data.from_ts and data.from_ts != data.to_ts:
            try:
                self.consume(again)
            except Fenced:
                return
            raise AssertionError("an iteration was applied twice")

    @rule(resync=st.booleans())
    def overtake(self, resync: bool) -> None:
        """An iteration that was given up goes on when another one is through."""
        given_up = self.iteration(resync=resync)
        self.source.churn(self.mix, commits=2)
        newer = self.iteration(resync=resync)

        def meanwhile(_: str) -> None:
            given_up.fault = lambda _: None
            self.consume(newer)

        given_up.fault = meanwhile
        try:
            self.consume(given_up)
        except Fenced:
            return
        raise AssertionError("an iteration was committed that had been given up")

    @invariant()
    def target_is_the_source_at_its_watermark(self) -> None:
        if not hasattr(self, "direct"):
            return
        ts = self.committed_ts()
        assert ts >= self.log_ts
        tables = self.direct.execute(
            "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = %s::regnamespace",
            [self.schema],
        ).fetchall()
        assert {name for (name,) in tables} <= {"items", "penstock_watermarks"}
        if ts:
            assert self.rows(ts) == self.source.at(ts)

    def rows(self, ts: int) -> dict[Any, Any]:
        table = self.source.versions.table_at(ts)
        keys = [each.name for each in table.primary_key] or ["_handle"]
        names = [each.name for each in table.columns]
        texts = ", ".join(f"{name}::text" if name == "doc" else name for name in names)
        found = self.direct.execute(f"SELECT {', '.join(keys)}, {texts} FROM {self.schema}.items").fetchall()
        made = {row[: len(keys)]: dict(zip(names, row[len(keys) :], strict=True)) for row in found}
        assert len(made) == len(found)
        return made


TestTarget = Target.TestCase
TestTarget.settings = settings(max_examples=examples(6, 15), stateful_step_count=15, deadline=None)
