"""Requests made of the API's own description, right and wrong ones, by an admin, a tenant and a stranger."""

from collections.abc import Iterator

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import Case

from penstock.api.app import describe_api
from support.apiworld import TOKENS, ApiWorld, api_world, blocking
from support.campaign import examples

COLUMNS = [("id", "bigint primary key"), ("name", "varchar(64)")]
SECRET = "what-only-bob-may-know"
OPEN = frozenset({"/health", "/ready"})
"""What a stranger may ask: probes have no token."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiWorld]:
    """Two tenants, each with what the description has as examples: a table, an index and a changefeed."""
    folder = tmp_path_factory.mktemp("api")
    accounts = {
        "root": {"token": TOKENS["root"], "admin": True},
        "ann": {"token": TOKENS["ann"], "targets": [f"file://{folder}/ann"]},
        "bob": {"token": TOKENS["bob"], "targets": [f"file://{folder}/bob"]},
    }
    with api_world(folder, {"accounts": accounts, "requests_burst": 1_000_000}) as made:
        for account, database in (("ann", "shop"), ("bob", "of_bob")):
            made.world.db.create_account(account)
            made.world.db.create_database(database, account=account)
            made.world.db.create_table(f"{database}.orders", COLUMNS)
            made.run(
                made.world.insert(
                    f"{database}.orders", {"id": 1, "name": SECRET if account == "bob" else "x"}
                )
            )
            options = {"uri": f"file://{folder}/{account}/index", "text_columns": "name"}
            spec = {"detail": {"consumer": {"consumer": "fulltext", "options": options}}}
            client = made.client(account)
            job = client.post("/api/v1/jobs", json={"job": f"{database}.orders/search", "spec": spec})
            assert job.status_code == 201, job.text
            sink = f"file://{folder}/{account}/feed?protocol=csv"
            feed = {"id": "orders", "sink_uri": sink, "tables": [f"{database}.*"]}
            assert client.post("/api/v1/changefeeds", json=feed).status_code == 201
        with blocking(made.world.running()):
            yield made


schema = schemathesis.openapi.from_dict(describe_api())
limits = settings(
    max_examples=examples(3, 100), derandomize=True, deadline=None, suppress_health_check=list(HealthCheck)
)


def send(case: Case, world: ApiWorld, account: str | None) -> requests.Response | schemathesis.Response:
    headers = {"Authorization": f"Bearer {TOKENS[account]}"} if account is not None else {}
    return case.call(base_url=world.url, headers=headers)


@schema.parametrize()
@limits
def test_a_stranger_is_told_nothing_and_breaks_nothing(case: Case, world: ApiWorld) -> None:
    answer = send(case, world, None)
    assert answer.status_code != 500, answer.content  # 503: busy, try again
    if case.path not in OPEN:
        assert answer.status_code in {400, 401, 403, 404, 405, 413, 414, 431}, (case.path, answer.content)
    assert SECRET.encode() not in answer.content
    assert b"of_bob" not in answer.content


@schema.parametrize()
@limits
def test_a_tenant_breaks_nothing_and_sees_nothing_of_another(case: Case, world: ApiWorld) -> None:
    answer = send(case, world, "ann")
    assert answer.status_code != 500, answer.content  # 503: busy, try again
    assert SECRET.encode() not in answer.content
    assert b"of_bob" not in answer.content


@schema.parametrize()
@limits
def test_an_admin_breaks_nothing(case: Case, world: ApiWorld) -> None:
    answer = send(case, world, "root")
    assert answer.status_code != 500, answer.content  # 503: busy, try again
