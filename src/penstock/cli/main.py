"""The `penstock` command.

A command imports what it needs when it runs, so that `penstock --help` and light commands start fast.
"""

import asyncio
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from penstock import __version__, process
from penstock.cli import changefeed, job, secrets, table
from penstock.cli.output import MetricsAddr, load_settings, print_json
from penstock.errors import PenstockError

__all__ = ["main"]

app = typer.Typer(
    name="penstock",
    help="Change data capture and change propagation.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(changefeed.app, name="changefeed")
app.add_typer(job.app, name="job")
app.add_typer(secrets.app, name="secrets")
app.add_typer(table.app, name="table")


class LogFormat(StrEnum):
    """The format of log lines: text for people, JSON for programs."""

    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    """Python's log levels in lower case."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


_ANSWER_COMMANDS = frozenset({"changes", "search", "status", "table", "verify"})
_PARTS = {
    "store": "store",
    "capture": "capture",
    "changefeed": "changefeeds",
    "job": "jobs",
    "api": "api",
}
"""The part that each command runs, by the names of `penstock up`; log lines contain it."""


def _show_version(requested: bool) -> None:
    if requested:
        print(f"penstock {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit."),
    ] = False,
    log_format: Annotated[
        LogFormat, typer.Option(help="Format of log lines on standard error.")
    ] = LogFormat.TEXT,
    log_level: Annotated[
        LogLevel | None,
        typer.Option(
            help="Lowest level of log lines; by default info, or warning for commands that print an answer."
        ),
    ] = None,
) -> None:
    default = LogLevel.WARNING if context.invoked_subcommand in _ANSWER_COMMANDS else LogLevel.INFO
    process.configure_logs(
        style=log_format.value,
        level=(log_level or default).value.upper(),
        part=_PARTS.get(context.invoked_subcommand or "", ""),
    )


@app.command()
def up(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Option(help="Settings file (YAML); without one, everything runs embedded.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Folder to use instead of ./penstock-data, where the settings file names none."),
    ] = None,
) -> None:
    """Run a whole deployment in the foreground: store, captures, changefeeds, jobs, API and pages.

    A part that ends is restarted. SIGTERM or SIGINT stops all parts; a second signal kills them at once.
    """
    from penstock.cli.up.supervisor import serve, up_settings

    options = context.parent.params if context.parent is not None else {}
    level = options["log_level"]
    serve(
        up_settings(config, data),
        log_format=options["log_format"].value,
        log_level=None if level is None else level.value.upper(),
    )


@app.command()
def init(
    path: Annotated[Path, typer.Argument(help="Path of the file.")] = Path("penstock.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write a settings file with every key, its meaning and its default; make the deployment's tokens.

    The tokens are files of penstock-data/secrets beside the settings file, which only you can read. Commands
    and services find them there. Existing ones are kept.
    """
    from penstock.cli.init_file import secrets_folder, write_file
    from penstock.settings.tokens import make_tokens

    write_file(path, force=force)
    make_tokens(secrets_folder(path))
    print(f"{path} is written; edit it, then run: penstock up --config {path}")


@app.command()
def store(
    pd_addr: Annotated[
        str | None, typer.Option(help="Address of the placement driver; port 0 takes a free port.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Data directory; created when it is missing.")] = None,
    stores: Annotated[int | None, typer.Option(help="Number of stores, 1 to 64.")] = None,
    tls_ca: Annotated[
        Path | None, typer.Option(help="Authority of client certificates (PEM); clients then need one.")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate of the servers (PEM).")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Key of that certificate (PEM).")] = None,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Let other machines connect without client certificates."),
    ] = False,
    enable_faults: Annotated[
        bool, typer.Option("--enable-faults", help="Allow admin calls to inject faults; for tests.")
    ] = False,
    config: Annotated[
        Path | None, typer.Option(help="Settings file (YAML); options on the command line override it.")
    ] = None,
    metrics_addr: MetricsAddr = None,
) -> None:
    """Run the embedded store in the foreground, until SIGTERM or SIGINT.

    Prints one line of JSON with the addresses once it is ready.
    """
    from penstock.cli.services.store import StoreOptions, serve, store_client, store_settings

    options = StoreOptions(
        pd_addr=pd_addr,
        data=data,
        stores=stores,
        tls_ca=tls_ca,
        tls_cert=tls_cert,
        tls_key=tls_key,
        insecure=insecure,
        enable_faults=enable_faults,
        config=config,
    )
    file = load_settings(config, metrics_addr=metrics_addr)
    settings = store_settings(options)
    client = store_client(settings, file)
    asyncio.run(serve(settings, client, metrics_addr=file.metrics_addr, hosts=file.api.hosts))


