"""What a tenant may change is decided on what is changed, also when an admin changes it at the same time.

The admin gives a reference to a secret to a paused changefeed, or to a job, after the tenant's change was
checked and before it is stored. The tenant's change then names where that secret would be sent.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from penstock.control import changefeeds as control_changefeeds
from penstock.control import jobs as control_jobs
from penstock.control.tenancy import Tenant, check_feed, check_job_change
from penstock.jobs.job import Job, JobId
from penstock.jobs.spec import JobSpec
from penstock.kv import Transaction
from penstock.settings import ChangefeedSettings
from penstock.targets import TenantRefused
from support.apiworld import TOKENS, ApiWorld, api_world

FEEDS, JOBS = "/api/v1/changefeeds", "/api/v1/jobs"
QUOTA = 2


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiWorld]:
    folder = tmp_path_factory.mktemp("at-once")
    ann = {"token": TOKENS["ann"], "targets": [f"file://{folder}/ann"]}
    accounts: dict[str, Any] = {"root": {"token": TOKENS["root"], "admin": True}}
    accounts["ann"] = {**ann, "jobs_max": QUOTA, "changefeeds_max": QUOTA}
    with api_world(folder, {"accounts": accounts, "requests_burst": 100_000, "readers": 32}) as made:
        made.world.db.create_account("ann")
        made.world.db.create_database("shop", account="ann")
        made.world.db.create_table("shop.items", [("id", "bigint primary key"), ("name", "varchar(64)")])
        yield made


def tenant(world: ApiWorld) -> Tenant:
    return Tenant.of("ann", ["shop"], [f"file://{world.folder}/ann"])


def once(act: Callable[[], None]) -> Callable[[], None]:
    """Return an act that happens at its first call only."""
    left = [act]

    def do() -> None:
        if left:
            left.pop()()

    return do


def feed(world: ApiWorld, name: str) -> dict[str, Any]:
    return {"id": name, "sink_uri": f"file://{world.folder}/ann/{name}?protocol=csv", "tables": ["shop.*"]}


def job(world: ApiWorld, name: str) -> dict[str, Any]:
    options = {"uri": f"file://{world.folder}/ann/{name}", "text_columns": "name"}
    consumer = {"consumer": "fulltext", "options": options}
    return {"job": f"shop.items/{name}", "spec": {"detail": {"consumer": consumer}}}


def test_a_changefeed_that_an_admin_changes_meanwhile_is_checked_again(world: ApiWorld) -> None:
    ann, root = world.client("ann"), world.client("root")
    assert ann.post(FEEDS, json=feed(world, "raced")).status_code == 201
    assert ann.post(f"{FEEDS}/raced/pause").status_code == 200

    def add_secret() -> None:
        change = {"storage_options": {"secret_access_key": "${PENSTOCK_TEST_UNSET}"}}
        answer = root.patch(f"{FEEDS}/ann.raced", json=change)
        assert answer.status_code == 200, answer.text

    meanwhile = once(add_secret)

    def permit(settings: ChangefeedSettings) -> None:
        check_feed(tenant(world), settings)
        meanwhile()

    moved = {"sink_uri": f"file://{world.folder}/ann/elsewhere?protocol=csv"}
    update = partial(control_changefeeds.update_changefeed, world.deployment, "raced", moved, account="ann")
    with pytest.raises(TenantRefused):
        update(permit=permit)
    assert "elsewhere" not in root.get(f"{FEEDS}/ann.raced").json()["settings"]["sink_uri"]
    assert ann.patch(f"{FEEDS}/raced", json=moved).status_code == 403
    assert ann.delete(f"{FEEDS}/raced").status_code == 204


def test_a_job_that_an_admin_changes_meanwhile_is_checked_again(world: ApiWorld) -> None:
    root = world.client("root")
    assert root.post(JOBS, json=job(world, "raced")).status_code == 201

    def add_secret() -> None:
        consumer = {"options": {"storage.secret_access_key": "${PENSTOCK_TEST_UNSET}"}}
        answer = root.patch(f"{JOBS}/shop.items/raced", json={"spec": {"detail": {"consumer": consumer}}})
        assert answer.status_code == 200, answer.text

    meanwhile = once(add_secret)
    change = JobSpec.parse({"detail": {"consumer": {"options": {"parser": "whitespace"}}}})

    def permit(txn: Transaction, before: Job) -> None:
        del txn
        check_job_change(tenant(world), before, change)
        meanwhile()

    jobs, settings = world.deployment.jobs("ann"), world.deployment.settings
    job_id = JobId.parse("shop.items/raced")
    with pytest.raises(TenantRefused):
        control_jobs.update_job(jobs, settings, job_id, change, interrupt=False, permit=permit)
    assert "parser" not in jobs.get_job(job_id).spec.detail.consumer.options
    assert root.delete(f"{JOBS}/shop.items/raced").status_code == 204


def test_a_quota_holds_for_requests_that_come_at_once_to_several_servers(world: ApiWorld) -> None:
    with world.beside() as url:
        clients = world.client("ann"), world.client("ann", url)

        def create(number: int) -> tuple[int, int]:
            client = clients[number % 2]
            made = client.post(FEEDS, json=feed(world, f"f{number}")).status_code
            return made, client.post(JOBS, json=job(world, f"j{number}")).status_code

        with ThreadPoolExecutor(8) as threads:
            feeds, jobs = zip(*threads.map(create, range(8)), strict=True)
    assert sorted(feeds) == [201] * QUOTA + [403] * (8 - QUOTA)
    assert sorted(jobs) == [201] * QUOTA + [403] * (8 - QUOTA)
