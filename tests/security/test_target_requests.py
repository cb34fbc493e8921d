"""Hostile requests of two tenants over HTTP: no target of theirs leads elsewhere, then or later."""

import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock.control.jobs import run_transaction
from penstock.jobs.api import consumer_of
from penstock.jobs.job import ErrorCode, Job, JobId
from penstock.jobs.spec import JobSpec
from penstock.settings import Settings
from penstock.targets import TenantRefused, TenantTargets
from support.apiworld import TOKENS, ApiWorld, api_world

PORT = "PORT"
DSNS = (
    "postgresql://u@127.0.0.1:PORT%2C@db.example/ann",
    "postgresql://u@127.0.0.1%2C@db.example:PORT/ann",
    "postgresql://u@db.example,127.0.0.1:PORT/ann",
    "postgresql://u@db.example/ann?host=127.0.0.1",
    "postgresql://u@db.example/ann?hostaddr=127.0.0.1",
    "postgresql://u@db.example/ann?service=x",
    "postgresql://u@db.example/ann?passfile=/etc/passwd",
    "postgresql://u@db.example/ann?sslkey=/etc/passwd",
    "postgresql://u@db.example/ann?options=-cx",
    "postgresql:///ann?host=/var/run",
    "postgresql://u@db.example/%A0",
    "postgresql://u@db.example/%00",
    "host=db.example dbname=ann user=u",
    "host=127.0.0.1 port=PORT",
)
URLS = (
    "http://127.0.0.1:PORT/ann",
    "http://2130706433:PORT/ann",
    "http://[::ffff:127.0.0.1]:PORT/ann",
    "http://localhost.:PORT/ann",
    "http://hooks.example@127.0.0.1:PORT/ann",
    "http://hooks.example/ann/../bob",
    "http://hooks.example/ann/%2e%2e/bob",
    "http://hooks.example./ann",
    "http://169.254.169.254/latest/meta-data",
    "http://[fd00:ec2::254]/latest",
)
URIS = (
    "s3://lake/ann/../bob",
    "s3://lake/eve",
    "s3://lake@127.0.0.1:PORT/ann",
    "s3://LAKE/ann",
    "https://127.0.0.1:PORT/ann",
    "s3://lake/ann?endpoint=http://127.0.0.1:PORT",
    "/etc",
    "file:///etc",
)
STORAGE = (
    {"storage.region": "x@127.0.0.1:PORT/?"},
    {"storage.endpoint": "http://127.0.0.1:PORT"},
    {"storage.AWS_ENDPOINT_URL": "http://127.0.0.1:PORT"},
    {"storage.account_name": "x@127.0.0.1:PORT/?"},
    {"storage.web_identity_token_file": "/etc/passwd"},
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiWorld]:
    folder = tmp_path_factory.mktemp("targets")
    places = [
        "s3://lake/ann",
        "http://hooks.example/ann",
        "postgresql://db.example/ann",
        f"file://{folder}/ann",
    ]
    accounts = {
        "root": {"token": TOKENS["root"], "admin": True},
        "ann": {"token": TOKENS["ann"], "targets": places},
        "bob": {"token": TOKENS["bob"], "targets": [place.replace("ann", "bob") for place in places]},
    }
    with api_world(folder, {"accounts": accounts, "requests_burst": 100_000}) as made:
        for account in ("ann", "bob"):
            made.world.db.create_account(account)
            made.world.db.create_database(f"of_{account}", account=account)
            made.world.db.create_table(f"of_{account}.items", [("id", "int primary key"), ("name", "text")])
        yield made


def specs() -> Iterator[tuple[str, dict[str, str]]]:
    """Everything that a job of a tenant may not have: a consumer and its options. They are ann's."""
    for dsn in DSNS:
        yield "postgres", {"dsn": dsn}
    for url in URLS:
        yield "webhook", {"url": url}
        yield "webhook", {"url": "http://hooks.example/ann", "watermark_url": url}
    for consumer in ("delta", "parquet", "fulltext", "vector"):
        more = {"text_columns": "name"} if consumer in {"fulltext", "vector"} else {}
        for uri in URIS:
            yield consumer, {"uri": uri, **more}
        for storage in STORAGE:
            yield consumer, {"uri": "s3://lake/ann/x", **storage, **more}


def job(account: str, name: str, consumer: str, options: dict[str, str]) -> dict[str, Any]:
    detail = {"consumer": {"consumer": consumer, "options": options}}
    return {"job": f"of_{account}.items/{name}", "spec": {"detail": detail}}


