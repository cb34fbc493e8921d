"""`penstock changefeed`: changes as files on object storage. The commands are named as TiCDC's."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock import process
from penstock.cli.output import MetricsAddr, load_settings, print_json

__all__ = ["app"]

app = typer.Typer(help="Write the changes of tables to object storage as files.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="Name of the changefeed.", show_default=False)]
Config = Annotated[Path | None, typer.Option(help="Settings file (YAML).")]
Pd = Annotated[list[str] | None, typer.Option(help="Address of a placement driver; may be repeated.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
SinkUri = Annotated[
    str | None,
    typer.Option(help="Where to write files: s3://bucket/prefix?protocol=canal-json, file:///... ."),
]
Tables = Annotated[
    list[str] | None, typer.Option("--table", help="Pattern of tables, as in shop.*; may be repeated.")
]
TargetTs = Annotated[int | None, typer.Option(help="Timestamp at which the changefeed ends.")]


@app.callback()
def _root(context: typer.Context) -> None:
    """Log only warnings for commands that print an answer, unless --log-level is given."""
    options = context.parent.params if context.parent is not None else {}
    if options.get("log_level") is None and context.invoked_subcommand != "run":
        process.configure_logs(style=options["log_format"].value, level="WARNING")


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
    """Create a changefeed from its section of the settings file, overridden by the options."""
    from penstock.audit import audit_command
    from penstock.control import changefeeds
    from penstock.control.deployment import open_deployment

    options = _options(sink_uri=sink_uri, tables=table, start=_start(start), target_ts=target_ts)
    settings = load_settings(config, pd)
    with audit_command(settings, "create_changefeed", name), open_deployment(settings) as deployment:
        feed = changefeeds.create_from_options(deployment, name, options)
    print_json(changefeeds.changefeed_details(feed))


@app.command("list")
def list_(config: Config = None, pd: Pd = None, as_json: AsJson = False) -> None:
    """List changefeeds with their checkpoints."""
    from penstock.control import changefeeds
    from penstock.control.deployment import open_deployment

    with open_deployment(load_settings(config, pd)) as deployment:
        feeds = changefeeds.list_changefeeds(deployment)
    if as_json or not sys.stdout.isatty():
        print_json([changefeeds.changefeed_summary(feed) for feed in feeds])
    else:
        from penstock.cli.output import print_feeds

        print_feeds(feeds)


@app.command()
def query(name: Name, config: Config = None, pd: Pd = None) -> None:
    """Show the state and the settings of a changefeed, with secrets masked."""
    from penstock.control import changefeeds
    from penstock.control.deployment import open_deployment

    with open_deployment(load_settings(config, pd)) as deployment:
        feed = changefeeds.get_changefeed(deployment, name)
    print_json(changefeeds.changefeed_details(feed))


@app.command()
def pause(name: Name, config: Config = None, pd: Pd = None) -> None:
    """Pause a changefeed. No change is lost: `resume` continues from its checkpoint."""
    from penstock.audit import audit_command
    from penstock.control import changefeeds
    from penstock.control.deployment import open_deployment

    settings = load_settings(config, pd)
    with audit_command(settings, "pause_changefeed", name), open_deployment(settings) as deployment:
        feed = changefeeds.pause_changefeed(deployment, name)
    print_json(changefeeds.changefeed_summary(feed))


@app.command()
def resume(name: Name, config: Config = None, pd: Pd = None) -> None:
    """Resume a changefeed that was paused or has failed."""
    from penstock.audit import audit_command
    from penstock.control import changefeeds
    from penstock.control.deployment import open_deployment

    settings = load_settings(config, pd)
    with audit_command(settings, "resume_changefeed", name), open_deployment(settings) as deployment:
        feed = changefeeds.resume_changefeed(deployment, name)
    print_json(changefeeds.changefeed_summary(feed))


@app.command()
def update(
    name: Name,
    sink_uri: SinkUri = None,
    table: Tables = None,
    target_ts: TargetTs = None,
    config: Config = None,
    pd: Pd = None,
) -> None:
    """Change a paused changefeed by the options; without any, to its section of the settings file."""
    from penstock.audit import audit_command
    from penstock.control import changefeeds
    from penstock.control.deployment import open_deployment

    options = _options(sink_uri=sink_uri, tables=table, target_ts=target_ts)
    settings = load_settings(config, pd)
    with audit_command(settings, "update_changefeed", name), open_deployment(settings) as deployment:
        feed = changefeeds.update_from_options(deployment, name, options)
    print_json(changefeeds.changefeed_details(feed))


@app.command()
def remove(name: Name, config: Config = None, pd: Pd = None) -> None:
    """Remove a changefeed; its files stay."""
    from penstock.audit import audit_command
    from penstock.control import changefeeds
    from penstock.control.deployment import open_deployment

    settings = load_settings(config, pd)
    with audit_command(settings, "remove_changefeed", name), open_deployment(settings) as deployment:
        changefeeds.remove_changefeed(deployment, name)
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
    """Run changefeeds in the foreground, until SIGTERM or SIGINT. Create those of the settings first.

    Several processes may run: each takes changefeeds that no other process runs. Prints one line of JSON once
    it is ready.
    """
    from penstock.cli.services.changefeeds import serve

    serve(load_settings(config, metrics_addr=metrics_addr), until_idle=until_idle)


def _options(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None and value != []}


def _start(text: str | None) -> str | int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else text
