"""The command line."""

import asyncio
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from penstock import __version__, process
from penstock import process as arrowmemory
from penstock.cli import changefeed, job
from penstock.cli.output import MetricsAddr, load, print_json
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


class LogFormat(StrEnum):
    """For people or for machines."""

    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    """Python's levels, in small letters."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


_ANSWERING = frozenset({"search", "status", "verify"})
_PARTS = {
    "store": "store",
    "capture": "capture",
    "changefeed": "changefeeds",
    "job": "jobs",
    "api": "api",
}
"""What logs call the parts that commands run, as `penstock up` does."""


def _show_version(wanted: bool) -> None:
    if wanted:
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
        LogFormat, typer.Option(help="How log lines look, on standard error.")
    ] = LogFormat.TEXT,
    log_level: Annotated[
        LogLevel | None,
        typer.Option(help="The least important lines to show; info, or warning for commands that answer."),
    ] = None,
) -> None:
    usual = LogLevel.WARNING if context.invoked_subcommand in _ANSWERING else LogLevel.INFO
    process.configure(
        style=log_format.value,
        level=(log_level or usual).value.upper(),
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
        typer.Option(help="Folder in place of ./penstock-data, for what the settings file does not say."),
    ] = None,
) -> None:
    """Run a whole deployment in the foreground: store, captures, changefeeds, jobs, API and pages.

    Parts that end are started again. SIGTERM or SIGINT stops all of them, the next one ends them at once.
    """
    from penstock.cli.up.supervisor import serve, up_settings

    asked = context.parent.params if context.parent is not None else {}
    level = asked["log_level"]
    serve(
        up_settings(config, data),
        log_format=asked["log_format"].value,
        log_level=None if level is None else level.value.upper(),
    )


@app.command()
def init(
    path: Annotated[Path, typer.Argument(help="Where to write it.")] = Path("penstock.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
) -> None:
    """Write a settings file: every key with what it means and its default."""
    from penstock.cli.init_file import write

    write(path, force=force)
    print(f"{path} is written; edit it, then: penstock up --config {path}")


@app.command()
def store(
    pd_addr: Annotated[
        str | None, typer.Option(help="Address of the placement driver; port 0 takes a free one.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Data directory, made when it is missing.")] = None,
    stores: Annotated[int | None, typer.Option(help="Number of stores, 1 to 64.")] = None,
    tls_ca: Annotated[
        Path | None, typer.Option(help="Authority that client certificates must come from (PEM).")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate of the servers (PEM).")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Key of that certificate (PEM).")] = None,
    enable_faults: Annotated[
        bool, typer.Option("--enable-faults", help="Let admin calls set fault switches; for tests.")
    ] = False,
    config: Annotated[
        Path | None, typer.Option(help="Settings file (YAML); options given here come first.")
    ] = None,
    metrics_addr: MetricsAddr = None,
) -> None:
    """Run the embedded store in the foreground, until SIGTERM or SIGINT.

    Prints one line of JSON with the addresses when it is ready.
    """
    from penstock.cli.services.store import StoreOptions, serve, store_settings

    options = StoreOptions(
        pd_addr=pd_addr,
        data=data,
        stores=stores,
        tls_ca=tls_ca,
        tls_cert=tls_cert,
        tls_key=tls_key,
        enable_faults=enable_faults,
        config=config,
    )
    shown_at = load(config, metrics_addr=metrics_addr).metrics_addr
    asyncio.run(serve(store_settings(options), metrics_addr=shown_at))


@app.command()
def capture(
    config: Annotated[Path | None, typer.Option(help="Settings file (YAML).")] = None,
    metrics_addr: MetricsAddr = None,
) -> None:
    """Capture tables into the event store, in the foreground, until SIGTERM or SIGINT.

    Prints one line of JSON with the address of its Flight service when it is ready.
    """
    from penstock.cli.services.capture import serve

    asyncio.run(serve(load(config, metrics_addr=metrics_addr)))


@app.command()
def api(
    config: Annotated[Path | None, typer.Option(help="Settings file (YAML).")] = None,
    metrics_addr: MetricsAddr = None,
) -> None:
    """Serve the HTTP API and the pages, in the foreground, until SIGTERM or SIGINT.

    Prints one line of JSON with its address when it is ready; the cluster may come later.
    """
    from penstock.cli.services.api import serve

    serve(load(config, metrics_addr=metrics_addr))


@app.command()
def consume(
    uri: Annotated[str, typer.Argument(help="The sink's URI, with the parameters that it was written with.")],
    into: Annotated[
        str, typer.Option(help="lines: JSON on standard output; database: its tables.")
    ] = "lines",
    pd_addrs: Annotated[
        list[str] | None, typer.Option(help="Placement driver of the database to replay into; repeatable.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="Settings file (YAML) with the database to replay into.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Go on until SIGTERM or SIGINT.")] = False,
    interval: Annotated[float, typer.Option(help="Seconds between rounds.", min=0.1)] = 5.0,
    state: Annotated[Path | None, typer.Option(help="File to go on from, made when it is missing.")] = None,
    time_zone: Annotated[str, typer.Option(help="Of TIMESTAMP columns in csv and canal-json.")] = "UTC",
) -> None:
    """Read a directory that a storage sink wrote, Penstock's or TiCDC's, in the order of its changes."""
    from penstock.cli.consume import ConsumeOptions, Into
    from penstock.cli.consume import consume as consume_

    options = ConsumeOptions(
        uri=uri,
        into=Into.named(into),
        pd_addrs=tuple(pd_addrs or ()),
        config=config,
        follow=follow,
        interval_s=interval,
        state=state,
        time_zone=time_zone,
    )
    asyncio.run(consume_(options))


@app.command()
def search(
    name: Annotated[
        str,
        typer.Argument(
            metavar="JOB", help="The job of the index, as database.table/job.", show_default=False
        ),
    ],
    words: Annotated[str | None, typer.Argument(help="What texts should say.", show_default=False)] = None,
    vector: Annotated[
        str | None, typer.Option(help="What rows should be near to: numbers with commas, or @FILE.")
    ] = None,
    k: Annotated[int, typer.Option("-k", "--k", help="How many rows.")] = 10,
    where: Annotated[
        str | None, typer.Option("--filter", help="SQL condition that rows have to meet, as in price < 100.")
    ] = None,
    column: Annotated[
        list[str] | None, typer.Option(help="Column to show; may be repeated. All by default.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Only rows that have all of the words.")] = False,
    config: Annotated[Path | None, typer.Option(help="Settings file (YAML).")] = None,
    pd: Annotated[
        list[str] | None, typer.Option(help="Address of a placement driver; may be repeated.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Ask the fulltext or vector index of a job; the answer says how fresh it is."""
    from penstock.control import search as searching
    from penstock.control.deployment import deployed
    from penstock.jobs.job import JobId

    options = searching.SearchOptions(
        words=words,
        vector=None if vector is None else searching.parsed_vector(vector),
        k=k,
        where=where,
        columns=tuple(column) if column else None,
        every=every,
    )
    job_id = JobId.parse(name)
    with deployed(load(config, pd)) as deployment:
        answer = searching.found(deployment, job_id, options)
    if as_json or not sys.stdout.isatty():
        print_json(answer)
    else:
        from penstock.cli.output import print_found

        print_found(answer)