@app.command()
def capture(
    config: Annotated[Path | None, typer.Option(help="Settings file (YAML).")] = None,
    metrics_addr: MetricsAddr = None,
) -> None:
    """Capture tables into the event store in the foreground, until SIGTERM or SIGINT.

    Prints one line of JSON with the address of its Flight service once it is ready.
    """
    from penstock.cli.services.capture import serve

    asyncio.run(serve(load_settings(config, metrics_addr=metrics_addr)))


@app.command()
def api(
    config: Annotated[Path | None, typer.Option(help="Settings file (YAML).")] = None,
    metrics_addr: MetricsAddr = None,
) -> None:
    """Serve the HTTP API and the pages in the foreground, until SIGTERM or SIGINT.

    Prints one line of JSON with its address once it is ready. The cluster may start later.
    """
    from penstock.cli.services.api import serve

    serve(load_settings(config, metrics_addr=metrics_addr))


@app.command()
def consume(
    uri: Annotated[
        str, typer.Argument(help="URI of the sink, with the parameters that it was written with.")
    ],
    into: Annotated[
        str, typer.Option(help="lines: print JSON lines; database: replay into its tables.")
    ] = "lines",
    pd_addrs: Annotated[
        list[str] | None,
        typer.Option(help="Placement driver of the database to replay into; may be repeated."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="Settings file (YAML) with the database to replay into.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Follow the directory until SIGTERM or SIGINT.")
    ] = False,
    interval: Annotated[
        float, typer.Option(help="Seconds between two reads of the directory.", min=0.1)
    ] = 5.0,
    state: Annotated[
        Path | None,
        typer.Option(help="File with the progress, to continue from; created when it is missing."),
    ] = None,
    time_zone: Annotated[
        str, typer.Option(help="Time zone of TIMESTAMP columns in csv and canal-json.")
    ] = "UTC",
) -> None:
    """Read a directory that a storage sink of Penstock or TiCDC wrote, in the order of its changes."""
    from penstock.cli.consume import ConsumeOptions, Into, consume_directory

    options = ConsumeOptions(
        uri=uri,
        into=Into.parse(into),
        pd_addrs=tuple(pd_addrs or ()),
        config=config,
        follow=follow,
        interval_s=interval,
        state=state,
        time_zone=time_zone,
    )
    asyncio.run(consume_directory(options))


@app.command()
def changes(
    table: Annotated[str, typer.Argument(help="The table, as in shop.orders.", show_default=False)],
    from_: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="Changes after it: a commit timestamp, or a time such as 2026-01-31T09:30. By default an"
            " hour before the end. 0: all rows, as they are at --to.",
            show_default=False,
        ),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(help="Changes up to it; by default all that can be read.", show_default=False),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(help="Column beside the primary key; may be repeated. All by default."),
    ] = None,
    output_format: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="json (a line for each change), arrow (a stream), or table; table on a terminal, else json.",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Most changes to print.", min=1)] = None,
    config: Annotated[Path | None, typer.Option(help="Settings file (YAML).")] = None,
    pd: Annotated[
        list[str] | None, typer.Option(help="Address of a placement driver; may be repeated.")
    ] = None,
) -> None:
    """Print the changes of a captured table between two timestamps, in the order of commits."""
    from penstock.cli.changes import ChangesFormat, ChangesOptions, parse_moment, print_changes

    options = ChangesOptions(
        table=table,
        from_ts=parse_moment("--from", from_),
        to_ts=parse_moment("--to", to),
        columns=tuple(column) if column else None,
        format=ChangesFormat.parse(output_format),
        limit=limit,
    )
    print_changes(load_settings(config, pd), options)


