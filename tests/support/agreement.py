"""Compares reads of a table with its versions: every reader must get the model's answer."""

import random  # noqa: TID251 - only the type; the caller decides the numbers
from collections.abc import Iterable
from contextlib import suppress
from itertools import pairwise
from typing import Any

from penstock.changes import ChangeBatch, ChangesPartition, collect_changes, plan_changes
from penstock.errors import Invalid, StaleRead, Unavailable
from penstock.eventstore.read.partition import TableView
from penstock.eventstore.read.snapshot import plan_snapshot, read_snapshot
from penstock.eventstore.sides import COMMIT_TS, OLD
from penstock.tables.records import key_follows_handle
from penstock.tables.schema import HandleKind
from penstock.testing.versions import CopiedTable, Snapshot, Versions, in_schema, key_of
from support.tableworld import ModelTable, TableWorld, gather_rows
from support.travel import send_copy

MODES: dict[str, dict[str, Any]] = {
    "all": {"coalesce": False, "old_rows": True},
    "coalesced": {},
    "skipping": {"skip_deletes": True},
    "all but skipped": {"coalesce": False, "skip_deletes": True},
    "again": {"replay": True},
    "all again": {"replay": True, "coalesce": False},
}
"""The ways in which changes are collected, each with its options."""


class Agreement:
    """Checks the reads of a world through one view of it."""

    def __init__(
        self, world: TableWorld, view: TableView | None = None, table: ModelTable | None = None
    ) -> None:
        self._world = world
        self._table = table or world.table
        self._versions: Versions = self._table.versions
        self._view = view or world.view()

    @property
    def _keys_move(self) -> bool:
        table = self._versions.table
        return bool(table.primary_key) and table.handle_kind is HandleKind.ROWID

    @property
    def _keys_fold(self) -> bool:
        """Whether a row keeps its handle when its key becomes one that the handle takes for the same."""
        return not key_follows_handle(self._versions.table)

    def of_snapshot(self, ts: int) -> None:
        """A snapshot is the table as of then; read at once and in parts."""
        columns, table = self._table.columns(ts), self._versions.table_at(ts)
        expected = self._versions.at(ts)
        assert gather_rows(read_snapshot(self._view, ts, columns=columns), table) == expected
        parts = [self._send(part) for part in plan_snapshot(self._view, ts, columns=columns, partitions=3)]
        assert gather_rows((batch for part in parts for batch in part.read()), table) == expected

    def of_changes(self, from_ts: int, to_ts: int, mode: str, mix: random.Random) -> None:
        """The changes of a range lead from its beginning to its end, through the handle and the plan."""
        options = {**MODES[mode], "batch_rows": mix.choice([1, 3, 8192])}
        with collect_changes(self._view, from_ts, to_ts, **options) as handle:
            batches = list(handle)
        target = self._target(from_ts, to_ts, mode, mix)
        target.take_all(batches)
        assert target.at_ts == to_ts, "the last batch does not say that the range is complete"
        self._check(target, from_ts, to_ts, mode)
        self._check_old_rows(batches)
        planned = plan_changes(
            self._view, from_ts, to_ts, partition_rows=mix.choice([1, 7, 10**6]), **options
        )
        self._of_plan([self._send(part) for part in planned], from_ts, to_ts, mode, mix)

    def _of_plan(
        self, parts: list[ChangesPartition], from_ts: int, to_ts: int, mode: str, mix: random.Random
    ) -> None:
        _check_cover(parts, from_ts, to_ts)
        whole = self._target(from_ts, to_ts, mode, mix)
        for part in parts:
            whole.at_ts = part.from_ts
            with part.collect() as handle:
                whole.take_all(handle)
        self._check(whole, from_ts, to_ts, mode)

    def _target(self, from_ts: int, to_ts: int, mode: str, mix: random.Random) -> CopiedTable:
        options = MODES[mode]
        again = "replay" in options
        # Where keys move between rows, only single changes tell a reader that goes back what to end.
        coalesced = options.get("coalesce", True) and not (again and self._keys_move)
        rows = self._partly(from_ts, to_ts, mix) if again else self._versions.at(from_ts)
        return CopiedTable(
            rows,
            from_ts,
            in_order=not coalesced or mix.choice([False, True]),
            coalesced=coalesced,
            upserts="skip_deletes" in options,
            again=again,
        )

    def _partly(self, from_ts: int, to_ts: int, mix: random.Random) -> Snapshot:
        """Return a target with some changes of the range applied: each row as of some moment in it."""
        states = [
            self._versions.at(ts)
            for ts in [from_ts, to_ts, *(step.ts for step in self._versions.steps(from_ts, to_ts))]
        ]
        keys = sorted({key for state in states for key in state})
        rows = {key: mix.choice(states).get(key) for key in keys}
        return {key: row for key, row in rows.items() if row is not None}

    def _check(self, target: CopiedTable, from_ts: int, to_ts: int, mode: str) -> None:
        table = self._versions.table_at(to_ts)
        found = {key: in_schema(row, table) for key, row in target.rows.items()}
        assert found == self._versions.at(to_ts), f"{mode}: the changes lead elsewhere"
        every = self._versions.steps(from_ts, to_ts)
        seen = sorted(target.seen, key=lambda step: step[:3])
        if mode in {"all", "all again"}:
            assert seen == every, "not exactly the changes"
        else:
            assert all(step in every for step in seen), "a change that never happened"
        if mode == "all but skipped":
            begun = {(step.ts, step.key) for step in every if step.order == 1}
            may_miss = [step for step in every if step.order == 0 and (step.ts, step.key) in begun]
            missing = [step for step in every if step not in seen]
            assert all(step in may_miss for step in missing), "an end is missing that is no update"
            # A row that goes to another partition, or another key, is no update of a row for a reader.
            may_move = self._keys_move or self._keys_fold or len(self._view.partitions) > 1
            assert missing == may_miss or may_move, "an update is not skipped"

    def _check_old_rows(self, batches: Iterable[ChangeBatch]) -> None:
        for batch in batches:
            if OLD not in batch.tombstones.schema.names:
                continue
            table = batch.schema.table
            for row in batch.tombstones.to_pylist():
                before = self._versions.at(row[COMMIT_TS] - 1)[key_of(table, row)]
                assert row[OLD] == in_schema(before, table), "the old row is another"

    def _send(self, part: Any) -> Any:
        return send_copy(part, stays=self._world.reader)


