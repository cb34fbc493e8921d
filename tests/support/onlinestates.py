"""A schema change in TiDB's online states, described in the meta keys as TiDB does it, state by state."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from penstock.kv import Client, Transaction
from penstock.kv.transact import transact
from penstock.tables import Catalog, Index
from penstock.tables.codec.ordered import INT_BYTES
from penstock.tables.columns import ColumnInfo, SchemaState
from penstock.tables.conversion import convert
from penstock.tables.define import define_column, with_index
from penstock.tables.indexes import entry, handle_in, written_indexes
from penstock.tables.keys import (
    PREFIX_BYTES,
    TEMP_INDEX,
    Handle,
    decode_record_key,
    index_prefix,
    prefix_end,
    record_key,
    record_range,
)
from penstock.tables.meta import MetaWriter
from penstock.tables.records import Record, read_record, value_of
from penstock.tables.schema import IndexInfo, TableInfo
from penstock.tables.schema_snapshot import split_name
from penstock.tables.temp_index import EntryChange, decode_changes

__all__ = [
    "OnlineChange",
    "add_index",
    "add_index_aside",
    "assert_entries_agree",
    "drop_index",
    "modify_column",
]

ADDED = (SchemaState.DELETE_ONLY, SchemaState.WRITE_ONLY, SchemaState.WRITE_REORG)
DROPPED = (SchemaState.WRITE_ONLY, SchemaState.DELETE_ONLY, SchemaState.DELETE_REORG)


@dataclass
class OnlineChange:
    """The steps of a change. Each makes one transaction, so that writers may come between them."""

    client: Client
    name: str
    steps: list[Callable[["OnlineChange"], None]]

    @property
    def done(self) -> bool:
        """Whether every step was made."""
        return not self.steps

    def advance(self) -> None:
        """Make the next step."""
        self.steps.pop(0)(self)

    def finish(self) -> None:
        """Make all the steps that are left."""
        while self.steps:
            self.advance()

    @property
    def table(self) -> TableInfo:
        """The table as it is described now."""
        return Catalog(self.client).table_info(self.name)

    def describe(self, change: Callable[[TableInfo], TableInfo]) -> None:
        """Write another description of the table, as one version of the schema."""
        database = Catalog(self.client).schema().database(split_name(self.name)[0])
        changed = change(self.table)

        def put(txn: Transaction) -> None:
            MetaWriter(txn).put_table(database.id, changed)
            MetaWriter(txn).next_schema_version()

        transact(self.client.begin, put)

    def backfill(
        self, work: Callable[["OnlineChange", TableInfo, Record, bytes], dict[bytes, bytes]]
    ) -> None:
        """Fill in what the rows of before lack, a row in each transaction, as long as others change it."""
        table = self.table
        readable = [column for column in table.columns if not column.is_virtual]
        at = self.client.snapshot(self.client.timestamp())
        for key in [key for key, _ in at.iter(*record_range(table.id))]:

            def fill(txn: Transaction, key: bytes = key) -> None:
                value = txn.get(key)
                if value is None:
                    return
                txn.lock_keys([key])
                for written, content in work(
                    self, table, read_record(table, key, value, readable), key
                ).items():
                    txn.put(written, content)

            transact(self.client.begin, fill)


def _index_state(name: str, state: SchemaState) -> Callable[[OnlineChange], None]:
    def set_state(table: TableInfo) -> TableInfo:
        return replace(
            table,
            indexes=tuple(
                replace(index, state=state) if index.name == name else index for index in table.indexes
            ),
        )

    return lambda change: change.describe(set_state)


def _entries(names: Sequence[str]) -> Callable[[OnlineChange], None]:
    def fill(change: OnlineChange, table: TableInfo, record: Record, key: bytes) -> dict[bytes, bytes]:
        del change
        handle = decode_record_key(key)[1]
        made = [entry(table, index, record, handle) for index in table.indexes if index.name in names]
        return {one.key: one.value for one in made}

    return lambda change: change.backfill(fill)


def add_index(client: Client, name: str, index: Index) -> OnlineChange:
    """Return TiDB's ADD INDEX: delete-only, write-only, write-reorganization, backfill, public."""

    def begin(table: TableInfo) -> TableInfo:
        made = with_index(table, index)
        last = replace(made.indexes[-1], state=SchemaState.DELETE_ONLY)
        return replace(made, indexes=(*made.indexes[:-1], last))

    return OnlineChange(
        client,
        name,
        [
            lambda change: change.describe(begin),
            _index_state(index.name, SchemaState.WRITE_ONLY),
            _index_state(index.name, SchemaState.WRITE_REORG),
            _entries([index.name]),
            _index_state(index.name, SchemaState.PUBLIC),
        ],
    )