def test_no_hostile_request_is_accepted(world: ApiWorld) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0)
        port = listener.getsockname()[1]
        for account in ("ann", "bob"):
            client = world.client(account)
            wishes = [
                ("/api/v1/jobs", job(account, "evil", consumer, options)) for consumer, options in specs()
            ]
            for uri in URIS:
                sink = f"{uri}{'&' if '?' in uri else '?'}protocol=csv"
                feed = {"id": "evil", "sink_uri": sink, "tables": [f"of_{account}.*"]}
                wishes.append(("/api/v1/changefeeds", feed))
            assert len(wishes) > 90
            for path, wish in wishes:  # for bob, also those of ann's places are hostile
                answer = client.post(path, json=json.loads(json.dumps(wish).replace(PORT, str(port))))
                assert answer.status_code in {400, 403}, (wish, answer.text)
            assert client.get("/api/v1/jobs").json() == []
            assert client.get("/api/v1/changefeeds").json() == []
        with pytest.raises(BlockingIOError):
            listener.accept()


def find_job(world: ApiWorld, name: str) -> Job:
    return world.deployment.jobs().get_job(JobId.parse(name))


def test_a_job_stays_confined_whoever_changes_it(world: ApiWorld, tmp_path: Path) -> None:
    tenant, admin = world.client("ann"), world.client("root")
    inside = {"uri": f"file://{world.folder}/ann/copy"}
    made = tenant.post("/api/v1/jobs", json=job("ann", "copy", "parquet", inside))
    assert made.status_code == 201, made.text
    path = "/api/v1/jobs/of_ann.items/copy"
    assert find_job(world, "of_ann.items/copy").confined
    outside = {"spec": {"detail": {"consumer": {"options": {"uri": f"file://{world.folder}/bob/copy"}}}}}
    assert tenant.patch(path, json=outside).status_code == 403
    assert admin.patch(path, json=outside).status_code == 200
    moved = find_job(world, "of_ann.items/copy")
    assert moved.confined, "what the tenant wrote is still in it"
    with pytest.raises(TenantRefused, match="may write"):
        consumer_of(moved, world.deployment.settings, tmp_path)
    assert admin.delete(path).status_code == 204


def test_an_admins_job_on_a_tenants_table_writes_anywhere_until_the_tenant_changes_it(
    world: ApiWorld, tmp_path: Path
) -> None:
    admin, tenant = world.client("root"), world.client("ann")
    outside = {"uri": f"file://{world.folder}/archive"}
    assert admin.post("/api/v1/jobs", json=job("ann", "archive", "parquet", outside)).status_code == 201
    path = "/api/v1/jobs/of_ann.items/archive"
    registered = find_job(world, "of_ann.items/archive")
    assert registered.confined is False
    consumer_of(registered, world.deployment.settings, tmp_path).close()
    change = {"spec": {"detail": {"consumer": {"options": {"history": "1h"}}}}}
    assert tenant.patch(path, json=change).status_code == 403, "the whole job must be one that it may have"
    inside = {"spec": {"detail": {"consumer": {"options": {"uri": f"file://{world.folder}/ann/archive"}}}}}
    assert tenant.patch(path, json=inside).status_code == 200
    assert find_job(world, "of_ann.items/archive").confined
    assert admin.delete(path).status_code == 204


def test_a_job_of_an_account_that_the_settings_do_not_have_any_more_writes_nowhere(
    world: ApiWorld, tmp_path: Path
) -> None:
    client = world.client("ann")
    inside = {"uri": f"file://{world.folder}/ann/left"}
    assert client.post("/api/v1/jobs", json=job("ann", "left", "parquet", inside)).status_code == 201
    settings = world.deployment.settings
    without = settings.model_copy(update={"api": settings.api.model_copy(update={"accounts": {}})})
    with pytest.raises(TenantRefused, match=r"api\.accounts\.ann\.targets"):
        consumer_of(find_job(world, "of_ann.items/left"), without, tmp_path)
    assert client.delete("/api/v1/jobs/of_ann.items/left").status_code == 204


def test_a_reference_that_a_tenant_wrote_before_there_were_references_is_not_resolved(
    world: ApiWorld, tmp_path: Path
) -> None:
    options = {"url": "http://hooks.example/ann", "headers.X-Home": "${HOME}"}
    spec = JobSpec.parse(job("ann", "hook", "webhook", options)["spec"])
    job_id = JobId.parse("of_ann.items/hook")
    jobs = world.deployment.jobs("ann")
    run_transaction(jobs, lambda txn: jobs.register_job(txn, job_id, spec))  # without the checks of today
    with pytest.raises(TenantRefused, match="secret of the operator"):
        consumer_of(find_job(world, str(job_id)), world.deployment.settings, tmp_path)
    assert world.client("ann").delete("/api/v1/jobs/of_ann.items/hook").status_code == 204


