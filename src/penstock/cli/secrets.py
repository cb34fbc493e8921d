"""`penstock secrets`: the keys that seal options of jobs and credentials of changefeeds."""

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.output import load_settings, print_json

__all__ = ["app"]

app = typer.Typer(help="Change the keys that seal secrets in the key-value store.", no_args_is_help=True)

Config = Annotated[Path | None, typer.Option(help="Settings file (YAML).")]
Pd = Annotated[list[str] | None, typer.Option(help="Address of a placement driver; may be repeated.")]


@app.command()
def rotate(
    prepare: Annotated[
        bool,
        typer.Option("--prepare", help="Only add the next key, to copy the file to other machines first."),
    ] = False,
    lost: Annotated[
        bool,
        typer.Option("--lost", help="Give up what is sealed with keys that are lost; then give it again."),
    ] = False,
    config: Config = None,
    pd: Pd = None,
) -> None:
    """Make a new key, or take the prepared one, and seal every secret with it. Former keys stay."""
    from penstock.audit import audit_command
    from penstock.control.deployment import open_deployment
    from penstock.control.secrets import rotate_key

    settings = load_settings(config, pd)
    with audit_command(settings, "rotate_key"), open_deployment(settings) as deployment:
        print_json(rotate_key(deployment, prepare=prepare, lost=lost))


@app.command()
def prune(config: Config = None, pd: Pd = None) -> None:
    """Drop former keys, after every secret is sealed with the newest one."""
    from penstock.audit import audit_command
    from penstock.control.deployment import open_deployment
    from penstock.control.secrets import prune_keys

    settings = load_settings(config, pd)
    with audit_command(settings, "prune_keys"), open_deployment(settings) as deployment:
        print_json(prune_keys(deployment))
