"""Files go into tables row by row exactly once, also when the import is killed."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from penstock.clock import SYSTEM
from penstock.control.table_import import ImportOptions, import_files
from penstock.errors import Invalid
from penstock.kv import Client
from penstock.tables import Catalog
from support.warmstore import WarmStore

ROWS = [
    {
        "id": n,
        "name": f"n{n}, 'x'" if n % 3 else None,
        "total": Decimal(n) / 4,
        "day": f"2024-01-{n % 28 + 1:02}",
    }
    for n in range(1, 251)
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmStore]:
    with WarmStore.start(tmp_path_factory.mktemp("import") / "store", stores=1) as running:
        yield running  # type: ignore[misc]


@pytest.fixture
def client(store: WarmStore) -> Iterator[Client]:
    with Client.connect([store.pd_addr]) as connected:
        yield connected


@pytest.fixture
def db(client: Client) -> Iterator[Catalog]:
    catalog = Catalog(client)
    catalog.create_database("shop")
    yield catalog
    catalog.drop_database("shop")


def write(folder: Path, kind: str, rows: list[dict[str, Any]]) -> Path:
    file = folder / f"rows.{kind}"
    table = pa.Table.from_pylist(rows)
    if kind == "csv":
        csv.write_csv(table, file)
    elif kind == "parquet":
        parquet.write_table(table, file, row_group_size=70)
    else:
        file.write_text("".join(json.dumps({**row, "total": str(row["total"])}) + "\n" for row in rows))
    return file


class Killed(BaseException):
    """Ends an import as a kill would: nothing after it runs."""


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_an_import_goes_on_after_a_kill_and_repeats_nothing(
    client: Client, db: Catalog, tmp_path: Path, kind: str
) -> None:
    db.create_table("create table shop.t (id bigint, name varchar(20), total decimal(9,2), day date)")
    file = write(tmp_path, kind, ROWS)
    options = ImportOptions(batch_rows=40)

    def kill(_file: Path, rows: int) -> None:
        if rows >= 80:
            raise Killed

    with pytest.raises(Killed):
        import_files(client, db, "shop.t", [file], options, on_progress=kill)
    assert db.table("shop.t").to_arrow().num_rows == 80
    report = import_files(client, db, "shop.t", [file], ImportOptions(batch_rows=33))
    assert (report.rows, report.resumed_rows, report.created) == (170, 80, False)
    assert import_files(client, db, "shop.t", [file], options).rows == 0
    found = db.table("shop.t").to_arrow().to_pylist()
    assert [{**row, "day": str(row["day"])} for row in found] == ROWS
    assert import_files(client, db, "shop.t", [file], ImportOptions(again=True)).rows == 250


def test_a_table_is_created_with_the_types_of_the_file_or_given_ones(
    client: Client, db: Catalog, tmp_path: Path
) -> None:
    file = write(tmp_path, "csv", ROWS)
    options = ImportOptions(types={"total": "decimal(20,4)"}, primary_key=["id"])
    assert import_files(client, db, "shop.made", [file], options).created
    info = db.table_info("shop.made")
    assert [column.type.tp.name for column in info.columns] == [
        "LONGLONG",
        "LONG_BLOB",
        "NEW_DECIMAL",
        "DATE",
    ]
    row = db.table("shop.made").get(7)
    assert row is not None
    assert row["total"] == Decimal("1.75")
    with pytest.raises(Invalid, match="rows 1 to 250: a row has the key of another one"):
        import_files(client, db, "shop.made", [file], ImportOptions(again=True))
    assert import_files(client, db, "shop.made", [file], ImportOptions(again=True, upsert=True)).rows == 250


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("rows.txt", "id\n1\n", "--format"),
        ("rows.csv", "id,name\n1,too long for it\n", "rows 1 to 1: column name"),
        ("rows.jsonl", '{"id": 1}\n[2]\n', "no JSON object"),
        ("rows.parquet", "no parquet", "not readable as parquet"),
        ("none.csv", None, "cannot be read"),
    ],
)
def test_files_that_cannot_be_imported_are_named(
    client: Client, db: Catalog, tmp_path: Path, name: str, text: str | None, what: str
) -> None:
    db.create_table("shop.t", [("id", "bigint"), ("name", "varchar(5)")])
    file = tmp_path / name
    if text is not None:
        file.write_text(text)
    with pytest.raises(Invalid, match=what):
        import_files(client, db, "shop.t", [file], ImportOptions())


def test_quoted_lines_of_a_csv_file_are_one_value_whatever_its_size(
    client: Client, db: Catalog, tmp_path: Path
) -> None:
    rows = [{"id": n, "note": f'line one of {n}\nline two, and a "word"\n'} for n in range(40_000)]
    file = write(tmp_path, "csv", rows)
    assert file.stat().st_size > 1 << 20  # more than a block
    report = import_files(client, db, "shop.notes", [file], ImportOptions(primary_key=["id"]))
    assert report.rows == len(rows)
    last = db.table("shop.notes").get(39_999)
    assert last is not None
    assert last["note"] == rows[-1]["note"]


def test_a_table_of_json_lines_has_the_columns_of_all_lines(
    client: Client, db: Catalog, tmp_path: Path
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"id": 1}\n{"name": "b", "id": 2}\n{"id": 3, "deep": {"rate": 0.1}}\n')
    import_files(client, db, "shop.made", [file], ImportOptions(primary_key=["id"]))
    assert [column.name for column in db.table_info("shop.made").columns] == ["id", "name", "deep"]
    found = db.table("shop.made").to_arrow().to_pylist()
    assert [(row["id"], row["name"]) for row in found] == [(1, None), (2, "b"), (3, None)]
    file.write_text('{"id": 1, "name": "a"}\n{"id": 2, "name": 5}\n')
    with pytest.raises(Invalid, match=r"column name of .* has values of several types; give its type"):
        import_files(client, db, "shop.mixed", [file], ImportOptions())
    file.write_text('{"id": 1, "name": "a"}\n{"id": 2, "name": "5"}\n{"id": 3, "name": null}\n')
    assert import_files(client, db, "shop.mixed", [file], ImportOptions(types={"name": "text"})).rows == 3


def test_decimals_of_json_lines_keep_every_digit(client: Client, db: Catalog, tmp_path: Path) -> None:
    db.create_table(
        "shop.t", [("id", "bigint"), ("total", "decimal(40,20)"), ("rate", "double"), ("doc", "json")]
    )
    digits = "12345678901234567890.12345678901234567891"
    file = tmp_path / "rows.jsonl"
    file.write_text(f'{{"id": 1, "total": {digits}, "rate": 0.1, "doc": {{"a": [0.5, 1]}}}}\n')
    import_files(client, db, "shop.t", [file], ImportOptions())
    [row] = db.table("shop.t").to_arrow().to_pylist()
    assert (row["total"], row["rate"]) == (digits, 0.1)
    assert json.loads(row["doc"]) == {"a": [0.5, 1]}


def test_the_command_survives_a_kill(store: WarmStore, client: Client, db: Catalog, tmp_path: Path) -> None:
    db.create_table("shop.t", [("id", "bigint"), ("name", "varchar(40)")])
    file = write(tmp_path, "parquet", [{"id": n, "name": f"name {n}"} for n in range(20_000)])
    command = [
        *(str(Path(sys.executable).with_name("penstock")), "table", "import", str(file), "--table", "shop.t"),
        *("--batch-rows", "50", "--pd", store.pd_addr),
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as first:
        until = SYSTEM.monotonic() + 120
        while not db.table("shop.t").to_arrow().num_rows:
            assert SYSTEM.monotonic() < until, "the command imported nothing"
        os.kill(first.pid, signal.SIGKILL)
    imported = db.table("shop.t").to_arrow().num_rows
    command[command.index("50")] = "10000"
    finished = subprocess.run(command, check=True, capture_output=True, text=True, timeout=240)
    report = json.loads(finished.stdout)
    assert report["rows"] + report["resumed_rows"] == 20_000
    assert imported <= report["resumed_rows"] + 50
    assert sorted(db.table("shop.t").to_arrow()["id"].to_pylist()) == list(range(20_000))
