"""A tenant's storage options and URIs cannot lead to another host, bucket or folder."""

import json
import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import lance
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.consumers.lake.parquet import ParquetCopy
from penstock.control.tenancy import Tenant, TenantRefused, check_feed
from penstock.errors import Corrupt, Invalid
from penstock.jobs.consumer import Consumer, JobContext, open_consumer
from penstock.settings import ChangefeedSettings
from penstock.tables.define import define_table
from penstock.targets import Target, TenantTargets
from penstock.testing.consumers import SourceModel, job_context

ITEMS = replace(define_table("items", [("id", "int primary key"), ("name", "varchar(20)")]), id=1)
CONSUMERS = ("delta", "parquet", "fulltext", "vector")


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0)
        yield listening


def context(folder: Path, consumer: str, uri: str, *prefixes: str, **storage: str) -> JobContext:
    options = {"uri": uri, **{f"storage.{name}": value for name, value in storage.items()}}
    if consumer in {"fulltext", "vector"}:
        options["text_columns"] = "name"
    return replace(job_context(folder, consumer, options), tenant=TenantTargets("ann", prefixes))


def use(job: JobContext) -> None:
    """Do what the runner does with a job: ask its target how far it is."""
    consumer = open_consumer(job)
    try:
        consumer.committed_ts()
    finally:
        consumer.close()


