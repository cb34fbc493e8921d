"""`penstock table`: commands for whole tables."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.output import format_size, load_settings, print_facts, print_json, print_rows

if TYPE_CHECKING:
    from penstock.control.bulk import BulkEngine
    from penstock.control.table_import import OnProgress
    from penstock.settings import Settings

__all__ = ["app"]

app = typer.Typer(help="Work with whole tables.", no_args_is_help=True)

_DIFFERS = 1
_SHOWN_MISMATCHES = 20

TableName = Annotated[str, typer.Argument(help="The table, as in shop.orders.", show_default=False)]
ConfigFile = Annotated[Path | None, typer.Option(help="Settings file (YAML).")]
PdAddrs = Annotated[list[str] | None, typer.Option(help="Address of a placement driver; may be repeated.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.callback()
def table() -> None:
    """Work with whole tables."""


@app.command("list")
def list_(config: ConfigFile = None, pd: PdAddrs = None, as_json: AsJson = False) -> None:
    """List the tables, whether each is captured, and up to where it can be read."""
    from penstock.control.deployment import open_deployment
    from penstock.control.tables import list_tables

    with open_deployment(load_settings(config, pd)) as deployment:
        rows = list_tables(deployment)
    if as_json or not sys.stdout.isatty():
        print_json(rows)
        return
    shown = ("table", "account", "captured", "readable_time", "lag_s", "refusal")
    print_rows([{name: row[name] for name in shown} for row in rows])


@app.command()
def load(
    table: TableName,
    restart: Annotated[
        bool, typer.Option("--restart", help="Begin anew instead of continuing an interrupted load.")
    ] = False,
    config: ConfigFile = None,
    pd: PdAddrs = None,
    as_json: AsJson = False,
) -> None:
    """Load a large table into the event store before a capture begins with it.

    Spark's executors read regions of the cluster in parallel and write objects. A capture whose
    capture.tables name the table waits for the load, and goes on from its timestamp without a gap. The same
    command continues an interrupted load.
    """
    from penstock.audit import audit_command
    from penstock.control import bulk

    settings = load_settings(config, pd)
    with audit_command(settings, "load_table", table), _engine(settings, "loading", table) as engine:
        report = bulk.load(engine, table, restart=restart)
    facts = asdict(report)
    _answer(facts, facts | {"size_bytes": format_size(report.size_bytes)}, as_json=as_json)


@app.command()
def merge(table: TableName, config: ConfigFile = None, pd: PdAddrs = None, as_json: AsJson = False) -> None:
    """Merge the objects of a table on Spark's executors; its capture plans and commits the merges.

    Captures merge small tables by themselves. Readers go on meanwhile.
    """
    from penstock.audit import audit_command
    from penstock.control import bulk

    settings = load_settings(config, pd)
    with audit_command(settings, "merge_table", table), _engine(settings, "merging", table) as engine:
        report = bulk.merge(engine, table)
    _answer(asdict(report), asdict(report), as_json=as_json)


@app.command()
def verify(
    table: TableName,
    ts: Annotated[
        int | None, typer.Option(help="Timestamp to compare at; by default the newest that can be read.")
    ] = None,
    config: ConfigFile = None,
    pd: PdAddrs = None,
    as_json: AsJson = False,
) -> None:
    """Compare the rows of a table in the event store with those of the cluster, on Spark's executors.

    The exit code is 1 when rows differ. Their keys are listed, and no values. `penstock verify` compares
    targets of jobs and changefeeds.
    """
    from penstock.control import bulk

    with _engine(load_settings(config, pd), "comparing", table) as engine:
        report = bulk.compare_table(engine, table, ts=ts)
    facts = {**asdict(report), "same": report.same}
    shown = facts | {
        "mismatches": [
            f"{found.difference} {found.handle} of table {found.table_id}"
            for found in report.mismatches[:_SHOWN_MISMATCHES]
        ]
    }
    _answer(facts, shown, as_json=as_json)
    if not report.same:
        raise typer.Exit(_DIFFERS)


@contextmanager
def _engine(settings: "Settings", what: str, table: str) -> Iterator["BulkEngine"]:
    """Yield what runs the tasks; show how many of them are done on a terminal."""
    from penstock.control.bulk import open_engine

    if not sys.stderr.isatty():
        with open_engine(settings) as engine:
            yield engine
        return
    from rich.console import Console
    from rich.text import Text

    starting = "starting Spark" if settings.engine == "spark" else "planning"
    with Console(stderr=True).status(starting) as status:

        def show(done: int, count: int) -> None:
            status.update(Text(f"{what} {table}: {done} of {count} parts"))

        with open_engine(settings, show) as engine:
            status.update(Text(f"{what} {table}"))
            yield engine


def _answer(facts: dict[str, Any], shown: dict[str, Any], *, as_json: bool) -> None:
    """Print facts as JSON for programs, or as lines for people."""
    if as_json or not sys.stdout.isatty():
        print_json(facts)
    else:
        print_facts(shown)


@app.command("import")
def import_(
    files: Annotated[
        list[Path], typer.Argument(help="Files with a name for each column: csv, JSON lines, Parquet.")
    ],
    table: Annotated[str, typer.Option(help="The table, as in shop.orders; created if there is none.")],
    file_format: Annotated[
        str | None,
        typer.Option("--format", help="csv, jsonl or parquet; by default as the name of each file ends."),
    ] = None,
    types: Annotated[
        list[str] | None,
        typer.Option("--type", help="Type of a column of a new table, as in total=decimal(12,2)."),
    ] = None,
    primary_key: Annotated[
        list[str] | None, typer.Option(help="Column of a new table's primary key.")
    ] = None,
    upsert: Annotated[bool, typer.Option(help="Replace rows that have the same primary key.")] = False,
    again: Annotated[bool, typer.Option(help="Import files that are imported already once more.")] = False,
    batch_rows: Annotated[int, typer.Option(help="Rows of one transaction.")] = 10_000,
    pd: Annotated[list[str] | None, typer.Option(help="Address of a placement driver.")] = None,
    config: Annotated[Path | None, typer.Option(help="Settings file.")] = None,
) -> None:
    """Import files into a table, each row exactly once.

    The same command continues after a kill where the last commit ended.
    """
    from penstock.audit import audit_command
    from penstock.control.table_import import ImportOptions, import_files
    from penstock.errors import Invalid
    from penstock.kv import Client
    from penstock.tables import Catalog

    pairs = [item.partition("=") for item in types or ()]
    if not all(name and text for name, _, text in pairs):
        raise Invalid("a type must be written column=type, such as total=decimal(12,2)")
    options = ImportOptions(
        format=file_format,
        types={name: text for name, _, text in pairs},
        primary_key=primary_key or (),
        upsert=upsert,
        again=again,
        batch_rows=batch_rows,
    )
    settings = load_settings(config, pd)
    with (
        audit_command(settings, "import_table", table),
        Client.connect(settings.pd_addrs, tls=settings.tls, settings=settings.kv) as client,
        _progress() as show,
    ):
        report = import_files(client, Catalog(client), table, files, options, on_progress=show)
    print_json(asdict(report))


@contextmanager
def _progress() -> Iterator["OnProgress"]:
    """Yield a listener that shows the progress on a terminal, or nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda _file, _rows: None
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status("") as status:
        yield lambda file, rows: status.update(Text(f"{file}: {rows:,} rows"))
