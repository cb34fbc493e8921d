"""What a second look at the defences found: secrets of others in a job, and files of others in a bucket."""

import gc
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import SecretStr

from penstock.control.changefeeds import create_changefeed
from penstock.control.verify import VerifyOptions, verify_targets
from penstock.object_storage import ObjectStorage, StorageRef
from penstock.settings import ChangefeedSettings
from support.apiworld import TOKENS, ApiWorld, api_world

SECRETS = {"headers.Authorization": "Bearer of-the-admin", "secret": "signs-for-the-admin"}
PATH = "/api/v1/jobs/of_ann.items/hook"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiWorld]:
    folder = tmp_path_factory.mktemp("findings")
    accounts = {
        "root": {"token": TOKENS["root"], "admin": True},
        "ann": {"token": TOKENS["ann"], "targets": ["http://hooks.example/ann", f"file://{folder}/ann"]},
    }
    with api_world(folder, {"accounts": accounts, "requests_burst": 100_000}) as made:
        made.world.db.create_account("ann")
        made.world.db.create_database("of_ann", account="ann")
        made.world.db.create_table("of_ann.items", [("id", "int primary key"), ("name", "text")])
        yield made


@pytest.fixture
def admins_hook(world: ApiWorld) -> Iterator[str]:
    """A webhook that an admin has registered for a table of ann's."""
    options = {"url": "http://ledger.example/all", **SECRETS}
    spec = {"detail": {"consumer": {"consumer": "webhook", "options": options}}}
    made = world.client("root").post("/api/v1/jobs", json={"job": "of_ann.items/hook", "spec": spec})
    assert made.status_code == 201, made.text
    yield PATH
    assert world.client("root").delete(PATH).status_code == 204


def change(options: dict[str, str]) -> dict[str, Any]:
    return {"spec": {"detail": {"consumer": {"options": options}}}}


@pytest.mark.parametrize(
    "options",
    [
        {"url": "http://hooks.example/ann"},
        {"url": "http://hooks.example/ann", "secret": "of-ann"},
        {"url": "http://hooks.example/ann", "watermark_url": "http://hooks.example/ann", "secret": ""},
    ],
    ids=",".join,
)
def test_a_tenant_cannot_have_an_admins_secrets_sent_to_its_own_server(
    world: ApiWorld, admins_hook: str, options: dict[str, str]
) -> None:
    answer = world.client("ann").patch(admins_hook, json=change(options))
    assert answer.status_code == 403, answer.text
    assert "of-the-admin" not in answer.text
    shown = world.client("root").get(admins_hook).json()
    assert shown["spec"]["detail"]["consumer"]["options"].keys() == {"url", *SECRETS}


def test_a_tenant_may_take_an_admins_job_over_with_secrets_of_its_own(
    world: ApiWorld, admins_hook: str
) -> None:
    own = {"url": "http://hooks.example/ann", "headers.Authorization": "", "secret": "of-ann"}
    answer = world.client("ann").patch(admins_hook, json=change(own))
    assert answer.status_code == 200, answer.text
    later = world.client("ann").patch(admins_hook, json=change({"url": "http://hooks.example/ann/more"}))
    assert later.status_code == 200, "what is in the job now is the tenant's"


def test_storages_that_were_named_in_a_loop_do_not_stay_open_with_their_credentials() -> None:
    def named(number: int) -> StorageRef:
        own = {"region": "eu-1", "access_key_id": f"loop-{number}", "secret_access_key": "of-ann"}
        return StorageRef("s3://lake/ann", own)

    kept = StorageRef("memory:///kept").open()
    for number in range(600):
        named(number).open()
    gc.collect()
    left = [found for found in gc.get_objects() if isinstance(found, ObjectStorage)]
    assert sum(found.url == "s3://lake/ann" for found in left) <= 256
    assert named(599).open() is named(599).open()
    assert StorageRef("memory:///kept").open() is kept, "nothing else has what is in it"


def test_a_comparison_reads_no_sink_that_its_tenant_may_not_name(world: ApiWorld) -> None:
    foreign = f"file://{world.folder}/not-of-ann?protocol=canal-json"
    section = ChangefeedSettings(sink_uri=SecretStr(foreign), tables=("of_ann.*",))
    create_changefeed(world.deployment, "old", section, account="ann")  # as an earlier version accepted it
    (found,) = verify_targets(world.deployment, ["changefeed:old"], VerifyOptions(), account="ann")
    assert found.report is None
    assert "sink_uri is not an address where account ann may write" in found.error
    assert world.client("ann").delete("/api/v1/changefeeds/old").status_code == 204
