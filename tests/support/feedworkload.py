"""What happens in a simulated database: transactions, storms of DDLs, captures that come late."""

import random  # noqa: TID251 - only the type; the simulation's seed decides the numbers
from collections.abc import Sequence
from typing import Any

from penstock.testing.versions import Row
from support.feedworld import FeedWorld, Place, WorldTable

__all__ = ["FeedWorkload"]


class FeedWorkload:
    """Acts on a world by chance. `kinds` are those of its tables (see itemtables)."""

    def __init__(
        self,
        world: FeedWorld,
        mix: random.Random,
        *,
        kinds: Sequence[str],
        commit_rows_max: int,
        drops_databases: bool,
    ) -> None:
        self._world = world
        self._mix = mix
        self._kinds = kinds
        self._commit_rows_max = commit_rows_max
        self._drops_databases = drops_databases
        self._names = 10

    def set_up(self, *, rows: bool) -> None:
        """Some tables, with rows or without."""
        world, mix = self._world, self._mix
        for name in ("shop", "shop2"):
            world.create_database(name)
        for number in range(mix.randint(2, 5)):
            world.create_table(f"shop.t{number}", mix.choice(self._kinds), mix.choice([0, 0, 0, 2]))
        self.capture(1.0)
        if not rows:
            return
        for table in list(world.tables.values()):
            for _ in range(mix.randint(0, 3)):
                self._change_rows(table, mix.randint(1, 15))
        world.resolve_ddls()
        world.resolve()
        for table_id in sorted(world.store.tables()):
            if mix.random() < 0.8:
                world.flush(table_id)

    def act(self) -> None:
        """Something happens, and some of it becomes known."""
        mix, world = self._mix, self._world
        what = mix.random()
        tables = list(world.tables.values())
        if what < 0.55 and tables:
            self._transaction(tables)
        elif what < 0.62 and tables:
            self._change_rows(mix.choice(tables), self._commit_rows_max)
        elif what < 0.8:
            for _ in range(mix.choice([1, 1, 1, 4])):
                self._ddl()
                if mix.random() < 0.5 and world.tables:
                    self._transaction(list(world.tables.values()))
        if mix.random() < 0.7:
            world.resolve_ddls()
        self.capture(0.6)
        ids = sorted(world.store.tables())
        chosen = ids if mix.random() < 0.5 else mix.sample(ids, mix.randint(0, len(ids)))
        world.resolve(chosen)
        if chosen and mix.random() < 0.2:
            world.resolve_ddls()
            world.flush(mix.choice(chosen))

    def capture(self, chance: float) -> None:
        """Captures find tables some time after they were made, and leave those that are gone."""
        there = self._world.physical_ids
        for physical_id in sorted(self._world.uncaptured):
            if physical_id in there and self._mix.random() < chance:
                self._world.capture(physical_id)
        for table in sorted(self._world.store.tables()):
            if self._world.is_done(table) and self._mix.random() < chance / 2:
                self._world.give_up(table)

    def _transaction(self, tables: list[WorldTable]) -> None:
        chosen = self._mix.sample(tables, min(len(tables), self._mix.choice([1, 1, 2])))
        self._world.commit(*(self._changes(picked, self._mix.randint(1, 6)) for picked in chosen))

    def _change_rows(self, table: WorldTable, rows: int) -> None:
        self._world.commit(self._changes(table, rows))

    def _changes(self, table: WorldTable, rows: int) -> tuple[WorldTable, list[Place], list[Row]]:
        mix = self._mix
        there = list(table.rows)
        touched = mix.sample(there, min(len(there), rows * mix.choice([0, 1, 1, 2]) // 2))
        leaving: list[Place] = []
        coming: list[Row] = []
        taken = {held.row["id"] for held in table.rows.values()}
        clustered = table.info.primary_key and table.info.handle_kind.name != "ROWID"
        free = (number for number in iter(lambda: mix.randint(1, 10**6), None) if number not in taken)
        if not clustered and len(touched) > 1 and mix.random() < 0.3:  # two rows change keys
            one, two, *touched = touched
            if one[0] == two[0]:
                ids = table.rows[one].row["id"], table.rows[two].row["id"]
                coming += [
                    {**table.rows[at].row, "id": number, "_at": at}
                    for at, number in zip((two, one), ids, strict=True)
                ]
        for at in touched:
            row = dict(table.rows[at].row)
            what = mix.random()
            if what < 0.3:
                leaving.append(at)
                again = not clustered and mix.random() < 0.3  # as another row
                if again and table.place(row, 0)[0] == at[0]:  # in TiDB a key never changes its partition
                    coming.append({**row, "name": "again"})
                continue
            row["name"] = "x" * mix.randint(0, 30) + str(mix.randint(0, 10**6))
            if what < 0.45:  # its key changes
                row["id"] = next(free)
                taken.add(row["id"])
                moved = table.place(row, at[1] if isinstance(at[1], int) else 0)
                if clustered or moved[0] != at[0]:
                    leaving.append(at)
                    coming.append({**row, "_at": moved})
                    continue
            coming.append({**row, "_at": at})
        for _ in range(rows - len(touched)):
            row = {column.name: self._value(column.name) for column in table.info.stored_columns}
            row["id"] = next(free)
            taken.add(row["id"])
            if "part" in row:
                row["part"] = f"p{row['id'] % 3}"
            coming.append(row)
        if not leaving and not coming:
            return self._changes(table, 1)
        return table, leaving, coming

    def _value(self, column: str) -> Any:
        if column == "name":
            return "n" * self._mix.randint(0, 40)
        return self._mix.choice([None, self._mix.randint(-5, 5)])

    def _ddl(self) -> None:
        mix, world = self._mix, self._world
        what = mix.random()
        tables = list(world.tables.values())
        self._names += 1
        if what < 0.15 or not tables:
            name = mix.choice([*world.databases, "shop"])
            if name not in world.databases:
                world.create_database(name)
            world.create_table(f"{name}.t{self._names}", mix.choice(self._kinds), mix.choice([0, 0, 2]))
            return
        table = mix.choice(tables)
        if table.info.physical_ids != (table.info.id,) and mix.random() < 0.4:
            self._partition_ddl(table)
            return
        extra = [column.name for column in table.info.stored_columns if column.name.startswith("c")]
        if what < 0.4:
            name = f"c{mix.randint(1, 3)}"
            if name not in extra:
                world.add_column(table, name, mix.choice(["int", "int default 7", "bigint"]))
        elif what < 0.5 and extra:
            world.drop_column(table, mix.choice(extra))
        elif what < 0.6:
            size = table.info.column("name").type.flen + 10
            world.modify_column(table, "name", f"varchar({size})")
        elif what < 0.7:
            world.truncate_table(table)
        elif what < 0.82:
            world.rename_table(table, f"{mix.choice(list(world.databases))}.t{self._names}")
        elif what < 0.87:
            world.drop_table(table)
        elif what < 0.95:
            name, kind = table.name, mix.choice(self._kinds)
            world.drop_table(table)
            world.create_table(name, kind, mix.choice([0, 2]))
        elif len(world.databases) > 1 and self._drops_databases:
            name = mix.choice(list(world.databases))
            world.drop_database(name)
            if mix.random() < 0.5:
                world.create_database(name)
                world.create_table(f"{name}.t{self._names}", mix.choice(self._kinds))

    def _partition_ddl(self, table: WorldTable) -> None:
        """Partitions come and go, with their rows."""
        mix, world = self._mix, self._world
        ids = table.info.physical_ids
        at = mix.randrange(len(ids))
        what = mix.choice(["add", "drop", "truncate", "truncate all", "exchange", "exchange"])
        if what == "add":
            world.add_partition(table)
        elif what == "drop" and len(ids) > 1:
            world.drop_partition(table, at)
        elif what == "truncate":
            world.truncate_partitions(table, at)
        elif what == "truncate all":
            world.truncate_partitions(table, *range(len(ids)))
        elif what == "exchange":
            other = world.create_like(f"{table.database}.x{self._names}", table)
            self._change_rows(other, mix.randint(1, 6))
            numbers = [{held.row["id"] for held in side.rows.values()} for side in (table, other)]
            if numbers[0].isdisjoint(numbers[1]):
                world.exchange_partition(table, at, other)
