"""Random tables, changes, DDLs and crashes against what a changefeed promises.

Checked while it happens: nothing after a DDL is sent before the DDL is written; a DDL is written when
everything before it is on the remote; a checkpoint, whoever is told, is never ahead of the remote; DDLs that
overlap come in order. At the end every row that was to be carried is on the remote exactly once, whatever was
killed.
"""

import asyncio
import random  # noqa: TID251 - seeded by Hypothesis
from dataclasses import dataclass

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock import eventloop
from penstock.changefeeds.changefeed import Changefeed
from penstock.changefeeds.filters import TableFilter
from penstock.changefeeds.resume import ChangefeedOptions
from penstock.changes.limits import ReadLimit
from penstock.clock import SYSTEM
from penstock.eventstore.schema_version import SchemaVersion
from penstock.follow.ddl_events import DdlEvent, DdlScope
from penstock.follow.slices import Position, Slice
from support.campaign import examples
from support.ddlevents import (
    alter_table,
    create_table,
    drop_database,
    drop_table,
    rename_tables,
    table_schema,
    truncate_table,
)
from support.sinkdoubles import MemoryProgress, ScriptedSource
from support.sinkrecorder import RecordingSink, RemoteDouble

BEGIN = 100
DEADLINE_S = 20.0
CARRIED = TableFilter(("shop.*",))
HANDLES = [b"a", b"b", b"c", b"d", b"e"]
STEPS = st.lists(
    st.sampled_from(
        ["put"] * 8 + ["alter", "create", "drop", "truncate", "rename", "move", "swap", "drop all"]
    ),
    max_size=25,
)


class Killed(Exception):
    """The process is gone."""


class SwiftClock:
    def __init__(self) -> None:
        self.now = 0.0

    def wall_ms(self) -> int:
        return 0

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        await SYSTEM.sleep(0)
        self.now += seconds

    def random(self) -> float:
        return 0.5


class History:
    """A script of a database, and what of it a changefeed has to carry."""

    def __init__(self, steps: list[str], mix: random.Random, *, snapshot: bool) -> None:
        first = [table_schema(1), table_schema(2), table_schema(3, "other.t3")]
        self.source = ScriptedSource(first)
        self.wanted: list[tuple[int, int, bytes]] = []
        self._tables = {each.table.id: each for each in first}
        self._next_id = 4
        self._ts = 50
        for schema in first:
            for handle in mix.sample(HANDLES, 3):
                self.source.put(schema.table.id, self._ts, handle)
                if snapshot and CARRIED.matches(schema):
                    self.wanted.append((schema.table.id, BEGIN, handle))
        self._ts = BEGIN
        for step in steps:
            self._ts += mix.randint(1, 3)
            self._do(step, mix)
        self.end_ts = self._ts + 2
        self.source.advance(BEGIN)

    def _do(self, step: str, mix: random.Random) -> None:
        if step == "create":
            self._ddl(create_table(self._ts, table_schema(self._new_id())))
        if not self._tables:
            return
        schema = mix.choice(list(self._tables.values()))
        if step == "put":
            for handle in mix.sample(HANDLES, mix.randint(1, 3)):
                self.source.put(schema.table.id, self._ts, handle)
                if CARRIED.matches(schema):
                    self.wanted.append((schema.table.id, self._ts, handle))
        elif step == "alter":
            self._ddl(alter_table(self._ts, schema))
            if mix.random() < 0.5:  # rows of the very commit_ts have the new schema
                self._do("put", mix)
        elif step == "drop":
            self._ddl(drop_table(self._ts, schema))
        elif step == "truncate":
            self._ddl(truncate_table(self._ts, schema, self._new_id()))
        elif step in {"rename", "move"}:
            database = schema.database
            if step == "move":
                database = "other" if database == "shop" else "shop"
            self._ddl(rename_tables(self._ts, (schema, f"{database}.t{self._new_id()}")))
        elif step == "swap" and len(self._tables) > 1:
            one, two = mix.sample(list(self._tables.values()), 2)
            self._ddl(rename_tables(self._ts, (one, two.name), (two, one.name)))
        elif step == "drop all":
            inside = [each for each in self._tables.values() if each.database == "shop"]
            self._ddl(drop_database(self._ts, "shop", inside))

    def _ddl(self, event: DdlEvent) -> None:
        self.source.ddl(event)
        self._tables = {each.table.id: each for each in self._after(event)}

    def _after(self, event: DdlEvent) -> list[SchemaVersion]:
        gone = {change.before.table.id for change in event.tables if change.before}
        stay = [each for each in self._tables.values() if each.table.id not in gone]
        return stay + [change.after for change in event.tables if change.after]

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id


