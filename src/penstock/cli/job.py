"""`penstock job`: what follows tables, from its registration to its repair."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock import process
from penstock.cli.output import MetricsAddr, load, print_json

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
        help="What the consumer wants to know; may be repeated. ${NAME} is taken from the environment.",
    ),
]
Columns = Annotated[
    list[str] | None,
    typer.Option("--column", help="Column that the job gets beside the primary key; may be repeated."),
]
Trigger = Annotated[
    str | None, typer.Option(help="When it runs: default, greedy, periodic, or module:function.")
]
Interval = Annotated[
    str | None, typer.Option(help="Of periodic jobs: how far the watermark may fall behind, as in 10s.")
]
Share = Annotated[
    bool | None,
    typer.Option("--share/--no-share", help="Whether it shares scans with other jobs of its table."),
]
Priority = Annotated[int | None, typer.Option(help="Which of those that wait runs first, -128 to 127.")]
RowsMax = Annotated[int | None, typer.Option(help="Changes that one iteration takes.")]
BytesMax = Annotated[int | None, typer.Option(help="Bytes that one iteration takes.")]
Span = Annotated[str | None, typer.Option(help="Time that one iteration covers, as in 30m.")]
Verify = Annotated[
    str | None,
    typer.Option(help="How often the runner compares the target with its source, as in 1h; or never."),
]
SpecFile = Annotated[
    Path | None,
    typer.Option("--spec", help="File with the job's spec (YAML); options given here come first."),
]


@app.callback()
def _root(context: typer.Context) -> None:
    """What a command answers is all that it says, unless somebody asks for more."""
    asked = context.parent.params if context.parent is not None else {}
    if asked.get("log_level") is None and context.invoked_subcommand != "run":
        process.configure(style=asked["log_format"].value, level="WARNING")


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
    """Register a job: it begins with all rows of its table, then follows its changes."""
    from penstock.control import jobs as freshcalls
    from penstock.control import jobs as jobcalls
    from penstock.control.deployment import deployed
    from penstock.jobs.job import JobId

    loaded, job_id = load(config, pd), JobId.parse(name)
    given = _spec(
        consumer=consumer,
        options=jobcalls.parsed_options(option or []),
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
    with deployed(loaded) as deployment:
        print_json(freshcalls.registered(deployment, job_id, jobcalls.spec_of(spec, given)))


@app.command()
def unregister(name: Name, config: Config = None, pd: Pd = None) -> None:
    """Forget a job; its target stays as it is."""
    from penstock.control import jobs as jobcalls
    from penstock.control.deployment import deployed
    from penstock.jobs.job import JobId

    job_id = JobId.parse(name)
    with deployed(load(config, pd)) as deployment:
        jobcalls.unregister(deployment.jobs(), job_id)
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
            "--interrupt", help="End the iteration that is queued or running, so that it counts now."
        ),
    ] = False,
    config: Config = None,
    pd: Pd = None,
) -> None:
    """Change a job: what is not given stays. Takes effect with its next iteration."""
    from penstock.control import job_views
    from penstock.control import jobs as jobcalls
    from penstock.control.deployment import deployed
    from penstock.jobs.job import JobId

    loaded, job_id = load(config, pd), JobId.parse(name)
    given = _spec(
        options=jobcalls.parsed_options(option or []),
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
    with deployed(loaded) as deployment:
        job = jobcalls.update(
            deployment.jobs(), loaded, job_id, jobcalls.spec_of(spec, given), interrupt=interrupt
        )
        print_json(job_views.everything(job))


@app.command("list")
def list_(
    state: Annotated[
        str | None, typer.Option(help="Only those that are pending, running, completed, error or canceled.")
    ] = None,
    config: Config = None,
    pd: Pd = None,
    as_json: AsJson = False,
) -> None:
    """List jobs, with how far each has come."""
    from penstock.control import jobs as freshcalls
    from penstock.control import jobs as jobcalls
    from penstock.control.deployment import deployed

    wanted = jobcalls.parsed_state(state)
    with deployed(load(config, pd)) as deployment:
        rows = freshcalls.listed(deployment, wanted)
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
        typer.Option(help="Wait until the target has everything up to a timestamp, or up to now."),
    ] = None,
    timeout: Annotated[str, typer.Option(help="How long to wait, as in 30s.")] = "60s",
    config: Config = None,
    pd: Pd = None,
    as_json: AsJson = False,
) -> None:
    """Show everything that is known of a job: how fresh its target is, what it lacks and why."""
    from penstock.control import jobs as freshcalls
    from penstock.control.deployment import deployed
    from penstock.jobs.job import JobId

    job_id = JobId.parse(name)
    with deployed(load(config, pd)) as deployment:
        facts = freshcalls.status(deployment, job_id, wait_for=wait_for, timeout=timeout)
    if as_json or not sys.stdout.isatty():
        print_json(facts)
    else:
        from penstock.cli.output import print_facts

        print_facts(facts)


@app.command()
def pause(name: Name, config: Config = None, pd: Pd = None) -> None:
    """Begin no more iterations of a job; one that runs comes to its end."""
    from penstock.control import job_views
    from penstock.control import jobs as jobcalls
    from penstock.control.deployment import deployed
    from penstock.jobs.job import JobId

    job_id = JobId.parse(name)
    with deployed(load(config, pd)) as deployment:
        jobs = deployment.jobs()
        job = jobcalls.committed(jobs, lambda txn: jobs.pause_job(txn, job_id))
        print_json(job_views.summary(job))


@app.command()
def resume(name: Name, config: Config = None, pd: Pd = None) -> None:
    """Let a job go on that is paused, or was stopped by an error."""
    from penstock.control import job_views
    from penstock.control import jobs as jobcalls
    from penstock.control.deployment import deployed
    from penstock.jobs.job import JobId

    job_id = JobId.parse(name)
    with deployed(load(config, pd)) as deployment:
        jobs = deployment.jobs()
        job = jobcalls.committed(jobs, lambda txn: jobs.resume_job(txn, job_id))
        print_json(job_views.summary(job))


@app.command()
def verify(name: Name, config: Config = None, pd: Pd = None) -> None:
    """Compare a job's target with its source, at the target's watermark; exit code 1 when they differ."""
    from penstock.control import job_views
    from penstock.control import verify as targetcalls
    from penstock.control.deployment import deployed
    from penstock.jobs.job import JobId

    job_id = JobId.parse(name)
    with deployed(load(config, pd)) as deployment:
        report = targetcalls.verify(deployment, job_id)
    print_json(job_views.reported(report))
    if not report.same:
        raise typer.Exit(1)


@app.command()
def repair(
    name: Name,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Fill the target anew, without a comparison.")
    ] = False,
    config: Config = None,
    pd: Pd = None,
) -> None:
    """Mend what differs in a job's target, and let the job go on; also after TRUNCATE of its table."""
    from penstock.control import verify as targetcalls
    from penstock.control.deployment import deployed
    from penstock.jobs.job import JobId

    job_id = JobId.parse(name)
    with deployed(load(config, pd)) as deployment:
        print_json(targetcalls.repair(deployment, job_id, rebuild=rebuild))


@app.command()
def run(config: Config = None, metrics_addr: MetricsAddr = None) -> None:
    """Run jobs in the foreground, until SIGTERM or SIGINT.

    Several processes may run: one works, the others stand by. Prints a line of JSON when ready.
    """
    from penstock.cli.services.jobs import serve

    serve(load(config, metrics_addr=metrics_addr))


@app.command()
def usage(config: Config = None, pd: Pd = None, as_json: AsJson = False) -> None:
    """Show what each account has used: changes, bytes and seconds of work."""
    from penstock.control import job_views
    from penstock.control.deployment import deployed
    from penstock.jobs.usage import read_usage

    with deployed(load(config, pd)) as deployment:
        rows = job_views.used(read_usage(deployment.face))
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
    """The tree of a spec with what was given."""
    return {
        "trigger": {"job_type": job_type, "schedule": {"interval": interval, "share": share}},
        "detail": {
            "consumer": {"consumer": consumer, "columns": columns or None, "options": options},
            **detail,
        },
    }
