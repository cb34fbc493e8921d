"""A directory of some history compared with any source: what is found is what two dicts say, and no more."""

import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.changefeeds.codecs.encoder import encoder_of, header_of, output_columns
from penstock.changefeeds.codecs.options import CsvOptions
from penstock.changefeeds.codecs.parquet import parquet_file
from penstock.changefeeds.codecs.row_changes import DELETE, INSERT, UPDATE, RowChanges
from penstock.changefeeds.filters import ColumnSelector, RowFilterRule
from penstock.changefeeds.sinks.storage.layout import METADATA_PATH, Folder, encode_checkpoint, index_path
from penstock.changefeeds.sinks.storage.options import SinkOptions
from penstock.changefeeds.sinks.storage.schema_file import SchemaFile
from penstock.eventstore.schema_version import SchemaVersion
from penstock.object_storage import StorageRef
from penstock.tables.arrow import arrow_schema
from penstock.tables.define import define_table
from penstock.verify.compare import Counts
from penstock.verify.directory import FeedFacts, FeedVerifier, TableReport, VerifyScope
from support.campaign import examples
from support.everytype import EVERY_CELL, EVERY_TYPE

Row = dict[str, Any]

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6)
COLUMNS = {
    "name": ("varchar(40)", st.none() | TEXT),
    "price": ("decimal(12,2)", st.integers(-500, 500).map(lambda cents: Decimal(cents).scaleb(-2))),
    "weight": ("double", st.none() | st.integers(1, 40).map(lambda quarters: quarters / 4)),
    "at": ("datetime(6)", st.datetimes(datetime(1999, 1, 1), datetime(2030, 1, 1))),
    "raw": ("varbinary(20)", st.binary(max_size=5)),
    "choice": ("enum('a','b')", st.sampled_from("ab")),
}
DEFINED = [(name, kind) for name, (kind, _) in COLUMNS.items()]
KEYED = define_table("items", [("id", "bigint primary key"), *DEFINED])
KEYLESS = define_table("items", DEFINED)
FORMATS: dict[str, dict[str, Any]] = {
    "canal-json": {},
    "csv": {"csv": CsvOptions(output_old_value=True)},
    "csv without old rows": {"protocol": "csv"},
    "debezium": {},
    "parquet": {},
}
PLAIN = dict.fromkeys(COLUMNS) | {"at": datetime(2020, 1, 1), "raw": b"", "choice": "a"}
AT = 1 << 40
NUMBERS = count()

values = st.fixed_dictionaries({name: kind for name, (_, kind) in COLUMNS.items()})
others_ = st.dictionaries(st.integers(0, 8), values, max_size=5)
histories = st.lists(st.tuples(st.integers(0, 6), st.none() | values), max_size=20)


