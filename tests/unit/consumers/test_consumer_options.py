"""Options of consumers: texts in, a checked value out, and messages that show no value."""

import re
from pathlib import Path
from typing import Literal

import pytest
from pydantic import Field, SecretStr, model_validator

from penstock.consumers.lake.iceberg import Iceberg
from penstock.consumers.lake.table import LakeOptions
from penstock.consumers.options import ByteSize, ConsumerOptions, Names, Properties, Seconds, reveal_secrets
from penstock.errors import Invalid
from penstock.eventstore.schema_version import SchemaVersion
from penstock.jobs.api import make_paths_absolute
from penstock.jobs.consumer import Consumer, DataRetriever, find_consumer
from penstock.jobs.spec import ConsumerInfo, IterationDetail, JobSpec
from penstock.tables.define import define_table
from penstock.testing.consumers import job_context


class _Options(ConsumerOptions):
    dsn: SecretStr
    table: str = "rows"
    wait: Seconds = Field(5.0, gt=0)
    size: ByteSize = 1024
    columns: Names = ()
    format: Literal["json", "arrow"] = "json"
    create: bool = True
    schema_name: str = Field("public", alias="schema")
    storage: Properties = Field(default_factory=dict, repr=False)

    @model_validator(mode="after")
    def _fit(self) -> "_Options":
        if not self.create and self.table == "rows":
            raise ValueError("name the table when it is not to be created")
        return self


class _Bare(ConsumerOptions):
    pass


def _parse(**given: str) -> _Options:
    options = {name.replace("__", "."): value for name, value in given.items()}
    return _Options.parse(ConsumerInfo(consumer="db", options=options))


def test_texts_become_values() -> None:
    found = _parse(
        dsn="secret", wait="1m30s", size="8MiB", columns="a, b,,c", format="arrow", create="false", table="t"
    )
    assert (found.wait, found.size, found.columns) == (90, 8 << 20, ("a", "b", "c"))
    assert (found.format, found.create, found.table) == ("arrow", False, "t")
    assert found.dsn.get_secret_value() == "secret"


def test_a_group_collects_what_begins_with_its_name() -> None:
    found = _parse(dsn="x", storage__region="eu", storage__a__b="2")
    assert reveal_secrets(found.storage) == {"region": "eu", "a.b": "2"}


def test_an_option_may_have_a_name_that_pydantic_has_itself() -> None:
    assert _parse(dsn="x", schema="app").schema_name == "app"
    with pytest.raises(Invalid, match="has no option schema_name; did you mean"):
        _parse(dsn="x", schema_name="app")


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("index", "/here/index"),
        ("./a/index", "/here/a/index"),
        ("/data/index", "/data/index"),
        ("file://index", "file:///here/index"),
        ("FILE://a%20b/c", "file:///here/a%20b/c"),
        ("file:///data/index", "file:///data/index"),
        ("s3://bucket/index", "s3://bucket/index"),
        ("memory://index", "memory://index"),
    ],
)
def test_a_relative_place_is_that_of_the_process(
    monkeypatch: pytest.MonkeyPatch, given: str, kept: str
) -> None:
    monkeypatch.setattr("os.getcwd", lambda: "/here")
    for consumer in ("fulltext", "vector", "delta", "parquet"):
        assert find_consumer(consumer).absolute_options({"uri": given, "history": "1h"}) == {
            "uri": kept,
            "history": "1h",
        }
    for catalog in ({"catalog.type": "sql"}, {"catalog.uri": "postgresql+psycopg2://db/catalog"}):
        assert Iceberg.absolute_options({**catalog, "catalog.warehouse": given})["catalog.warehouse"] == kept
    assert LakeOptions.parse(ConsumerInfo(consumer="delta", options={"uri": given})).uri in {
        kept,
        f"file://{kept}",
    }


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("sqlite:///catalog.db", "sqlite:////here/catalog.db"),
        ("sqlite+pysqlite:///a/b.db?mode=ro", "sqlite+pysqlite:////here/a/b.db?mode=ro"),
        ("sqlite:////data/catalog.db", "sqlite:////data/catalog.db"),
        ("sqlite:///:memory:", "sqlite:///:memory:"),
        ("sqlite://", "sqlite://"),
        ("http://catalog:8181", "http://catalog:8181"),
        ("thrift://hive:9083", "thrift://hive:9083"),
    ],
)
def test_a_catalog_in_a_file_is_found_from_every_folder(
    monkeypatch: pytest.MonkeyPatch, given: str, kept: str
) -> None:
    monkeypatch.setattr("os.getcwd", lambda: "/here")
    assert Iceberg.absolute_options({"catalog.uri": given}) == {"catalog.uri": kept}