HOSTILE_OPTIONS = [
    {"region": "x@127.0.0.1:PORT/?"},
    {"region": "x@127.0.0.1:PORT#"},
    {"region": "x.127.0.0.1:PORT/"},
    {"region": "eu-1\\@127.0.0.1:PORT"},
    {"region": "EU-1"},
    {"region": "eu-1.evil.example"},
    {"region": "eu-1\n"},
    {"region": "eu-\uff11"},
    {"aws_region": "x@127.0.0.1:PORT/?"},
    {"AWS_REGION": "x@127.0.0.1:PORT/?"},
    {"default_region": "x@127.0.0.1:PORT/?"},
    {"endpoint": "http://127.0.0.1:PORT"},
    {"aws_endpoint_url": "http://127.0.0.1:PORT"},
    {"endpoint_url": "http://127.0.0.1:PORT"},
    {"AWS_ENDPOINT_URL_S3": "http://127.0.0.1:PORT"},
    {"azure_endpoint": "http://127.0.0.1:PORT"},
    {"account_name": "x@127.0.0.1:PORT/?"},
    {"azure_storage_account_name": "evil"},
    {"google_base_url": "http://127.0.0.1:PORT"},
    {"proxy_url": "http://127.0.0.1:PORT"},
    {"bucket": "bob"},
    {"bucket_name": "bob"},
    {"container_name": "bob"},
    {"metadata_endpoint": "http://127.0.0.1:PORT"},
    {"container_credentials_relative_uri": "/x"},
    {"web_identity_token_file": "/etc/passwd"},
    {"google_application_credentials": "/etc/passwd"},
    {"session_token": "a\r\nHost: evil.example"},
    {"access_key_id": "a\nb"},
    {"virtual_hosted_style_request": "true"},  # without the bucket, the path's first step becomes one
    {"AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "false"},
]


@pytest.mark.parametrize("storage", HOSTILE_OPTIONS, ids=str)
@pytest.mark.parametrize("consumer", CONSUMERS)
def test_no_storage_option_leads_to_another_host(
    tmp_path: Path, listener: socket.socket, consumer: str, storage: dict[str, str]
) -> None:
    port = str(listener.getsockname()[1])
    given = {name: value.replace("PORT", port) for name, value in storage.items()}
    with pytest.raises(TenantRefused):
        use(context(tmp_path, consumer, "s3://lake/ann/copy", "s3://lake/ann", **given))
    with pytest.raises(BlockingIOError):
        listener.accept()


@pytest.mark.parametrize("storage", HOSTILE_OPTIONS, ids=str)
def test_no_storage_option_of_a_changefeed_leads_to_another_host(storage: dict[str, str]) -> None:
    feed = ChangefeedSettings(
        sink_uri="s3://lake/ann?protocol=csv",  # type: ignore[arg-type]
        tables=("shop.*",),
        storage_options=storage,
    )
    with pytest.raises(TenantRefused):
        check_feed(Tenant.of("ann", ["shop"], ["s3://lake/ann"]), feed)


HOSTILE_URIS = [
    "s3://lake@127.0.0.1/ann",
    "s3://lake:1@127.0.0.1/ann",
    "s3://lake/ann/../bob",
    "s3://lake/ann/%2e%2e/bob",
    "s3://lake/ann/..%2fbob",
    "s3://lake/ann//../bob",
    "s3://lake/ann\\..\\bob",
    "s3://lake/ann?x=1",
    "s3://lake/ann#x",
    "s3://LAKE/ann",
    "S3://lake/ann",
    "s3a://lake/ann",
    "s3+ddb://lake/ann?ddbTableName=x",
    "s3://lake /ann",
    "s3://la\uff4be/ann",
    "s3://lake/annex",
    "s3://lake",
    "s3:///lake/ann",
    "s3://10.0.0.1/ann",
    "gs://lake/ann",
    "az://lake/ann",
    "abfss://lake@127.0.0.1/ann",
    "https://lake.s3.amazonaws.com/ann",
    "http://127.0.0.1/ann",
    "memory:///ann",
    "file:///lake/ann",
    "file://lake/ann",
    "file-object-store:///lake/ann",
    "lake/ann",
    "/lake/ann",
    "s3://lake/ann/\x00",
    "s3://lake/ann/\n",
]


@pytest.mark.parametrize("uri", HOSTILE_URIS)
@pytest.mark.parametrize("consumer", CONSUMERS)
def test_no_uri_leads_out_of_the_prefix(tmp_path: Path, consumer: str, uri: str) -> None:
    with pytest.raises(Invalid):
        use(context(tmp_path, consumer, uri, "s3://lake/ann"))


@pytest.mark.parametrize(
    "uri", [uri for uri in HOSTILE_URIS if uri not in {"S3://lake/ann", "s3://lake/ann/\n"}]
)
def test_no_sink_uri_leads_out_of_the_prefix(uri: str) -> None:
    """The two that are left out are put together again from their parts: they lead to s3://lake/ann."""
    whole = f"{uri}{'&' if '?' in uri else '?'}protocol=csv"
    with pytest.raises(Invalid):
        check_feed(
            Tenant.of("ann", ["shop"], ["s3://lake/ann"]),
            ChangefeedSettings(sink_uri=whole, tables=("shop.*",)),  # type: ignore[arg-type]
        )


def test_a_bucket_that_looks_like_an_address_is_no_bucket(tmp_path: Path) -> None:
    for bucket in ("10.0.0.1", "127.0.0.1", "a..b", "Lake", "lake_", "-lake", "l"):
        with pytest.raises(TenantRefused):
            use(context(tmp_path, "parquet", f"s3://{bucket}/ann", f"s3://{bucket}"))


_TEXT = st.text(st.sampled_from("abz019.-_@:/?#%\\[] \n\uff10"), min_size=1, max_size=12)


@given(bucket=_TEXT, region=_TEXT, path=_TEXT)
def test_what_was_accepted_makes_the_host_that_was_meant(bucket: str, region: str, path: str) -> None:
    """Object storage puts bucket and region into the name of a host."""
    try:
        target = Target.of_storage("uri", f"s3://{bucket}/ann/{path}", {"region": region})
    except TenantRefused:
        return
    assert (target.host, target.path) == (bucket, ("ann", *filter(None, path.split("/"))))
    for host in (f"{bucket}.s3.{region}.amazonaws.com", f"s3.{region}.amazonaws.com"):
        url = f"https://{host}/{'/'.join(target.path)}"
        assert urlsplit(url).hostname == host == httpx.URL(url).host
        assert (urlsplit(url).port, urlsplit(url).username, urlsplit(url).query) == (None, None, "")
        assert httpx.URL(url).path == urlsplit(url).path == f"/{'/'.join(target.path)}"


# links of the file system


def copy_of(job: JobContext) -> Consumer:
    source = SourceModel(ITEMS)
    source.commit({"id": 1, "name": "one"})
    consumer = open_consumer(job)
    try:
        consumer.consume(source.retriever(0, source.ts))
    finally:
        consumer.close()
    return consumer


@pytest.mark.parametrize("consumer", ["delta", "parquet", "fulltext"])
def test_a_link_that_is_made_later_is_found_where_it_is_used(tmp_path: Path, consumer: str) -> None:
    own, other = tmp_path / "ann", tmp_path / "bob"
    own.mkdir()
    other.mkdir()
    (other / "secret").write_text("bob's")
    job = context(tmp_path, consumer, f"file://{own}/copy", f"file://{own}")
    copy_of(job)
    (own / "copy" / "mine").symlink_to(own)
    use(job)  # a link that stays inside does no harm
    (own / "copy" / "deep").mkdir()
    (own / "copy" / "deep" / "out").symlink_to(other)
    with pytest.raises(TenantRefused, match="symbolic link that leads out"):
        use(job)
    (own / "copy" / "deep" / "out").unlink()
    use(job)
    os.mkfifo(own / "pipe")
    for make in (os.mkfifo, lambda path: path.symlink_to(own / "pipe")):
        make(own / "copy" / "deep" / "wait")
        with pytest.raises(TenantRefused, match="deep/wait, which is no regular file; remove it"):
            use(job)
        (own / "copy" / "deep" / "wait").unlink()
    (own / "copy").rename(other / "copy")
    (own / "copy").symlink_to(other / "copy")
    with pytest.raises(TenantRefused, match="may write"):
        use(job)
    assert (other / "secret").read_text() == "bob's"


def test_a_prefix_may_itself_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "ann").symlink_to(tmp_path / "disk")
    use(context(tmp_path, "parquet", f"file://{tmp_path}/ann/copy", f"file://{tmp_path}/ann"))