@app.command()
def search(
    name: Annotated[
        str,
        typer.Argument(
            metavar="JOB", help="The job of the index, as database.table/job.", show_default=False
        ),
    ],
    words: Annotated[str | None, typer.Argument(help="The words to search for.", show_default=False)] = None,
    vector: Annotated[
        str | None, typer.Option(help="The vector to search near: numbers with commas, or @FILE.")
    ] = None,
    k: Annotated[int, typer.Option("-k", "--k", help="Number of rows to return.")] = 10,
    where: Annotated[
        str | None, typer.Option("--filter", help="SQL condition on the rows, as in price < 100.")
    ] = None,
    column: Annotated[
        list[str] | None, typer.Option(help="Column to show; may be repeated. All by default.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Only rows that contain all of the words.")] = False,
    config: Annotated[Path | None, typer.Option(help="Settings file (YAML).")] = None,
    pd: Annotated[
        list[str] | None, typer.Option(help="Address of a placement driver; may be repeated.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Search the fulltext or vector index of a job; the answer says how fresh it is."""
    from penstock.control.deployment import open_deployment
    from penstock.control.search import SearchOptions, parse_vector, search_index
    from penstock.jobs.job import JobId

    options = SearchOptions(
        words=words,
        vector=None if vector is None else parse_vector(vector),
        k=k,
        where=where,
        columns=tuple(column) if column else None,
        every=every,
    )
    job_id = JobId.parse(name)
    with open_deployment(load_settings(config, pd)) as deployment:
        answer = search_index(deployment, job_id, options)
    if as_json or not sys.stdout.isatty():
        print_json(answer)
    else:
        from penstock.cli.output import print_search

        print_search(answer)


@app.command()
def doctor(
    config: Annotated[Path | None, typer.Option(help="Settings file (YAML).")] = None,
    fix: Annotated[
        bool, typer.Option("--fix", help="Fetch missing jars of connectors; let Spark start faster.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check the machine and the settings, and say how to fix what is wrong.

    The exit code is 1 when something is wrong.
    """
    from penstock.cli.doctor.command import diagnose

    process.configure_logs(level="CRITICAL")  # the findings say everything
    diagnose(config, fix=fix, as_json=as_json)


@app.command()
def status(
    config: Annotated[Path | None, typer.Option(help="Settings file (YAML).")] = None,
    pd: Annotated[
        list[str] | None, typer.Option(help="Address of a placement driver; may be repeated.")
    ] = None,
    limit: Annotated[int, typer.Option(help="Rows of each list, the largest lag first.", min=1)] = 20,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the state of the deployment: its lags, what holds changes back, and how to fix problems.

    The exit code is 0 without problems, 1 with problems, and 2 when the state cannot be read.
    """
    from penstock.cli.status import print_status, watch_status, with_local_store

    settings = load_settings(config, pd) if pd else with_local_store(load_settings(config, None))
    if watch and not as_json:
        raise typer.Exit(watch_status(settings, limit=limit))
    raise typer.Exit(print_status(settings, as_json=as_json, limit=limit))


@app.command()
def verify(
    target: Annotated[
        list[str] | None,
        typer.Argument(
            help="Jobs, as database.table/job, and changefeeds, as changefeed:NAME; all by default.",
            show_default=False,
        ),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(help="First wait until targets have every change up to a timestamp, or up to now."),
    ] = None,
    timeout: Annotated[str, typer.Option(help="Longest wait for each target, as in 30s.")] = "60s",
    config: Annotated[Path | None, typer.Option(help="Settings file (YAML).")] = None,
    pd: Annotated[
        list[str] | None, typer.Option(help="Address of a placement driver; may be repeated.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare targets of jobs and directories of changefeeds with their sources.

    The exit code is 1 when a target differs, 2 when a target could not be compared.
    """
    from penstock.cli.verify import verify_and_print
    from penstock.control.verify import VerifyOptions

    options = VerifyOptions(at=at, timeout=timeout)
    code = verify_and_print(load_settings(config, pd), target or [], options, as_json=as_json)
    if code:
        raise typer.Exit(code)


@app.command()
def demo(
    seconds: Annotated[float, typer.Option(help="Seconds for which the workload runs.", min=1.0)] = 60.0,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep everything running afterwards, with its pages, until Ctrl-C.")
    ] = False,
    data: Annotated[
        Path | None, typer.Option(help="Folder to use and keep; by default a temporary one that is removed.")
    ] = None,
) -> None:
    """Run a whole deployment under the workload of a shop, and compare every target with its source."""
    from penstock.cli.demo.command import run

    process.configure_logs(level="WARNING")  # the demo prints its own lines
    if not run(seconds=seconds, keep=keep, data=data):
        raise typer.Exit(1)


def main() -> None:
    """Run the command line; a PenstockError is one line on standard error and exit code 2."""
    process.prepare_libraries()
    process.raise_file_limit()
    try:
        app()
    except PenstockError as error:
        print(f"penstock: {process.printable(str(error))}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