@app.command()
def doctor(
    config: Annotated[Path | None, typer.Option(help="Settings file (YAML).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check the machine and the settings, and say how to mend what is wrong; exit code 1 if something is."""
    from penstock.cli.doctor.command import diagnose

    process.configure(level="CRITICAL")  # its findings say everything
    diagnose(config, as_json=as_json)


@app.command()
def status(
    config: Annotated[Path | None, typer.Option(help="Settings file (YAML).")] = None,
    pd: Annotated[
        list[str] | None, typer.Option(help="Address of a placement driver; may be repeated.")
    ] = None,
    limit: Annotated[int, typer.Option(help="Rows of each list, the slowest first.", min=1)] = 20,
    watch: Annotated[bool, typer.Option("--watch", help="Go on showing it, until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show how the deployment does: where changes are, what holds them back, and what mends what is wrong.

    The exit code is 0 when all is well, 1 when there are problems, and 2 when nothing can be found out.
    """
    from penstock.cli import status as status_
    from penstock.cli.output import load

    settings = load(config, pd) if pd else status_.at_hand(load(config, None))
    if watch and not as_json:
        raise typer.Exit(status_.watch(settings, limit=limit))
    raise typer.Exit(status_.status(settings, as_json=as_json, limit=limit))


@app.command()
def verify(
    target: Annotated[
        list[str] | None,
        typer.Argument(
            help="Jobs, as database.table/job, and changefeeds, as changefeed:NAME; all of them by default.",
            show_default=False,
        ),
    ] = None,
    at: Annotated[
        str | None, typer.Option(help="Wait until targets have everything up to a timestamp, or up to now.")
    ] = None,
    timeout: Annotated[str, typer.Option(help="How long to wait for each, as in 30s.")] = "60s",
    config: Annotated[Path | None, typer.Option(help="Settings file (YAML).")] = None,
    pd: Annotated[
        list[str] | None, typer.Option(help="Address of a placement driver; may be repeated.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare targets of jobs and directories of changefeeds with their sources.

    Exit code 1 when something differs, 2 when something could not be compared.
    """
    from penstock.cli.output import load
    from penstock.cli.verify import verify as verify_
    from penstock.control.verify import VerifyOptions

    code = verify_(load(config, pd), target or [], VerifyOptions(at=at, timeout=timeout), as_json=as_json)
    if code:
        raise typer.Exit(code)


@app.command()
def demo(
    seconds: Annotated[float, typer.Option(help="How long the workload runs.", min=1.0)] = 60.0,
    keep: Annotated[
        bool, typer.Option("--keep", help="Let everything run afterwards, with its pages, until Ctrl-C.")
    ] = False,
    data: Annotated[
        Path | None, typer.Option(help="Folder to use, which stays; by default one that is removed.")
    ] = None,
) -> None:
    """Run a whole deployment under a shop's workload, and compare every target with its source."""
    from penstock.cli.demo.command import run

    process.configure(level="WARNING")  # its own lines tell the story
    if not run(seconds=seconds, keep=keep, data=data):
        raise typer.Exit(1)


def main() -> None:
    """Run the command line; an error is one line on standard error and exit code 2."""
    arrowmemory.prepare()
    try:
        app()
    except PenstockError as error:
        print(f"penstock: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