def _spec(consumer: str | None, options: dict[str, str]) -> JobSpec:
    info = ConsumerInfo(consumer=consumer, options=options)
    return JobSpec(detail=IterationDetail(consumer=info))


def test_a_changed_place_is_read_with_the_options_that_the_job_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getcwd", lambda: "/here")
    options = {"table": "a.b", "catalog.uri": "sqlite:///old/catalog.db", "catalog.warehouse": "old"}
    before = _spec("iceberg", options)
    change = _spec(None, {"catalog.warehouse": "new"})
    assert make_paths_absolute(change, before) == _spec(None, {"catalog.warehouse": "/here/new"})
    assert make_paths_absolute(_spec(None, {"history": "1h"}), before) == _spec(None, {"history": "1h"})


@pytest.mark.parametrize("warehouse", ["prod", "arn:aws:s3tables:eu-west-1:1:bucket/b", "s3://bucket/x", ""])
def test_a_warehouse_that_a_catalog_knows_by_name_stays(warehouse: str) -> None:
    options = {"table": "a.b", "catalog.uri": "http://catalog:8181", "catalog.warehouse": warehouse}
    assert Iceberg.absolute_options(options) == options
    assert Iceberg.absolute_options({"catalog.warehouse": warehouse}) == {"catalog.warehouse": warehouse}


def test_a_consumer_without_declared_options_keeps_them_as_they_are() -> None:
    class Own(Consumer):
        def consume(self, data: DataRetriever) -> None:
            del data

    assert Own.absolute_options({"uri": "index"}) == {"uri": "index"}


def test_what_is_empty_takes_its_default() -> None:
    assert _parse(dsn="x", table="", storage__region="") == _parse(dsn="x")


def test_an_unknown_option_is_named_with_those_that_exist() -> None:
    with pytest.raises(
        Invalid,
        match=r"consumer db has no option tabel; did you mean table\? there are dsn, table, .*storage\.\*",
    ):
        _parse(dsn="x", tabel="hush")


@pytest.mark.parametrize("option", ["storage", "storage__", "dsn__a", "other__a"])
def test_a_dot_belongs_to_groups_alone(option: str) -> None:
    with pytest.raises(Invalid, match="has no option"):
        _parse(**{"dsn": "x", option: "1"})


def test_a_missing_option_is_named() -> None:
    with pytest.raises(Invalid, match=r"^consumer db needs the option dsn$"):
        _parse(dsn="")


def test_a_consumer_without_options_says_so() -> None:
    with pytest.raises(Invalid, match=r"consumer db has no option a; it takes none$"):
        _Bare.parse(ConsumerInfo(consumer="db", options={"a": "1"}))


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("wait", "option wait of consumer db: write a duration such as"),
        ("size", "option size of consumer db: write a size such as"),
        ("format", "option format of consumer db: Input should be 'json' or 'arrow'"),
        ("create", "option create of consumer db: Input should be a valid boolean"),
    ],
)
def test_a_wrong_value_is_not_shown(option: str, message: str) -> None:
    with pytest.raises(Invalid, match=message) as caught:
        _parse(**{"dsn": "x", option: "hush-hush"})
    assert "hush" not in str(caught.value)


def test_options_that_do_not_fit_together_are_refused() -> None:
    with pytest.raises(Invalid, match=r"^the options of consumer db: name the table"):
        _parse(dsn="x", create="false")


def test_secrets_are_not_printed() -> None:
    assert "hush" not in repr(_parse(dsn="hush", storage__key="hush"))


TARGETS = {
    "delta": ({"uri": "memory:///delta"}, "a b"),
    "parquet": ({"uri": "memory:///parquet"}, ""),
    "iceberg": ({"table": "shop.items", "catalog.type": "in-memory"}, ""),
    "postgres": ({"dsn": "host=nowhere"}, "tableoid"),
    "kv": ({"table": "shop.copy"}, ""),
    "fulltext": ({"uri": "memory:///index", "text_columns": "name"}, "more`s"),
    "webhook": ({"url": "http://127.0.0.1:9/"}, ""),
}


@pytest.mark.parametrize("name", TARGETS)
def test_a_column_is_refused_where_it_is_copied_and_only_there(tmp_path: Path, name: str) -> None:
    """Whatever a target cannot have may be left out; each is given every name that some target refuses."""
    options, refused = TARGETS[name]
    odd = [(each, "int") for _, each in TARGETS.values() if each]
    schema = SchemaVersion(1, 1, define_table("items", [("id", "int primary key"), ("name", "text"), *odd]))

    def check(*columns: str) -> None:
        consumer = find_consumer(name)(job_context(tmp_path, name, options, columns=columns))
        consumer.check(schema)

    check("name")
    if refused:
        with pytest.raises(Invalid, match=re.escape(refused)):
            check("name", refused)
