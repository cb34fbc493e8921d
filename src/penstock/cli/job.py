"""`penstock job`: jobs that keep targets up to date with a table, from registration to repair."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock import process
from penstock.cli.output import MetricsAddr, load_settings, print_json

__all__ = ["app"]

app = typer.Typer(help="Keep indexes, tables and databases up to date with a table.", no_args_is_help=True)

Name = Annotated[
    str, typer.Argument(metavar="JOB", help="The job, as database.table/job.", show_default=False)
]
Config = Annotated[Path | None, typer.Option(help="Settings file (YAML).")]
Pd = Annotated[list[str] | None, typer.Option(help="Address of a placement driver; may be repeated.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Consumer = Annotated[
    str | None,
    typer.Option(
        help="fulltext, vector, delta, iceberg, parquet, postgres, kv, webhook, or module:Class of your own."
    ),
]
Options = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="NAME=VALUE",
        help="Option of the consumer; may be repeated. The runner resolves ${NAME} and ${file:PATH}.",
    ),
]
Columns = Annotated[
    list[str] | None,
    typer.Option("--column", help="Column that the job reads beside the primary key; may be repeated."),
]
Trigger = Annotated[
    str | None, typer.Option(help="When it runs: default, greedy, periodic, or module:function.")
]
Interval = Annotated[
    str | None, typer.Option(help="For periodic jobs: how far the watermark may fall behind, as in 10s.")
]
Share = Annotated[
    bool | None,
    typer.Option("--share/--no-share", help="Whether it shares scans with other jobs of its table."),
]
Priority = Annotated[
    int | None, typer.Option(help="Order among waiting jobs, -128 to 127; the highest runs first.")
]
RowsMax = Annotated[int | None, typer.Option(help="Most changes in one iteration.")]
BytesMax = Annotated[int | None, typer.Option(help="Most bytes in one iteration.")]
Span = Annotated[str | None, typer.Option(help="Longest time range of one iteration, as in 30m.")]
Verify = Annotated[
    str | None,
    typer.Option(help="How often the runner compares the target with its source, as in 1h; or never."),
]
SpecFile = Annotated[
    Path | None,
    typer.Option("--spec", help="File with the job's spec (YAML); options on the command line override it."),
]


@app.callback()
def _root(context: typer.Context) -> None:
    """Log only warnings for commands that print an answer, unless --log-level is given."""
    options = context.parent.params if context.parent is not None else {}
    if options.get("log_level") is None and context.invoked_subcommand != "run":
        process.configure_logs(style=options["log_format"].value, level="WARNING")


@app.command()
def register(
    name: Name,
    consumer: Consumer = None,
    option: Options = None,
    column: Columns = None,
    trigger: Trigger = None,
    interval: Interval = None,
    share: Share = None,
    priority: Priority = None,
    rows_max: RowsMax = None,
    bytes_max: BytesMax = None,
    span: Span = None,
    verify: Verify = None,
    spec: SpecFile = None,
    config: Config = None,
    pd: Pd = None,
) -> None:
    """Register a job. It first copies all rows of its table, then applies the changes."""
    from penstock.audit import audit_command
    from penstock.control.deployment import open_deployment
    from penstock.control.jobs import parse_options, read_spec, register_job
    from penstock.jobs.job import JobId

    loaded, job_id = load_settings(config, pd), JobId.parse(name)
    given = _spec(
        consumer=consumer,
        options=parse_options(option or []),
        columns=column,
        job_type=trigger,
        interval=interval,
        share=share,
        priority=priority,
        rows_max=rows_max,
        bytes_max=bytes_max,
        span=span,
        verify=verify,
    )
    with audit_command(loaded, "register_job", name), open_deployment(loaded) as deployment:
        print_json(register_job(deployment, job_id, read_spec(spec, given)))


@app.command()
def unregister(name: Name, config: Config = None, pd: Pd = None) -> None:
    """Unregister a job; its target stays as it is."""
    from penstock.audit import audit_command
    from penstock.control.deployment import open_deployment
    from penstock.control.jobs import unregister_job
    from penstock.jobs.job import JobId

    job_id = JobId.parse(name)
    settings = load_settings(config, pd)
    with audit_command(settings, "unregister_job", name), open_deployment(settings) as deployment:
        unregister_job(deployment.jobs(), job_id)
    print_json({"job": str(job_id), "state": "unregistered"})


@app.command()
def update(
    name: Name,
    option: Options = None,
    column: Columns = None,
    trigger: Trigger = None,
    interval: Interval = None,
    share: Share = None,
    priority: Priority = None,
    rows_max: RowsMax = None,
    bytes_max: BytesMax = None,
    span: Span = None,
    verify: Verify = None,
    spec: SpecFile = None,
    interrupt: Annotated[
        bool,
        typer.Option(
            "--interrupt", help="End the queued or running iteration, so that the change applies at once."
        ),
    ] = False,
    config: Config = None,
    pd: Pd = None,
) -> None:
    """Change a job; what is not given stays. The change applies from the next iteration on."""
    from penstock.audit import audit_command
    from penstock.control.deployment import open_deployment
    from penstock.control.job_views import job_details
    from penstock.control.jobs import parse_options, read_spec, update_job
    from penstock.jobs.job import JobId

    loaded, job_id = load_settings(config, pd), JobId.parse(name)
    given = _spec(
        options=parse_options(option or []),
        columns=column,
        job_type=trigger,
        interval=interval,
        share=share,
        priority=priority,
        rows_max=rows_max,
        bytes_max=bytes_max,
        span=span,
        verify=verify,
    )
    with audit_command(loaded, "update_job", name), open_deployment(loaded) as deployment:
        change = read_spec(spec, given)
        job = update_job(deployment.jobs(), loaded, job_id, change, interrupt=interrupt)
        print_json(job_details(job, allowed_code=loaded.jobs.allowed_code))


@app.command("list")
def list_(
    state: Annotated[
        str | None,
        typer.Option(help="Only jobs in this state: pending, running, completed, error or canceled."),
    ] = None,
    config: Config = None,
    pd: Pd = None,
    as_json: AsJson = False,
) -> None:
    """List jobs with the freshness of their targets."""
    from penstock.control.deployment import open_deployment
    from penstock.control.jobs import list_jobs, parse_state

    chosen = parse_state(state)
    with open_deployment(load_settings(config, pd)) as deployment:
        rows = list_jobs(deployment, chosen)
    if as_json or not sys.stdout.isatty():
        print_json(rows)
    else:
        from penstock.cli.output import print_jobs

        print_jobs(rows)


@app.command()
def status(
    name: Name,
    wait_for: Annotated[
        str | None,
        typer.Option(help="First wait until the target has every change up to a timestamp, or up to now."),
    ] = None,
    timeout: Annotated[str, typer.Option(help="Longest wait, as in 30s.")] = "60s",
    config: Config = None,
    pd: Pd = None,
    as_json: AsJson = False,
) -> None:
    """Show the state of a job: how fresh its target is, which changes are missing and why."""
    from penstock.control.deployment import open_deployment
    from penstock.control.jobs import read_job_status
    from penstock.jobs.job import JobId

    job_id = JobId.parse(name)
    with open_deployment(load_settings(config, pd)) as deployment:
        facts = read_job_status(deployment, job_id, wait_for=wait_for, timeout=timeout)
    if as_json or not sys.stdout.isatty():
        print_json(facts)
    else:
        from penstock.cli.output import print_facts

        print_facts(facts)


@app.command()
def pause(name: Name, config: Config = None, pd: Pd = None) -> None:
    """Pause a job: start no more iterations. A running iteration runs to its end."""
    from penstock.audit import audit_command
    from penstock.control.deployment import open_deployment
    from penstock.control.job_views import job_summary
    from penstock.control.jobs import run_transaction
    from penstock.jobs.job import JobId

    job_id = JobId.parse(name)
    settings = load_settings(config, pd)
    with audit_command(settings, "pause_job", name), open_deployment(settings) as deployment:
        jobs = deployment.jobs()
        job = run_transaction(jobs, lambda txn: jobs.pause_job(txn, job_id))
        print_json(job_summary(job))


@app.command()
def resume(name: Name, config: Config = None, pd: Pd = None) -> None:
    """Resume a job that is paused, or was stopped by an error."""
    from penstock.audit import audit_command
    from penstock.control.deployment import open_deployment
    from penstock.control.job_views import job_summary
    from penstock.control.jobs import run_transaction
    from penstock.jobs.job import JobId

    job_id = JobId.parse(name)
    settings = load_settings(config, pd)
    with audit_command(settings, "resume_job", name), open_deployment(settings) as deployment:
        jobs = deployment.jobs()
        job = run_transaction(jobs, lambda txn: jobs.resume_job(txn, job_id))
        print_json(job_summary(job))


@app.command()
def verify(name: Name, config: Config = None, pd: Pd = None) -> None:
    """Compare a job's target with its source at the target's watermark.

    The exit code is 1 when they differ.
    """
    from penstock.control.deployment import open_deployment
    from penstock.control.job_views import report_details
    from penstock.control.verify import verify_target
    from penstock.jobs.job import JobId

    job_id = JobId.parse(name)
    with open_deployment(load_settings(config, pd)) as deployment:
        report = verify_target(deployment, job_id)
    print_json(report_details(report))
    if not report.same:
        raise typer.Exit(1)


@app.command()
def repair(
    name: Name,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Fill the target again from the start, without a comparison.")
    ] = False,
    config: Config = None,
    pd: Pd = None,
) -> None:
    """Repair the rows that differ in a job's target and resume the job, also after TRUNCATE of its table."""
    from penstock.audit import audit_command
    from penstock.control.deployment import open_deployment
    from penstock.control.job_views import repair_details
    from penstock.control.verify import repair_target
    from penstock.jobs.job import JobId

    job_id = JobId.parse(name)
    settings = load_settings(config, pd)
    with audit_command(settings, "repair_job", name), open_deployment(settings) as deployment:
        print_json(repair_details(job_id, repair_target(deployment, job_id, rebuild=rebuild)))