@pytest.mark.parametrize(
    ("account", "recorded", "prefixes"),
    [
        ("ann", True, ("s3://lake/ann",)),
        ("ann", None, ("s3://lake/ann",)),  # of an earlier version
        ("ann", False, None),  # an admin's
        ("root", True, None),
        ("sys", None, None),
        ("sys", True, None),
        ("gone", True, ()),
        ("gone", None, ()),  # it has left the settings: nothing says that an admin made the job
    ],
)
def test_who_made_a_job_decides_where_it_may_write(
    account: str, recorded: bool | None, prefixes: tuple[str, ...] | None
) -> None:
    accounts = {
        "ann": {"token": TOKENS["ann"], "targets": ["s3://lake/ann"]},
        "root": {"token": TOKENS["root"], "admin": True},
    }
    settings = Settings.model_validate({"api": {"accounts": accounts}})
    found = TenantTargets.of(settings, account, recorded=recorded)
    assert (None if found is None else found.prefixes) == prefixes


def test_without_accounts_a_job_of_an_earlier_version_is_an_operators() -> None:
    assert TenantTargets.of(Settings(), "gone", recorded=None) is None


def test_jobs_of_an_account_that_has_left_the_settings_stop_and_say_why(world: ApiWorld) -> None:
    """Whatever their target is, also a table of the account's own database."""
    jobs = world.deployment.jobs("ann")
    wanted = {
        "files": ("parquet", {"uri": f"file://{world.folder}/ann/left"}),
        "table": ("kv", {"table": "of_ann.left"}),
    }
    for name, (consumer, options) in wanted.items():
        spec = JobSpec.parse(job("ann", name, consumer, options)["spec"])
        job_id = JobId.parse(f"of_ann.items/{name}")
        run_transaction(jobs, partial(jobs.register_job, job_id=job_id, spec=spec))
    settings = world.deployment.settings
    left = {name: account for name, account in settings.api.accounts.items() if name != "ann"}
    api = settings.api.model_copy(update={"accounts": left})
    deployed = replace(world.world, settings=settings.model_copy(update={"api": api}))

    async def run() -> None:
        async with deployed.running():
            for name in wanted:
                stopped = await deployed.wait_until_stopped(f"of_ann.items/{name}")
                assert stopped.status.error_code == ErrorCode.REFUSED, stopped.status
                assert "account ann is not in the settings" in stopped.status.error_msg

    world.run(run())
    assert not (world.folder / "ann" / "left").exists()
    for name in wanted:
        assert world.client("ann").delete(f"/api/v1/jobs/of_ann.items/{name}").status_code == 204


def test_an_account_named_sys_that_is_no_admin_is_a_tenant() -> None:
    own = {"sys": {"token": TOKENS["ann"], "targets": ["s3://lake/sys"]}}
    settings = Settings.model_validate({"api": {"accounts": own}})
    assert TenantTargets.of(settings, "sys", recorded=True) == TenantTargets("sys", ("s3://lake/sys",))
    assert TenantTargets.of(settings, "sys", recorded=False) is None


def test_a_runner_does_not_run_what_an_earlier_version_accepted(world: ApiWorld) -> None:
    inside = {"uri": f"file://{world.folder}/ann/ran"}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0)
        port = listener.getsockname()[1]
        hostile = {
            "dsn": ("postgres", {"dsn": f"postgresql://ann@127.0.0.1:{port}%2C@db.example/ann"}),
            "region": ("parquet", {"uri": "s3://lake/ann/x", "storage.region": f"x@127.0.0.1:{port}/?"}),
            "hook": ("webhook", {"url": f"http://127.0.0.1:{port}/ann"}),
        }
        jobs = world.deployment.jobs("ann")
        for name, (consumer, options) in {**hostile, "good": ("parquet", inside)}.items():
            spec = JobSpec.parse(job("ann", name, consumer, options)["spec"])
            job_id = JobId.parse(f"of_ann.items/{name}")
            run_transaction(jobs, partial(jobs.register_job, job_id=job_id, spec=spec))
        deployed = replace(world.world, settings=world.deployment.settings)

        async def run() -> None:
            ts = await deployed.insert("of_ann.items", {"id": 1, "name": "one"})
            async with deployed.running():
                await deployed.caught_up("of_ann.items/good", ts)
                for name in hostile:
                    stopped = await deployed.wait_until_stopped(f"of_ann.items/{name}")
                    assert stopped.status.error_code == ErrorCode.REFUSED, stopped.status

        world.run(run())
        with pytest.raises(BlockingIOError):
            listener.accept()
    assert (world.folder / "ann" / "ran").is_dir()
    for name in (*hostile, "good"):
        assert world.client("ann").delete(f"/api/v1/jobs/of_ann.items/{name}").status_code == 204