class Source:
    """Implements SourceTables, of one table."""

    def __init__(self, schema: SchemaVersion, rows: Sequence[Row]) -> None:
        self._schema, self._rows = schema, rows

    def tables(self, _at_ts: int) -> Sequence[SchemaVersion]:
        return [self._schema]

    def rows(self, schema: SchemaVersion, _at_ts: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        whole = pa.RecordBatch.from_pylist(list(self._rows), arrow_schema(schema.table))
        yield whole.select(list(columns)).slice(0, 2)
        yield whole.select(list(columns)).slice(2)

    def changed_keys(self, *_: object) -> Iterator[pa.RecordBatch]:
        return iter(())


class Directory:
    """A directory of one table's changes."""

    def __init__(self, table: Any, form: str, **more: Any) -> None:
        self.schema = SchemaVersion(7, 7, table, "shop")
        given = {"protocol": form, **FORMATS[form], **more}
        self.options = SinkOptions(
            target=StorageRef(f"memory:///verified{next(NUMBERS)}"), date_separator="none", **given
        )
        self._encoding = self.options.encoder(self.schema)
        self._names = [column.name for column in output_columns(self.schema, self._encoding)]
        self._storage = self.options.target.open()
        file = SchemaFile.of(self.schema, 7, columns=self._names)
        self._storage.write(file.path(), file.to_json())
        self._storage.write(METADATA_PATH, encode_checkpoint(AT))
        self._files = 0

    def write(self, changes: Sequence[tuple[int, Row, Row | None]]) -> None:
        """One file of changes: their kinds, the rows, and of updates the rows before."""
        self._files += 1
        encoder = encoder_of(self.schema, self._encoding)
        payload = encoder.payload([encoder.encode(self._changes(changes))])
        if self.options.protocol == "parquet":
            payload = parquet_file([payload], {})
        folder = Folder(schema="shop", table="items", version=7)
        extension = {"csv": "csv", "parquet": "parquet"}.get(self.options.protocol, "json")
        name = f"CDC{self._files:020d}.{extension}"
        header = header_of(self.schema, self._encoding) if self.options.protocol == "csv" else b""
        self._storage.write(f"{folder.path}/{name}", header + payload)
        self._storage.write(index_path(folder), f"{name}\n".encode())

    def _changes(self, changes: Sequence[tuple[int, Row, Row | None]]) -> RowChanges:
        kinds = np.array([kind for kind, _, _ in changes], np.int8)
        commits = np.arange(100 * self._files, 100 * self._files + len(changes), dtype=np.int64)
        return RowChanges(
            kinds=kinds,
            commit_ts=commits,
            handles=pa.nulls(len(changes), pa.binary()),
            known=np.ones(len(changes), np.bool_),
            rows=self._make_batch([row for _, row, _ in changes]),
            old=self._make_batch([old for _, _, old in changes if old is not None]),
        )

    def _make_batch(self, rows: list[Row]) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist(rows, arrow_schema(self.schema.table)).select(self._names)

    def compare(self, rows: Sequence[Row], *, snapshot: bool = True) -> TableReport:
        facts = FeedFacts(name="feed", tables=("*.*",), start_ts=7, snapshot=snapshot)
        with tempfile.TemporaryDirectory() as folder:
            source = Source(self.schema, rows)
            report = FeedVerifier(facts, self.options, source, Path(folder), buffer_bytes=200).verify()
        (found,) = report.tables
        return found


def written(directory: Directory, history: Sequence[tuple[int, Row | None]]) -> dict[int, Row]:
    """Write a history in files of a few changes; return the rows that it leads to."""
    rows: dict[int, Row] = {}
    changes: list[tuple[int, Row, Row | None]] = []
    for key, new in history:
        old = rows.pop(key, None)
        if new is not None:
            rows[key] = {"id": key, **new}
            changes.append((INSERT if old is None else UPDATE, rows[key], old))
        elif old is not None:
            changes.append((DELETE, old, None))
    for start in range(0, len(changes), 5):
        directory.write(changes[start : start + 5])
    return rows


def counted(target: dict[int, Row], source: dict[int, Row]) -> Counts:
    both = target.keys() & source.keys()
    return Counts(
        missing=len(source.keys() - target.keys()),
        extra=len(target.keys() - source.keys()),
        different=sum(target[key] != source[key] for key in both),
    )


@pytest.mark.parametrize("form", FORMATS)
@settings(max_examples=examples(10), deadline=None)
@given(
    history=histories,
    others=st.dictionaries(st.integers(0, 8), values, max_size=5),
    lost=st.sets(st.integers(0, 6)),
)
def test_every_row_that_differs_is_found_and_nothing_else(
    form: str, history: list[tuple[int, Row | None]], others: dict[int, Row], lost: set[int]
) -> None:
    directory = Directory(KEYED, form)
    target = written(directory, history)
    source = target | {key: {"id": key, **row} for key, row in others.items()}
    source = {key: row for key, row in source.items() if key not in lost}
    found = directory.compare(list(source.values()))
    assert found.counts == counted(target, source)
    assert (found.source_rows, found.target_rows) == (len(source), len(target))
    assert found.same == (source == target)
    assert directory.compare(list(target.values())).same


@settings(max_examples=examples(10), deadline=None)
@given(history=histories, others=others_)
def test_without_a_beginning_only_keys_that_were_seen_count(
    history: list[tuple[int, Row | None]], others: dict[int, Row]
) -> None:
    directory = Directory(KEYED, "canal-json")
    target = written(directory, history)
    source = target | {key: {"id": key, **row} for key, row in others.items()}
    alive: set[int] = set()
    seen: set[int] = set()
    for key, row in history:  # a delete of what is not there is no change
        if row is not None or key in alive:
            seen.add(key)
        (alive.discard if row is None else alive.add)(key)
    found = directory.compare(list(source.values()), snapshot=False)
    assert found.scope is VerifyScope.CHANGES
    assert found.keys_seen == len(seen)
    assert found.counts == counted(target, {key: row for key, row in source.items() if key in seen})


@pytest.mark.parametrize("form", [each for each in FORMATS if each != "csv without old rows"])
@settings(max_examples=examples(10), deadline=None)
@given(history=histories, lost=st.sets(st.integers(0, 6)), more=st.lists(values, max_size=2))
def test_rows_without_a_key_are_counted(
    form: str, history: list[tuple[int, Row | None]], lost: set[int], more: list[Row]
) -> None:
    directory = Directory(KEYLESS, form)
    target = written(directory, history)
    source = [row for key, row in target.items() if key not in lost] + more
    found = directory.compare(source)
    there, wanted = (Counter(_known(row) for row in rows) for rows in (target.values(), source))
    assert found.counts.missing + found.counts.different == (wanted - there).total()
    assert found.counts.extra + found.counts.duplicates + found.counts.different == (there - wanted).total()


def _known(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in COLUMNS)


@pytest.mark.parametrize("form", FORMATS)
def test_columns_and_rows_that_are_not_sent_do_not_count(form: str) -> None:
    directory = Directory(
        KEYED,
        form,
        column_selectors=(ColumnSelector(("shop.*",), ("name",)),),
        row_filters=(RowFilterRule(("shop.*",), "price > 0"),),
    )
    sent = [{"id": n, **PLAIN, "name": f"n{n}", "price": Decimal(n)} for n in (1, 2, 3)]
    directory.write([(INSERT, each, None) for each in sent])
    hidden = {"id": 9, **PLAIN, "name": "none of it", "price": Decimal(-1)}
    source = [{**each, "choice": "b", "price": Decimal(7)} for each in sent] + [hidden]
    assert directory.compare(source).same
    found = directory.compare(
        [{**source[0], "name": "another"}, *source[1:3], {**hidden, "price": Decimal(1)}]
    )
    assert found.counts == Counts(different=1, missing=1)


@pytest.mark.parametrize("form", FORMATS)
def test_no_type_makes_a_difference_by_its_text(form: str) -> None:
    directory = Directory(EVERY_TYPE, form)
    nothing = dict.fromkeys(EVERY_CELL) | {"id": 7}
    directory.write([(INSERT, EVERY_CELL, None), (INSERT, nothing, None)])
    assert directory.compare([EVERY_CELL, nothing]).same
    for name in EVERY_CELL.keys() - {"id"}:
        found = directory.compare([{**EVERY_CELL, name: None}, nothing])
        assert found.counts == Counts(different=1), name


@pytest.mark.parametrize("form", FORMATS)
def test_a_file_that_is_there_again_is_found(form: str) -> None:
    directory = Directory(KEYED, form)
    row = {
        "name": None,
        "price": Decimal(1),
        "weight": None,
        "at": datetime(2020, 1, 1),
        "raw": b"",
        "choice": "a",
    }
    changes = [(INSERT, {"id": n, **row}, None) for n in range(5)]
    directory.write(changes)
    directory.write(changes)
    found = directory.compare([row for _, row, _ in changes])
    assert found.counts == Counts(duplicates=5)
    assert not found.same