class NamedReads:
    """Reads of a world's tables by name: the model's answer, or an error for which the model has a reason.

    While DDLs, or changes, have not arrived, there may be an error and never another answer.
    """

    def __init__(self, world: TableWorld) -> None:
        self._world = world

    def of_snapshot(self, name: str, ts: int) -> bool:
        """Check the table of a name at `ts`; return whether there was an answer."""
        table = self._table_called(name, ts)
        try:
            view = self._world.find(name, ts)
            if table is None:
                rows = [row for batch in read_snapshot(view, ts) for row in batch.to_pylist()]
                self._check_absent(name, ts, rows)
                return False
            Agreement(self._world, view, table).of_snapshot(ts)
        except StaleRead as error:
            if table is not None and not ts < self._collected_ts(table, ts) == error.oldest_ts:
                raise AssertionError("stale for no reason") from error
        except (Invalid, Unavailable) as error:
            self._check_failure(error, table, ts)
        else:
            return True
        return False

    def of_changes(self, name: str, from_ts: int, to_ts: int, mode: str, mix: random.Random) -> bool:
        """Check the changes of a name in (from_ts, to_ts]; return whether there was an answer."""
        table = self._table_called(name, to_ts)
        try:
            view = self._world.find(name, to_ts)
            if table is None:
                with collect_changes(view, from_ts, to_ts) as handle:
                    rows = [row for batch in handle for row in batch.data.to_pylist()]
                self._check_absent(name, to_ts, rows)
                return False
            if self._breaks(table, from_ts, to_ts):
                self._check_end(view, table, from_ts, to_ts)
            else:
                Agreement(self._world, view, table).of_changes(from_ts, to_ts, mode, mix)
        except StaleRead as error:
            if table is not None:
                self._check_reason(error, view, table, from_ts, to_ts)
        except (Invalid, Unavailable) as error:
            if self._world.is_flushed(name):  # else who had the name at from_ts may not be known yet
                self._check_failure(error, table, to_ts)
        else:
            return True
        return False

    def _table_called(self, name: str, ts: int) -> ModelTable | None:
        return next((table for table in self._world.tables if table.name_at(ts) == name), None)

    def _breaks(self, table: ModelTable, from_ts: int, to_ts: int) -> list[int]:
        """Return the times in the range at which a DDL may have brought or removed rows without changes."""
        name = table.name_at(to_ts)
        renamed = [
            since for model in self._world.tables for since, _ in model.names if from_ts < since <= to_ts
        ]
        others = [self._table_called(name, ts) not in {None, table} for ts in (from_ts, *renamed)]
        own = [ts for ts in (*table.breaks, *table.recoveries) if from_ts < ts <= to_ts]
        return own + (renamed if any(others) else [])

    def _check_absent(self, name: str, ts: int, rows: list[Any]) -> None:
        """What is not there is not read, but for a table that gets the name later: it may have been there."""
        later = [
            table
            for table in self._world.tables
            if any(since > ts and called == name for since, called in table.names)
        ]
        assert later, f"there is no {name} at {ts}, and it was read: {rows}"
        assert not rows or any(model.name_at(ts) for model in later), f"there is no {name} at {ts}: {rows}"

    def _check_end(self, view: TableView, table: ModelTable, from_ts: int, to_ts: int) -> None:
        """An answer leads from what the name had to what it has, though not by every change."""
        before = self._table_called(table.name_at(to_ts), from_ts) or table
        target = CopiedTable(before.versions.at(from_ts), from_ts)
        with collect_changes(view, from_ts, to_ts) as handle:
            target.take_all(handle)
        schema = table.versions.table_at(to_ts)
        found = {key: in_schema(row, schema) for key, row in target.rows.items()}
        assert found == table.versions.at(to_ts), "the changes lead elsewhere"

    def _check_reason(
        self, error: StaleRead, view: TableView, table: ModelTable, from_ts: int, to_ts: int
    ) -> None:
        """There is a reason, whoever asks is told the same, and from where it says on there is none."""
        oldest_ts, collected_ts = error.oldest_ts, self._collected_ts(table, to_ts)
        breaks = self._breaks(table, from_ts, to_ts)
        known = self._ends_known(table.name_at(to_ts))  # else a table that is gone may be taken for there
        assert breaks or from_ts < collected_ts or not known, f"stale from {oldest_ts} on for no reason"
        assert oldest_ts in {collected_ts, *breaks} or not known, "of another moment"
        try:
            plan_changes(view, from_ts, to_ts)
        except StaleRead as again:
            if again.oldest_ts != oldest_ts:
                raise AssertionError("collecting and planning tell different moments") from error
        else:
            raise AssertionError("what is stale for who collects is planned") from error
        if collected_ts < oldest_ts < to_ts:
            with suppress(Unavailable), collect_changes(view, oldest_ts, to_ts) as handle:
                list(handle)

    def _check_failure(self, error: Invalid | Unavailable, table: ModelTable | None, ts: int) -> None:
        world = self._world
        arrived = table is not None and world.is_settled(ts) and world.readable_ts(table, ts) >= ts
        assert not arrived, f"everything has arrived, and yet: {error!r}"

    def _collected_ts(self, table: ModelTable, ts: int) -> int:
        return max(
            self._world.manifest(number).oldest_ts for number in table.versions.table_at(ts).physical_ids
        )

    def _ends_known(self, name: str) -> bool:
        """Return whether objects have the drop time of every table that had the name."""
        gone = [
            (since, table.versions.table_at(since - 1).physical_ids)
            for table in self._world.tables
            for since, called in table.names
            if not called and any(other == name for _, other in table.names)
        ]
        return all(self._world.manifest(number).flushed_ts >= ts for ts, ids in gone for number in ids)


def _check_cover(parts: list[ChangesPartition], from_ts: int, to_ts: int) -> None:
    """The parts are the range, each piece of it once: by time, and a single time by handle."""
    ranges = list(dict.fromkeys((part.from_ts, part.to_ts) for part in parts))
    assert [ranges[0][0], ranges[-1][1]] == [from_ts, to_ts], "the parts do not cover the range"
    assert all(before[1] == after[0] for before, after in pairwise(ranges)), "parts overlap or leave a gap"
    for span in ranges:
        cuts = [(part.handle_from, part.handle_to) for part in parts if (part.from_ts, part.to_ts) == span]
        assert (cuts[0][0], cuts[-1][1]) == (b"", b""), "the parts of a time do not cover all handles"
        assert all(before[1] == after[0] for before, after in pairwise(cuts))