@dataclass
class Checks:
    """Holds what happens against the promises."""

    history: History
    remote: RemoteDouble

    def rows(self) -> list[tuple[int, int, bytes]]:
        return [row for pieces in self.remote.files.values() for piece in pieces for row in self._rows(piece)]

    def sent(self, piece: Slice) -> None:
        done = {(event.commit_ts, event.query) for event in self.remote.ddls}
        for event in self.history.source.events:
            if BEGIN < event.commit_ts <= piece.end.ts and self._concerns(event, piece.dispatcher.table_id):
                assert event.commit_ts <= piece.start.ts + 1, "a slice crosses a DDL"
                assert (event.commit_ts, event.query) in done, f"sent past the DDL at {event.commit_ts}"
        assert not set(self._rows(piece)) & set(self.rows()), "sent again what is on the remote"

    def ddl(self, event: DdlEvent) -> None:
        there = set(self.rows())
        for row in self.history.wanted:
            if row[1] < event.commit_ts and self._concerns(event, row[0]):
                assert row in there, f"the DDL at {event.commit_ts} overtook {row}"
        for written in self.remote.ddls:
            if written.commit_ts > event.commit_ts:
                assert not _overlap(written, event), f"{written} came before {event}"

    def checkpoint(self, ts: int) -> None:
        missing = {row for row in self.history.wanted if row[1] <= ts} - set(self.rows())
        assert not missing, f"checkpoint {ts} is ahead of {sorted(missing)}"
        done = {event.commit_ts for event in self.remote.ddls}
        for event in self.history.source.events:
            if CARRIED.filter_ddl(event) is not None and event.commit_ts <= ts:
                assert event.commit_ts in done, f"checkpoint {ts} is ahead of the DDL at {event.commit_ts}"

    def _rows(self, piece: Slice) -> list[tuple[int, int, bytes]]:
        return [(piece.dispatcher.table_id, *row) for row in self.history.source.rows_in(piece)]

    def _concerns(self, event: DdlEvent, table_id: int) -> bool:
        part = CARRIED.filter_ddl(event)
        if part is None:
            return False
        sides = [side for change in part.tables for side in (change.before, change.after) if side]
        if part.scope is DdlScope.DATABASE:
            there = [
                each for each in self.history.source.tables(event.commit_ts - 1) if CARRIED.matches(each)
            ]
            sides += [each for each in there if each.database == event.database]
        return any(table_id in side.table.physical_ids for side in sides)


def _overlap(one: DdlEvent, other: DdlEvent) -> bool:
    parts = [part for event in (one, other) if (part := CARRIED.filter_ddl(event)) is not None]
    ids, names, databases = (
        [
            {value(side) for change in part.tables for side in (change.before, change.after) if side}
            for part in parts
        ]
        for value in (lambda side: side.table.id, lambda side: side.name, lambda side: side.database)
    )
    wholes = [{part.database} if part.scope is DdlScope.DATABASE else set() for part in parts]
    return bool(
        ids[0] & ids[1]
        or names[0] & names[1]
        or wholes[0] & (wholes[1] | databases[1])
        or wholes[1] & databases[0]
    )


