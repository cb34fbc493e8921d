"""A secret that an operator refers to is only where it is used; a tenant cannot make anybody read one."""

from pathlib import Path

import pytest

from penstock.changefeeds.commands import _location
from penstock.changefeeds.commands import sink_options as command_options
from penstock.changefeeds.sinks.storage.options import confined_sink_options, sink_options
from penstock.control import tenancy
from penstock.control.jobs import parse_options, read_spec
from penstock.errors import Invalid
from penstock.eventstore.schema_version import SchemaVersion
from penstock.jobs.api import check_spec
from penstock.jobs.consumer import Consumer, DataRetriever
from penstock.jobs.job import JobId
from penstock.jobs.spec import JobSpec
from penstock.secret_references import UnresolvedReference
from penstock.settings import ChangefeedSettings, Settings, load
from penstock.tables.define import define_table
from support.apiworld import TOKENS, api_world
from support.jobworld import job_world
from support.webhookreceiver import WebhookReceiver

BEARER = "bearer-2b9c77aa01"


def files_with(word: str, folder: Path) -> list[str]:
    """Return the files below a folder in which a text occurs."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return [str(path) for path in found if word.encode() in path.read_bytes()]


async def test_a_jobs_secret_is_read_by_the_runner_and_kept_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK_BEARER", BEARER)
    options = {"headers.Authorization": "Bearer ${HOOK_BEARER}"}
    with WebhookReceiver() as receiver:
        async with job_world(tmp_path, capture={"tables": ["*.*", "penstock.iscp_log"]}) as world:
            await world.create("shop.items", [("id", "bigint primary key")])
            ts = await world.insert("shop.items", {"id": 1})
            await world.register(
                "shop.items/hook", consumer="webhook", options={"url": receiver.url, **options}
            )
            async with world.running():
                await world.caught_up("shop.items/hook", ts)
            stored = (await world.job("shop.items/hook")).spec.detail.consumer.options
        assert stored["headers.Authorization"] == "Bearer ${HOOK_BEARER}"
        assert receiver.seen[0].headers["Authorization"] == f"Bearer {BEARER}"
    assert files_with(BEARER, tmp_path) == []


async def test_a_job_waits_for_a_secret_that_the_runner_does_not_have(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secret = tmp_path / "bearer"
    options = {"headers.Authorization": f"Bearer ${{file:{secret}}}"}
    with WebhookReceiver() as receiver:
        async with job_world(tmp_path) as world:
            await world.create("shop.items", [("id", "bigint primary key")])
            ts = await world.insert("shop.items", {"id": 1})
            await world.register(
                "shop.items/hook", consumer="webhook", options={"url": receiver.url, **options}
            )
            async with world.running():
                while not (message := (await world.job("shop.items/hook")).status.error_msg):
                    await world.now_ts()
                assert f"${{file:{secret}}} cannot be read (No such file or directory)" in message
                secret.write_text(f"{BEARER}\n")
                await world.caught_up("shop.items/hook", ts)
        assert receiver.seen[0].headers["Authorization"] == f"Bearer {BEARER}"
    assert BEARER not in caplog.text


class Indiscreet(Consumer):
    """Tells in its errors what it was given, as a server may that it talks to."""

    def consume(self, data: DataRetriever) -> None:
        raise Invalid(
            f"the server said: token {self.job.info.options['token'].removeprefix('Bearer ')} is bad"
        )


async def test_what_is_recorded_of_a_failure_does_not_show_the_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HOOK_BEARER", BEARER)
    async with job_world(tmp_path) as world:
        await world.create("shop.items", [("id", "bigint primary key")])
        await world.register("shop.items/hook", consumer="mine", options={"token": "Bearer ${HOOK_BEARER}"})
        async with world.running(find={"mine": Indiscreet}.__getitem__):
            stopped = await world.wait_until_stopped("shop.items/hook")
    assert stopped.status.error_msg == "the server said: token *** is bad"
    assert BEARER not in str([record.__dict__ for record in caplog.records])


def test_commands_keep_references_of_options_and_of_spec_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK_BEARER", BEARER)
    monkeypatch.setenv("KIND", "webhook")
    assert parse_options(["dsn=${HOOK_BEARER}"]) == {"dsn": "${HOOK_BEARER}"}
    path = tmp_path / "spec.yaml"
    path.write_text("detail: {consumer: {consumer: '${KIND}', options: {url: 'http://x/${HOOK_BEARER}'}}}")
    spec = read_spec(path, {})
    assert spec.consumer == "webhook"
    assert spec.detail.consumer.options == {"url": "http://x/${HOOK_BEARER}"}


def test_settings_keep_the_credentials_of_changefeeds_as_references(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUCKET", "lake")  # where files go, and which tables, is no secret
    path = tmp_path / "penstock.yaml"
    path.write_text(
        "changefeeds:\n"
        "  all:\n"
        "    sink_uri: s3://${BUCKET}/x?access-key=${SINK_KEY}\n"
        "    storage_options: {secret_access_key: '${file:/run/key}'}\n"
        "    sink: {terminator: '${END}'}\n"
        "    tables: ['${BUCKET}.*']\n"
    )
    feed = load(path).changefeeds["all"]
    assert feed.sink_uri.get_secret_value() == "s3://lake/x?access-key=${SINK_KEY}"
    assert feed.storage_options == {"secret_access_key": "${file:/run/key}"}
    assert feed.sink == {"terminator": "${END}"}
    assert feed.tables == ("lake.*",)


@pytest.mark.parametrize(
    "text", ["${PATH}", "a${HOME:-x}b", "${file:/etc/hostname}", "${vault:a/b#c}", "${x:y}"]
)
def test_a_tenant_may_write_no_reference(text: str) -> None:
    targets = ["https://hooks.example/", "s3://lake/ann/"]
    tenant = tenancy.Tenant.of("ann", ["shop"], targets)
    account = {"token": TOKENS["ann"], "targets": targets}
    settings = Settings.model_validate({"api": {"accounts": {"ann": account}}})
    hook = {"url": "https://hooks.example/ann", "headers.X": text}
    with pytest.raises(tenancy.TenantRefused, match="refers to a secret of the operator") as error:
        tenancy.check_job(
            tenant, JobSpec.parse({"detail": {"consumer": {"consumer": "webhook", "options": hook}}})
        )
    assert text not in str(error.value)
    base = {"sink_uri": "s3://lake/ann/x", "tables": ["shop.*"]}
    for change in (
        {"sink_uri": f"s3://lake/ann/x?access-key={text}"},
        {"storage_options": {"secret_access_key": text}},
        {"sink": {"terminator": text}},
        {"storage_options": {"protocol": text}, "sink": {"protocol": "csv"}},  # one name in both
    ):
        feed = ChangefeedSettings.model_validate({**base, **change})
        with pytest.raises(tenancy.TenantRefused, match="refers to a secret of the operator"):
            tenancy.check_feed(tenant, feed)
        with pytest.raises(tenancy.TenantRefused, match="refers to a secret of the operator"):
            confined_sink_options(settings, "ann", feed)


def test_a_tenant_changes_no_job_with_the_operators_references(tmp_path: Path) -> None:
    accounts = {
        "root": {"token": TOKENS["root"], "admin": True},
        "ann": {"token": TOKENS["ann"], "targets": ["http://127.0.0.1/"]},
    }
    with api_world(tmp_path, {"accounts": accounts}) as world:
        world.world.db.create_account("ann")
        world.world.db.create_database("shop", account="ann")
        world.world.db.create_table("shop.items", [("id", "bigint primary key")])
        root, ann = world.client("root"), world.client("ann")
        options = {"url": "http://127.0.0.1/mine", "headers.Authorization": "Bearer ${OPERATORS_TOKEN}"}
        spec = {"detail": {"consumer": {"consumer": "webhook", "options": options}}}
        job = {"job": "shop.items/hook", "spec": spec}
        assert ann.post("/api/v1/jobs", json=job).status_code == 403
        assert root.post("/api/v1/jobs", json=job).status_code == 201
        elsewhere = {"spec": {"detail": {"consumer": {"options": {"url": "http://127.0.0.1/theirs"}}}}}
        assert ann.patch("/api/v1/jobs/shop.items/hook", json=elsewhere).status_code == 403


def test_registration_leaves_a_secret_that_it_does_not_have_to_the_runner(
    caplog: pytest.LogCaptureFixture,
) -> None:
    table = define_table("items", [("id", "bigint primary key")])
    spec = JobSpec.parse({"detail": {"consumer": {"consumer": "postgres", "options": {"dsn": "${NO_DSN}"}}}})
    schema = SchemaVersion(since_ts=0, version=0, table=table, database="shop")
    check_spec(JobId.parse("shop.items/copy"), spec, schema, Settings())
    (record,) = caplog.records
    assert record.reason.startswith("${NO_DSN} is not set; export NO_DSN")  # type: ignore[attr-defined]


def test_a_changefeeds_secret_is_resolved_when_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ChangefeedSettings.model_validate(
        {
            "sink_uri": "s3://lake/x?protocol=csv&access-key=${SINK_KEY}",
            "storage_options": {"secret_access_key": "${SINK_SECRET}"},
        }
    )
    assert str(_location(command_options(settings))) == "s3://lake/x"  # a command needs no secret
    with pytest.raises(UnresolvedReference, match=r"^\$\{SINK_KEY\} is not set; export SINK_KEY"):
        sink_options(settings)
    monkeypatch.setenv("SINK_KEY", "AK")
    monkeypatch.setenv("SINK_SECRET", BEARER)
    assert sink_options(settings).target.options == {"access_key_id": "AK", "secret_access_key": BEARER}
    assert BEARER not in repr(sink_options(settings))
