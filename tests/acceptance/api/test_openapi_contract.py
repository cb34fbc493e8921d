"""The API does what its own description says: requests are made of that, right ones and wrong ones."""

import os
from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import Case
from schemathesis.specs.openapi.checks import positive_data_acceptance

from penstock.api.app import describe_api
from support.apiworld import TOKENS, ApiWorld, api_world, blocking

ASKED = os.environ.get("PENSTOCK_API_EXAMPLES")
EXAMPLES = int(ASKED or 5)
"""Requests that are made of each operation, always the same ones; who asks for more gets others."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiWorld]:
    """A table, an index of it and a changefeed, under the names that the description has as examples."""
    folder = tmp_path_factory.mktemp("api")
    accounts = {"root": {"token": TOKENS["root"], "admin": True}}
    with api_world(folder, {"accounts": accounts, "requests_burst": 1_000_000}) as made:
        made.run(made.world.create("shop.orders", [("id", "bigint primary key"), ("name", "varchar(64)")]))
        made.run(made.world.insert("shop.orders", *({"id": n, "name": f"n{n}"} for n in range(20))))
        client = made.client("root")
        options = {"uri": f"file://{folder}/index", "text_columns": "name"}
        consumer = {"consumer": "fulltext", "options": options}
        spec = {"trigger": {"job_type": "greedy"}, "detail": {"consumer": consumer}}
        assert (
            client.post("/api/v1/jobs", json={"job": "shop.orders/search", "spec": spec}).status_code == 201
        )
        feed = {"id": "orders", "sink_uri": f"file://{folder}/feed?protocol=csv", "tables": ["shop.*"]}
        assert client.post("/api/v1/changefeeds", json=feed).status_code == 201
        with blocking(made.world.running()):
            yield made


schema = schemathesis.openapi.from_dict(describe_api())


@schema.parametrize()
@settings(
    max_examples=EXAMPLES,
    derandomize=ASKED is None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
def test_every_answer_is_one_that_is_declared(case: Case, world: ApiWorld) -> None:
    """All checks but one: whether a range, a filter or a sink makes sense, no schema can say."""
    case.call_and_validate(
        base_url=world.url,
        headers={"Authorization": f"Bearer {TOKENS['root']}"},
        excluded_checks=[positive_data_acceptance],
    )