def add_index_aside(client: Client, name: str, index: Index) -> OnlineChange:
    """Return TiDB's ADD INDEX with tidb_ddl_enable_fast_reorg.

    The rows of a snapshot become entries later; writers meanwhile note their changes in the temporary index,
    which is merged in the end.
    """
    sorted_aside: dict[bytes, bytes] = {}

    def state(state: SchemaState, backfill: int) -> Callable[[OnlineChange], None]:
        def set_state(table: TableInfo) -> TableInfo:
            made = table if any(one.name == index.name for one in table.indexes) else with_index(table, index)
            changed = replace(made.index(index.name), state=state, extra={"backfill_state": backfill})
            others = [one for one in made.indexes if one.name != index.name]
            return replace(made, indexes=(*others, changed))

        return lambda change: change.describe(set_state)

    def read(change: OnlineChange) -> None:
        table = change.table
        snapshot = client.snapshot(client.timestamp())
        for key, value in snapshot.iter(*record_range(table.id)):
            made = entry(
                table, table.index(index.name), read_record(table, key, value), decode_record_key(key)[1]
            )
            sorted_aside[made.key] = made.value

    def ingest(change: OnlineChange) -> None:
        del change
        with client.begin() as txn:
            txn.put_many(list(sorted_aside), list(sorted_aside.values()))

    def merge(change: OnlineChange) -> None:
        table = change.table
        prefix = index_prefix(table.id, TEMP_INDEX | table.index(index.name).id)
        for key, _ in list(client.snapshot(client.timestamp()).iter(prefix, prefix_end(prefix))):

            def apply(txn: Transaction, key: bytes = key) -> None:
                _merge_entry(txn, table, table.index(index.name), key)

            transact(client.begin, apply)

    def drop_temporary(change: OnlineChange) -> None:
        _delete_entries(change, [TEMP_INDEX | change.table.index(index.name).id])

    return OnlineChange(
        client,
        name,
        [
            state(SchemaState.DELETE_ONLY, 1),
            state(SchemaState.WRITE_ONLY, 1),
            state(SchemaState.WRITE_REORG, 1),
            read,
            ingest,
            state(SchemaState.WRITE_REORG, 2),
            state(SchemaState.WRITE_REORG, 3),
            merge,
            merge,
            state(SchemaState.PUBLIC, 0),
            drop_temporary,
        ],
    )


def _merge_entry(txn: Transaction, table: TableInfo, index: IndexInfo, key: bytes) -> None:
    """Do in the index what a temporary entry says, as TiDB's merge does it."""
    raw = txn.get(key) or b""
    real = index_prefix(table.id, index.id) + key[PREFIX_BYTES + INT_BYTES :]
    if raw[:1] in (b"\1", b"\3"):  # not unique: one change, and the handle is in the key
        if raw[-1:] == b"b" and raw[0] == 1:
            txn.put(real, raw[1:-1])
        elif raw[-1:] == b"b":
            txn.delete(real)
        return
    latest: dict[Handle, EntryChange] = {}
    for change in decode_changes(raw):
        handle = change.handle if change.value is None else handle_in(index, real, change.value)
        assert handle is not None
        latest.pop(handle, None)
        latest[handle] = change
    for handle, change in latest.items():
        found = txn.get(real)
        if change.letter != b"b":
            continue
        if change.value is not None:
            assert found in {None, change.value}, "the index is not unique"
            txn.put(real, change.value)
        elif found is not None:
            owner = handle_in(index, real, found)
            if owner == handle or txn.get(record_key(table.id, owner)) is None:
                txn.delete(real)


def drop_index(client: Client, name: str, index: str) -> OnlineChange:
    """Return TiDB's DROP INDEX: write-only, delete-only, delete-reorganization, gone, entries deleted."""
    ids: list[int] = []

    def remove(table: TableInfo) -> TableInfo:
        ids.append(table.index(index).id)
        return replace(table, indexes=tuple(one for one in table.indexes if one.name != index))

    def delete(change: OnlineChange) -> None:
        _delete_entries(change, ids)

    states = [_index_state(index, state) for state in DROPPED]
    return OnlineChange(client, name, [*states, lambda change: change.describe(remove), delete])


def _delete_entries(change: OnlineChange, index_ids: Sequence[int]) -> None:
    with change.client.begin() as txn:
        for number in index_ids:
            prefix = index_prefix(change.table.id, number)
            for key, _ in list(txn.scan(prefix, prefix_end(prefix))):
                txn.delete(key)


