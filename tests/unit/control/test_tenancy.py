"""What a tenant may ask for: its own tables, and targets below its own places."""

from pathlib import Path

import pytest

from penstock.control.tenancy import Tenant, TenantRefused, check_feed, check_job
from penstock.errors import Invalid
from penstock.jobs.spec import JobSpec
from penstock.settings import ChangefeedSettings

ANN = Tenant.of(
    "ann",
    ["Shop"],
    ["s3://lake/ann/", "https://hooks.example/ann", "postgresql://db.example/ann", "file:///srv/ann"],
)


def is_below(url: str, prefix: str) -> bool:
    """Return whether an account with this prefix may have a job with this target."""
    consumer, option = "delta", "uri"
    if url.startswith("http"):
        consumer, option = "webhook", "url"
    elif prefix.startswith("postgres"):
        consumer, option = "postgres", "dsn"
    try:
        check_job(Tenant.of("ann", ["shop"], [prefix]), job(consumer, **{option: url}))
    except Invalid:
        return False
    return True


@pytest.mark.parametrize(
    ("url", "prefix"),
    [
        ("s3://lake/ann", "s3://lake/ann/"),
        ("s3://lake/ann/orders", "s3://lake/ann/"),
        ("s3://lake/anything", "s3://lake"),
        ("https://hooks.example/ann/in?key=1", "https://hooks.example/ann"),
        ("postgresql://ann:secret@db.example/ann", "postgresql://db.example/ann"),
        ("postgres://ann@db.example/ann", "postgresql://db.example/ann"),
        ("file:///srv/ann/index", "file:///srv/ann"),
        ("https://HOOKS.example:443/ann/in", "https://hooks.example/ann"),
        ("postgresql://ann@db.example:5432/ann", "postgresql://db.example/ann"),
    ],
)
def test_places_below_a_prefix_are_its_own(url: str, prefix: str) -> None:
    assert is_below(url, prefix)


@pytest.mark.parametrize(
    ("url", "prefix"),
    [
        ("s3://lake/annex", "s3://lake/ann"),
        ("s3://lake/ann/../bob", "s3://lake/ann"),
        ("s3://lake/ann/%2e%2e/bob", "s3://lake/ann"),
        ("s3://lake2/ann", "s3://lake/ann"),
        ("gs://lake/ann", "s3://lake/ann"),
        ("/srv/ann/index", "file:///srv/ann"),
        ("file://srv/ann", "file:///srv/ann"),
        ("file:/srv/ann", "file:///srv/ann"),
        ("file:///srv/ann\\..\\bob", "file:///srv/ann"),
        ("https://hooks.example@evil.example/ann", "https://hooks.example/ann"),
        ("https://hooks.example:444/ann", "https://hooks.example/ann"),
        ("https://hooks.example:x/ann", "https://hooks.example/ann"),
        ("http://hooks.example/ann", "https://hooks.example/ann"),
        ("postgresql://db.example/ann?host=evil.example", "postgresql://db.example/ann"),
        ("postgresql://db.example,evil.example/ann", "postgresql://db.example/ann"),
        ("host=db.example dbname=ann", "postgresql://db.example/ann"),
        ("", "s3://lake"),
    ],
)
def test_nothing_leads_out_of_a_prefix(url: str, prefix: str) -> None:
    assert not is_below(url, prefix)


def test_a_link_leads_out_of_a_prefix(tmp_path: Path) -> None:
    (tmp_path / "ann").mkdir()
    (tmp_path / "bob").mkdir()
    (tmp_path / "ann" / "out").symlink_to(tmp_path / "bob")
    (tmp_path / "own").symlink_to(tmp_path / "ann")
    assert not is_below(f"file://{tmp_path}/ann/out/x", f"file://{tmp_path}/ann")
    assert is_below(f"file://{tmp_path}/ann/x", f"file://{tmp_path}/own")


def feed(**more: object) -> ChangefeedSettings:
    return ChangefeedSettings(
        **{"sink_uri": "s3://lake/ann/feed?protocol=csv", "tables": ["shop.*"], **more}  # type: ignore[arg-type]
    )