@app.command()
def run(config: Config = None, metrics_addr: MetricsAddr = None) -> None:
    """Run jobs in the foreground, until SIGTERM or SIGINT.

    Several processes may run: one works, the others stand by. Prints one line of JSON once it is ready.
    """
    from penstock.cli.services.jobs import serve

    serve(load_settings(config, metrics_addr=metrics_addr))


@app.command()
def usage(config: Config = None, pd: Pd = None, as_json: AsJson = False) -> None:
    """Show the usage of each account: changes, bytes and seconds of work."""
    from penstock.control.deployment import open_deployment
    from penstock.control.job_views import usage_rows
    from penstock.jobs.usage import read_usage

    with open_deployment(load_settings(config, pd)) as deployment:
        rows = usage_rows(read_usage(deployment.blocking_client))
    if as_json or not sys.stdout.isatty():
        print_json(rows)
    else:
        from penstock.cli.output import print_rows

        print_rows(rows)


def _spec(
    *,
    consumer: str | None = None,
    options: dict[str, str],
    columns: list[str] | None,
    job_type: str | None,
    interval: str | None,
    share: bool | None,
    **detail: Any,
) -> dict[str, Any]:
    """Return the tree of a spec with the options that were given."""
    return {
        "trigger": {"job_type": job_type, "schedule": {"interval": interval, "share": share}},
        "detail": {
            "consumer": {"consumer": consumer, "columns": columns or None, "options": options},
            **detail,
        },
    }