class Run:
    """Lives of one changefeed over one history; each ends with a kill, a pause or the end."""

    def __init__(self, history: History, mix: random.Random, kills: list[int], **options: object) -> None:
        self.history = history
        self.options = options
        self.mix = mix
        self.remote = RemoteDouble()
        self.checks = Checks(history, self.remote)
        self.begin = Position(BEGIN, b"") if options.pop("snapshot") else Position(BEGIN)
        self.progress = MemoryProgress(self.begin, fault=self._operation)
        self.kills = kills
        self.countdown = 0
        self.dead = False
        self.sink: RecordingSink | None = None

    async def run(self) -> None:
        source = self.history.source
        source.fault = self._operation
        for kill in [*self.kills, 0]:
            self.dead, self.countdown = False, kill
            if not await self._live(last=not kill):
                break
        assert sorted(self.checks.rows()) == sorted(self.history.wanted)
        assert self.progress.checkpoints[-1] == self.remote.checkpoints[-1] == self.history.end_ts
        there = [each for each in source.tables(self.history.end_ts) if CARRIED.matches(each)]
        assert {each.span.table_id for each in self.progress.kept.values()} == {
            each.table.id for each in there
        }

    async def _live(self, *, last: bool) -> bool:
        """Whether there is something left to do afterwards."""
        feed = Changefeed(
            "feed",
            ChangefeedOptions(
                begin=self.begin,
                tables=CARRIED,
                target_ts=self.history.end_ts,
                slice_limit=ReadLimit(rows=self.mix.randint(1, 4)),
                reads_max=self.mix.randint(1, 3),
                **self.options,  # type: ignore[arg-type] - by name
            ),
            source=self.history.source,
            open_sink=self._open,
            files=self.remote,
            progress=self.progress,
            give_up_s=0.0,
            clock=SwiftClock(),
        )
        self.sink = None
        running = asyncio.create_task(feed.run())
        turns, deadline = self.mix.randint(1, 1000), SYSTEM.monotonic() + DEADLINE_S
        while not running.done():
            await SYSTEM.sleep(0)
            if self.sink is not None and not self.dead:
                await self._shake(self.sink)
            turns -= 1
            if not turns and not last:
                running.cancel()  # a pause
            assert SYSTEM.monotonic() < deadline, "it never ended"
        try:
            await running
        except (Killed, asyncio.CancelledError):
            assert not last
            return True
        return False

    async def _open(self) -> RecordingSink:
        self.sink = RecordingSink(self.remote, self.progress, wake=False, write=False, fault=self._operation)
        self.sink.on_add = self.checks.sent
        self.sink.on_ddl = self._write_ddl
        held = [event.commit_ts for event in self.history.source.events if self.mix.random() < 0.3]
        self.sink.ddls_held.update({commit_ts: asyncio.Event() for commit_ts in held})
        return self.sink

    def _write_ddl(self, event: DdlEvent) -> None:
        assert event.commit_ts not in self.progress.done, f"the DDL at {event.commit_ts} is done again"
        self.checks.ddl(event)

    async def _shake(self, sink: RecordingSink) -> None:
        """Let time pass, wake somebody, write something: whatever comes up."""
        source, mix = self.history.source, self.mix
        what = mix.random()
        waiting = [key for key, events in sink.events.items() if events]
        if sink.ddls_held and mix.random() < 0.1:
            sink.ddls_held.pop(mix.choice(list(sink.ddls_held))).set()
        if what < 0.3:
            before_ts = source.resolved_ts
            if source.resolved_ts < self.history.end_ts:
                source.advance(source.resolved_ts + mix.randint(1, 6))
            kept_back = [
                each for each in range(1, 9) if mix.random() < (0.8 if each in source.lagging else 0.1)
            ]
            source.ddl_lag_ts = mix.choice(
                [None, None, before_ts if source.ddl_lag_ts is None else source.ddl_lag_ts]
            )
            source.lagging = {each: source.lagging.get(each, before_ts) for each in kept_back}
        elif what < 0.7 and sink.unwoken:
            sink.unwoken.pop(mix.randrange(len(sink.unwoken))).post_enqueue()
        elif waiting:
            try:
                await sink.flush(mix.choice(waiting), mix.randint(1, 4), files=mix.randint(1, 3))
            except Killed as error:
                sink.fail(error)

    def _operation(self, name: str) -> None:
        if name == "kept_checkpoint":
            self.checks.checkpoint(self.progress.checkpoints[-1])
        if self.dead:
            raise Killed
        self.countdown -= 1
        if self.countdown == 0:
            self.dead = True
            raise Killed


@settings(max_examples=examples(120), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    steps=STEPS,
    seed=st.integers(0, 2**32),
    kills=st.lists(st.integers(1, 60), max_size=6),
    snapshot=st.booleans(),
    split_rows=st.sampled_from([0, 0, 1, 2]),
)
def test_nothing_is_lost_repeated_or_out_of_order(
    steps: list[str], seed: int, kills: list[int], snapshot: bool, split_rows: int
) -> None:
    mix = random.Random(seed)
    history = History(steps, mix, snapshot=snapshot)

    async def main() -> None:
        await Run(history, mix, kills, snapshot=snapshot, split_rows=split_rows).run()

    eventloop.run(main())