def test_a_forged_manifest_of_a_copy_reads_nothing_elsewhere(tmp_path: Path) -> None:
    own, other = tmp_path / "ann", tmp_path / "bob"
    job = context(tmp_path, "parquet", f"file://{own}/copy", f"file://{own}")
    copy_of(job)
    copy_of(context(tmp_path, "parquet", f"file://{other}/copy", f"file://{other}"))
    stolen = next((other / "copy" / "data").rglob("*.parquet"))
    manifest = own / "copy" / "_penstock.json"
    for path in (str(stolen), f"../../bob/copy/{stolen.relative_to(other / 'copy')}"):
        tree = json.loads(manifest.read_text())
        tree["files"][0]["path"] = path
        manifest.write_text(json.dumps(tree))
        consumer = open_consumer(job)
        assert isinstance(consumer, ParquetCopy)
        at_ts = consumer.committed_ts()
        with pytest.raises(Corrupt, match="outside"):
            list(consumer.present(at_ts))
        consumer.close()


def test_an_index_that_refers_to_another_dataset_is_not_read(tmp_path: Path) -> None:
    own, other = tmp_path / "ann", tmp_path / "bob"
    copy_of(context(tmp_path, "fulltext", f"file://{other}/index", f"file://{other}"))
    own.mkdir()
    lance.dataset(f"{other}/index").shallow_clone(str(own / "index"), reference=None)
    with pytest.raises(Invalid, match="files at other places"):
        use(context(tmp_path, "fulltext", f"file://{own}/index", f"file://{own}"))
