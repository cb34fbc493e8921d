"""`penstock table`: commands for the rows of tables."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.output import load_settings, print_json

if TYPE_CHECKING:
    from penstock.control.table_import import OnProgress

__all__ = ["app"]

app = typer.Typer(help="Work with the rows of tables.", no_args_is_help=True)


@app.callback()
def table() -> None:
    """Work with the rows of tables."""


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