def _is_new(element: ColumnInfo | IndexInfo) -> bool:
    return element.name.startswith(("_Col$", "_Idx$"))


def modify_column(client: Client, name: str, column: str, definition: str) -> OnlineChange:
    """Return TiDB's MODIFY COLUMN with rewriting: a hidden column, hidden indexes on it, backfill, switch."""
    hidden_name = f"_Col$_{column}_0"

    def begin(table: TableInfo) -> TableInfo:
        source = table.column(column)
        made, _, _ = define_column(column, definition, column_id=table.max_column_id + 1)
        hidden = replace(
            made,
            name=hidden_name,
            offset=len(table.columns),
            state=SchemaState.DELETE_ONLY,
            extra={"change_state_info": {"relative_col_offset": source.offset}},
        )
        on_it = [index for index in table.indexes if any(part.name == column for part in index.columns)]
        copies = tuple(
            replace(
                index,
                id=table.max_index_id + 1 + nth,
                name=f"_Idx$_{index.name}_0",
                state=SchemaState.DELETE_ONLY,
                columns=tuple(
                    replace(part, name=hidden.name, offset=hidden.offset) if part.name == column else part
                    for part in index.columns
                ),
            )
            for nth, index in enumerate(on_it)
        )
        return replace(
            table,
            columns=(*table.columns, hidden),
            indexes=(*table.indexes, *copies),
            max_column_id=hidden.id,
            max_index_id=table.max_index_id + len(copies),
        )

    def state(state: SchemaState) -> Callable[[OnlineChange], None]:
        def set_state(table: TableInfo) -> TableInfo:
            return replace(
                table,
                columns=tuple(replace(c, state=state) if _is_new(c) else c for c in table.columns),
                indexes=tuple(replace(i, state=state) if _is_new(i) else i for i in table.indexes),
            )

        return lambda change: change.describe(set_state)

    def fill(change: OnlineChange, table: TableInfo, record: Record, key: bytes) -> dict[bytes, bytes]:
        del change
        source, hidden = table.column(column), table.columns[-1]
        record[hidden.id] = convert(source.type, hidden.type, record[source.id])
        written = {key: value_of(table, record, [*table.stored_columns, hidden])}
        for index in table.indexes:
            if _is_new(index):
                made = entry(table, index, record, decode_record_key(key)[1])
                written[made.key] = made.value
        return written

    gone: list[int] = []

    def switch(table: TableInfo) -> TableInfo:
        source, hidden = table.column(column), table.columns[-1]
        public = replace(hidden, name=column, state=SchemaState.PUBLIC, extra={}, offset=source.offset)
        columns = [public if one is source else one for one in table.columns[:-1]]
        copies = {one.name: one for one in table.indexes if _is_new(one)}
        kept = []
        for index in table.indexes:
            copy = copies.get(f"_Idx$_{index.name}_0")
            if _is_new(index):
                continue
            if copy is None:
                kept.append(index)
                continue
            gone.append(index.id)
            kept.append(replace(copy, name=index.name, state=SchemaState.PUBLIC, columns=index.columns))
        return replace(table, columns=tuple(columns), indexes=tuple(kept))

    return OnlineChange(
        client,
        name,
        [
            lambda change: change.describe(begin),
            state(SchemaState.WRITE_ONLY),
            state(SchemaState.WRITE_REORG),
            lambda change: change.backfill(fill),
            lambda change: change.describe(switch),
            lambda change: _delete_entries(change, gone),
        ],
    )


def assert_entries_agree(client: Client, name: str, *, garbage: bool = False) -> None:
    """Fail unless the table's indexes have exactly one entry for each row, and no other index has any.

    With `garbage`, entries of dropped indexes may still wait for their collection.
    """
    table = Catalog(client).table_info(name)
    snapshot = client.snapshot(client.timestamp())
    stored = [pair for number in table.physical_ids for pair in snapshot.iter(*record_range(number))]
    expected: dict[bytes, bytes] = {}
    for key, value in stored:
        physical_id, handle = decode_record_key(key)
        record = read_record(table, key, value)
        for index in written_indexes(table):
            made = entry(table, index, record, handle, None if physical_id == table.id else physical_id)
            assert made.key not in expected, "two rows have one entry"
            expected[made.key] = made.value
    found: dict[bytes, bytes] = {}
    for number in {table.id, *table.physical_ids}:
        prefixes = [index_prefix(number, index.id) for index in table.indexes]
        for prefix in prefixes if garbage else [index_prefix(number, 0)[:11]]:
            found.update(snapshot.iter(prefix, prefix_end(prefix)))
    assert found == expected
