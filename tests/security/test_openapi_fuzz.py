"""Requests made of the API's own description, right and wrong ones, by an admin, a tenant and a stranger.

They go to a deployment of processes (`penstock up`). In `make test` they are the same each time. In `make
soak` they are new ones, of a seed that a failure prints; `PENSTOCK_SEED` repeats it.
"""

import logging
from collections.abc import Callable, Iterator

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, seed, settings
from schemathesis import Case

from penstock.api.app import describe_api
from support.apiworld import TOKENS
from support.campaign import examples, fresh_seed
from support.upworld import UpWorld, up_world

LOGGER = logging.getLogger(__name__)
COLUMNS = [("id", "bigint primary key"), ("name", "varchar(64)")]
SECRET = "what-only-bob-may-know"
OPEN = frozenset({"/health", "/ready"})
"""What a stranger may ask: probes have no token."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpWorld]:
    """Two tenants, each with what the description has as examples: a table, an index and a changefeed."""
    folder = tmp_path_factory.mktemp("api")
    accounts = {
        "root": {"token": TOKENS["root"], "admin": True},
        "ann": {"token": TOKENS["ann"], "targets": [f"file://{folder}/ann"]},
        "bob": {"token": TOKENS["bob"], "targets": [f"file://{folder}/bob"]},
    }
    with up_world(
        folder, api={"accounts": accounts, "requests_burst": 1_000_000}, up={"changefeeds": False}
    ) as made:
        for account, database in (("ann", "shop"), ("bob", "of_bob")):
            made.db.create_account(account)
            made.db.create_database(database, account=account)
            made.db.create_table(f"{database}.orders", COLUMNS)
            made.db.table(f"{database}.orders").insert(
                [{"id": 1, "name": SECRET if account == "bob" else "x"}]
            )
            options = {"uri": f"file://{folder}/{account}/index", "text_columns": "name"}
            spec = {"detail": {"consumer": {"consumer": "fulltext", "options": options}}}
            client = made.client(account)
            job = client.post("/api/v1/jobs", json={"job": f"{database}.orders/search", "spec": spec})
            assert job.status_code == 201, job.text
            sink = f"file://{folder}/{account}/feed?protocol=csv"
            feed = {"id": "orders", "sink_uri": sink, "tables": [f"{database}.*"]}
            assert client.post("/api/v1/changefeeds", json=feed).status_code == 201
        yield made
        assert set(made.restarts().values()) == {0}, f"a part ended\n{made.up.log[-4000:]}"
        assert made.traceback() == ""


schema = schemathesis.openapi.from_dict(describe_api())
SEED = fresh_seed()
"""Of the requests; None: the same ones each time."""


def limits(test: Callable[..., None]) -> Callable[..., None]:
    """Bound the requests of a test, and choose them."""
    bounded = settings(
        max_examples=examples(3, 100),
        derandomize=SEED is None,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )(test)
    return bounded if SEED is None else seed(SEED)(bounded)


@pytest.fixture(autouse=True)
def told() -> None:
    """Have a failure show how to repeat it."""
    if SEED is not None:
        LOGGER.warning("PENSTOCK_SEED=%d", SEED)


def send(case: Case, world: UpWorld, account: str | None) -> requests.Response | schemathesis.Response:
    headers = {"Authorization": f"Bearer {TOKENS[account]}"} if account is not None else {}
    return case.call(base_url=world.url, headers=headers)


@schema.parametrize()
@limits
def test_a_stranger_is_told_nothing_and_breaks_nothing(case: Case, world: UpWorld) -> None:
    answer = send(case, world, None)
    assert answer.status_code != 500, answer.content  # 503: busy, try again
    if case.path not in OPEN:
        assert answer.status_code in {400, 401, 403, 404, 405, 413, 414, 431}, (case.path, answer.content)
    assert SECRET.encode() not in answer.content
    assert b"of_bob" not in answer.content


@schema.parametrize()
@limits
def test_a_tenant_breaks_nothing_and_sees_nothing_of_another(case: Case, world: UpWorld) -> None:
    answer = send(case, world, "ann")
    assert answer.status_code != 500, answer.content  # 503: busy, try again
    assert SECRET.encode() not in answer.content
    assert b"of_bob" not in answer.content


@schema.parametrize()
@limits
def test_an_admin_breaks_nothing(case: Case, world: UpWorld) -> None:
    answer = send(case, world, "root")
    assert answer.status_code != 500, answer.content  # 503: busy, try again
