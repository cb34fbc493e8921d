"""`penstock changefeed`: changes as files on object storage, by commands that TiCDC's users know."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock import process
from penstock.cli.output import MetricsAddr, load, print_json

__all__ = ["app"]

app = typer.Typer(help="Send changes of tables to object storage, as files.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="Name of the changefeed.", show_default=False)]
Config = Annotated[Path | None, typer.Option(help="Settings file (YAML).")]
Pd = Annotated[list[str] | None, typer.Option(help="Address of a placement driver; may be repeated.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
SinkUri = Annotated[
    str | None, typer.Option(help="Where files go: s3://bucket/prefix?protocol=canal-json, file:///... .")
]
Tables = Annotated[
    list[str] | None, typer.Option("--table", help="Pattern of tables, as in shop.*; may be repeated.")
]
TargetTs = Annotated[int | None, typer.Option(help="Timestamp at which it ends.")]


@app.callback()
def _root(context: typer.Context) -> None:
    """What a command answers is all that it says, unless somebody asks for more."""
    asked = context.parent.params if context.parent is not None else {}
    if asked.get("log_level") is None and context.invoked_subcommand != "run":
        process.configure(style=asked["log_format"].value, level="WARNING")


@app.command()
def create(
    name: Name,
    sink_uri: SinkUri = None,
    table: Tables = None,
    start: Annotated[
        str | None, typer.Option(help="now, snapshot (all rows first), or a timestamp to start after.")
    ] = None,
    target_ts: TargetTs = None,
    config: Config = None,
    pd: Pd = None,
) -> None:
    """Create a changefeed, of the options and what the settings file says under its name."""
    from penstock.control import changefeeds
    from penstock.control.deployment import deployed

    given = _given(sink_uri=sink_uri, tables=table, start=_start(start), target_ts=target_ts)
    with deployed(load(config, pd)) as deployment:
        feed = changefeeds.create(deployment, name, given)
    print_json(changefeeds.everything(feed))


@app.command("list")
def list_(config: Config = None, pd: Pd = None, as_json: AsJson = False) -> None:
    """List changefeeds, with how far each has come."""
    from penstock.control import changefeeds
    from penstock.control.deployment import deployed

    with deployed(load(config, pd)) as deployment:
        found = changefeeds.listed(deployment)
    if as_json or not sys.stdout.isatty():
        print_json([changefeeds.summary(feed) for feed in found])
    else:
        from penstock.cli.output import print_feeds

        print_feeds(found)


@app.command()
def query(name: Name, config: Config = None, pd: Pd = None) -> None:
    """Show everything that is known of a changefeed, without its secrets."""
    from penstock.control import changefeeds
    from penstock.control.deployment import deployed

    with deployed(load(config, pd)) as deployment:
        feed = changefeeds.get(deployment, name)
    print_json(changefeeds.everything(feed))


@app.command()
def pause(name: Name, config: Config = None, pd: Pd = None) -> None:
    """Stop a changefeed where it is; nothing is lost, and `resume` goes on from there."""
    from penstock.control import changefeeds
    from penstock.control.deployment import deployed

    with deployed(load(config, pd)) as deployment:
        feed = changefeeds.pause(deployment, name)
    print_json(changefeeds.summary(feed))


@app.command()
def resume(name: Name, config: Config = None, pd: Pd = None) -> None:
    """Let a changefeed go on that was paused or has failed."""
    from penstock.control import changefeeds
    from penstock.control.deployment import deployed

    with deployed(load(config, pd)) as deployment:
        feed = changefeeds.resume(deployment, name)
    print_json(changefeeds.summary(feed))


@app.command()
def update(
    name: Name,
    sink_uri: SinkUri = None,
    table: Tables = None,
    target_ts: TargetTs = None,
    config: Config = None,
    pd: Pd = None,
) -> None:
    """Change a paused changefeed: by the options, or to what the settings file says under its name."""
    from penstock.control import changefeeds
    from penstock.control.deployment import deployed

    given = _given(sink_uri=sink_uri, tables=table, target_ts=target_ts)
    with deployed(load(config, pd)) as deployment:
        feed = changefeeds.update(deployment, name, given)
    print_json(changefeeds.everything(feed))


@app.command()
def remove(name: Name, config: Config = None, pd: Pd = None) -> None:
    """Forget a changefeed; its files stay."""
    from penstock.control import changefeeds
    from penstock.control.deployment import deployed

    with deployed(load(config, pd)) as deployment:
        changefeeds.remove(deployment, name)
    print_json({"id": name, "state": "removed"})


@app.command()
def run(
    config: Config = None,
    until_idle: Annotated[
        bool,
        typer.Option("--until-idle", help="End when every changefeed has finished, failed or is paused."),
    ] = False,
    metrics_addr: MetricsAddr = None,
) -> None:
    """Run changefeeds in the foreground, until SIGTERM or SIGINT; create those of the settings first.

    Several processes may run: each takes changefeeds that nobody runs. Prints a line of JSON when ready.
    """
    from penstock.cli.services.changefeeds import serve

    serve(load(config, metrics_addr=metrics_addr), until_idle=until_idle)


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None and value != []}


def _start(text: str | None) -> str | int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else text