def test_a_tenant_may_send_its_own_tables_to_its_own_places() -> None:
    check_feed(ANN, feed())
    check_feed(ANN, feed(tables=["SHOP.orders", "!shop.secret"], storage_options={"aws_region": "eu-1"}))
    check_feed(ANN, feed(sink_uri="s3://lake/ann?protocol=csv&access-key=a&secret-access-key=b"))


@pytest.mark.parametrize(
    "more",
    [
        {"tables": ["*.*"]},
        {"tables": ["sho?.orders"]},
        {"tables": ["[a-z]hop.orders"]},
        {"tables": ["shop.*", "bank.*"]},
        {"tables": ["shop.*", "!bank.*"]},
        {"sink_uri": "s3://lake/bob?protocol=csv"},
        {"sink_uri": "file:///etc/penstock?protocol=csv"},
        {"sink_uri": "s3://lake/ann?protocol=csv&endpoint=http://10.0.0.1"},
        {"sink_uri": "s3://lake/ann?protocol=csv&role-arn=admin"},
        {"storage_options": {"endpoint": "http://10.0.0.1"}},
        {"storage_options": {"AWS_ENDPOINT": "http://10.0.0.1"}},
        {"sink": {"spool-base-dir": "/etc"}},
        {"sink_uri": "s3://lake/ann?protocol=csv&worker-count=512"},
    ],
)
def test_a_tenants_changefeed_reaches_nothing_else(more: dict[str, object]) -> None:
    with pytest.raises(TenantRefused):
        check_feed(ANN, feed(**more))


def job(consumer: str, trigger: str | None = None, **options: str) -> JobSpec:
    named = {name.replace("__", "."): value for name, value in options.items()}
    return JobSpec.parse(
        {"trigger": {"job_type": trigger}, "detail": {"consumer": {"consumer": consumer, "options": named}}}
    )


@pytest.mark.parametrize(
    "spec",
    [
        job("delta", uri="s3://lake/ann/copy", storage__region="eu-1"),
        job("fulltext", "greedy", uri="file:///srv/ann/index", text_columns="name", parser="ngram"),
        job("vector", "periodic", uri="s3://lake/ann/vectors", text_columns="name"),
        job("webhook", url="https://hooks.example/ann/in", headers__Authorization="x"),
        job("postgres", dsn="postgresql://ann@db.example/ann"),
        job("kv", table="Shop.copy"),
    ],
)
def test_a_tenant_may_have_jobs_with_targets_of_its_own(spec: JobSpec) -> None:
    check_job(ANN, spec)


@pytest.mark.parametrize(
    "spec",
    [
        job("os:system"),
        job("somebodys-package"),
        job("iceberg", table="a.b"),
        job("delta", "module:function", uri="s3://lake/ann/copy"),
        job("delta", uri="/srv/ann/copy"),
        job("delta", uri="s3://lake/bob"),
        job("delta", uri="s3://lake/ann", storage__endpoint="http://10.0.0.1"),
        job("fulltext", uri="s3://lake/ann/i", text_columns="name", parser="os:system"),
        job("vector", uri="s3://lake/ann/v", text_columns="name", embedding="os:system"),
        job("webhook", url="http://169.254.169.254/latest"),
        job("webhook", url="https://hooks.example/ann", watermark_url="http://10.0.0.1"),
        job("webhook", url="https://hooks.example/ann", ca_path="/etc/shadow"),
        job("postgres", dsn="host=10.0.0.1"),
        job("kv", table="bank.copy"),
        job("kv"),
    ],
)
def test_a_tenants_job_runs_no_code_and_reaches_nothing_else(spec: JobSpec) -> None:
    with pytest.raises(TenantRefused):
        check_job(ANN, spec)


def test_an_account_without_places_can_have_no_target() -> None:
    with pytest.raises(TenantRefused, match="targets"):
        check_feed(Tenant.of("ann", ["shop"], []), feed())
