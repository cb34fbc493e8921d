"""A job names code by its module: nothing is imported that the operator has not listed."""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.schema import Schema as IcebergSchema

from penstock.consumers.lake.consumer import LakeConsumer
from penstock.consumers.search_index.fulltext import TERMS, Fulltext, TermsMaker
from penstock.consumers.search_index.vector import Vector
from penstock.control import job_views
from penstock.errors import Invalid
from penstock.jobs import consumer
from penstock.jobs.api import make_consumer, make_paths_absolute
from penstock.jobs.consumer import find_consumer
from penstock.jobs.custom_code import check_code
from penstock.jobs.job import ErrorCode, Job, JobId, JobKey, JobState, JobStatus
from penstock.jobs.runner.custom_triggers import Fault, TriggerRequest, ask_trigger, find_trigger
from penstock.jobs.spec import JobSpec
from penstock.settings import Settings, parse

HOSTILE = """
from pathlib import Path
Path({mark!r}).touch()
"""
ID = JobId.parse("shop.orders/hostile")
KEY = JobKey(account_id=0, table_id=1, job_name="hostile", job_id=1)


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that a module makes when it is imported, so that tests see whether it was."""
    made = tmp_path / "imported"
    (tmp_path / "hostile_code.py").write_text(HOSTILE.format(mark=str(made)))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "hostile_code", raising=False)
    return made


def spec(name: str, **options: str) -> JobSpec:
    return JobSpec.parse({"detail": {"consumer": {"consumer": name, "options": options}}})


def settings(folder: Path, *allowed: str) -> Settings:
    return parse({"jobs": {"data": str(folder), "allowed_code": list(allowed)}})


def test_a_consumer_that_is_not_listed_is_refused_before_it_is_imported(mark: Path, tmp_path: Path) -> None:
    name = "hostile_code:Consumer"
    said = "add hostile_code to jobs.allowed_code"
    with pytest.raises(Invalid, match=said):
        find_consumer(name)
    with pytest.raises(Invalid, match=said):
        make_consumer(ID, KEY, "", spec(name), settings(tmp_path), tmp_path)
    with pytest.raises(Invalid, match=said):
        make_paths_absolute(spec(name, path="x"))
    assert not mark.exists()
    with pytest.raises(Invalid, match="cannot be loaded"):
        make_consumer(ID, KEY, "", spec(name), settings(tmp_path, "hostile_code"), tmp_path)
    assert mark.exists(), "the operator lists it: then it is imported"


def test_to_show_a_job_imports_nothing(mark: Path) -> None:
    """Whoever could write a row of the job log would otherwise run code where jobs are listed."""
    job = Job(
        id=ID,
        key=KEY,
        account="sys",
        spec=spec("hostile_code:Consumer", secret="x"),
        state=JobState.COMPLETED,
        watermark=0,
        status=JobStatus(),
        create_at=0,
    )
    shown = job_views.job_details(job)
    assert shown["spec"]["detail"]["consumer"]["options"] == {"secret": "***"}
    assert not mark.exists()


def test_a_trigger_that_is_not_listed_is_never_called(mark: Path) -> None:
    with pytest.raises(Invalid, match=r"add hostile_code to jobs\.allowed_code"):
        find_trigger("hostile_code:when")
    told = ask_trigger(TriggerRequest("os:getcwd", None))  # type: ignore[arg-type] # it is not asked
    assert isinstance(told, Fault)
    assert told.code is ErrorCode.REFUSED
    assert "add os to jobs.allowed_code" in told.message
    assert not mark.exists()


def test_an_entry_point_of_a_package_needs_its_module_listed(
    mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered = EntryPoints([EntryPoint("nice", "hostile_code:Consumer", consumer.GROUP)])
    monkeypatch.setattr(consumer, "entry_points", offered.select)
    with pytest.raises(Invalid, match=r"consumer 'nice' is code .* add hostile_code"):
        find_consumer("nice")
    assert not mark.exists()


def test_functions_of_options_and_of_recipes_that_others_wrote_are_refused(
    mark: Path, tmp_path: Path
) -> None:
    """The recipe lies in the index: whoever can write there could name any function."""
    made = make_consumer(
        ID,
        KEY,
        "",
        spec("fulltext", uri=str(tmp_path / "index"), text_columns="note"),
        settings(tmp_path),
        tmp_path,
    )
    assert isinstance(made, Fulltext)
    recipe = {"columns": ["note"], "parser": "hostile_code:parse", "lower": True, "ngram": 2}
    with pytest.raises(Invalid, match=r"parser 'hostile_code:parse' of job shop\.orders/hostile"):
        made.parse_maker(json.dumps(recipe))
    assert isinstance(made.parse_maker(json.dumps({**recipe, "parser": "words"})), TermsMaker)
    vectors = make_consumer(
        ID,
        KEY,
        "",
        spec("vector", uri=str(tmp_path / "index"), text_columns="note", dimension="3"),
        settings(tmp_path),
        tmp_path,
    )
    assert isinstance(vectors, Vector)
    with pytest.raises(Invalid, match="embedding 'hostile_code:embed' of job"):
        vectors.parse_maker(json.dumps({"columns": ["a"], "dimension": 3, "embedding": "hostile_code:embed"}))
    assert not mark.exists()
    assert TERMS


def test_a_catalog_of_iceberg_names_no_class_of_its_own(mark: Path, tmp_path: Path) -> None:
    given = {"table": "a.b", "catalog.type": "sql", "catalog.py-io-impl": "hostile_code.FileIO"}
    with pytest.raises(Invalid, match=r"catalog\.py-io-impl .* add hostile_code to jobs\.allowed_code"):
        make_consumer(ID, KEY, "", spec("iceberg", **given), settings(tmp_path), tmp_path)
    assert not mark.exists()


def iceberg(folder: Path, **catalog: str) -> LakeConsumer:
    """A job's consumer; the table is `a.b`."""
    options = {"table": "a.b", **{f"catalog.{name}": value for name, value in catalog.items()}}
    made = make_consumer(ID, KEY, "", spec("iceberg", **options), settings(folder), folder)
    assert isinstance(made, LakeConsumer)
    return made


@pytest.fixture
def metadata(tmp_path: Path) -> Path:
    """The metadata of an Iceberg table in a catalog of SQLite, where somebody may write."""
    catalog = load_catalog("penstock", **sqlite(tmp_path))
    catalog.create_namespace("a")
    made = catalog.create_table("a.b", IcebergSchema())
    catalog.close()
    return Path(made.metadata_location.removeprefix("file://"))


def sqlite(folder: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/lake"}


IMPORTED = ("py-io-impl", "write.py-location-provider.impl", "s3.retry-strategy-impl", "py-catalog-impl")
"""Properties whose values pyiceberg imports."""


@pytest.mark.parametrize("name", IMPORTED)
def test_the_metadata_of_an_iceberg_table_names_no_class(
    mark: Path, tmp_path: Path, metadata: Path, name: str
) -> None:
    """Metadata lies where the table is; it is read before anybody knows whose the table is."""
    tree = json.loads(metadata.read_text())
    tree["properties"][name] = "hostile_code.Class"
    metadata.write_text(json.dumps(tree))
    made = iceberg(tmp_path, **sqlite(tmp_path))
    with pytest.raises(
        Invalid, match=r"of the metadata of a table .* add hostile_code to jobs\.allowed_code"
    ):
        made.table.latest()
    made.close()
    assert not mark.exists()


def test_names_of_classes_of_java_in_the_metadata_do_no_harm(tmp_path: Path, metadata: Path) -> None:
    tree = json.loads(metadata.read_text())
    tree["properties"]["write.location-provider.impl"] = "org.apache.iceberg.Provider"
    metadata.write_text(json.dumps(tree))
    made = iceberg(tmp_path, **sqlite(tmp_path))
    with pytest.raises(Invalid, match="is not Penstock's"):
        made.table.latest()
    made.close()


class StubRest(BaseHTTPRequestHandler):
    """A REST catalog that answers with what a test says."""

    config: ClassVar[dict[str, Any]] = {}
    table: ClassVar[dict[str, Any]] = {}

    def do_GET(self) -> None:
        answer = self.config if self.path.startswith("/v1/config") else self.table
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        return


HOSTILE_CLASS = "hostile_code.Class"


@pytest.mark.parametrize(
    ("config", "of_table", "properties"),
    [
        ({"defaults": {"py-io-impl": HOSTILE_CLASS}}, {}, {}),
        ({"overrides": {"py-io-impl": HOSTILE_CLASS}}, {}, {}),
        ({"overrides": {"auth": {"type": "custom", "impl": HOSTILE_CLASS}}}, {}, {}),
        ({}, {"py-io-impl": HOSTILE_CLASS}, {}),
        ({}, {}, {"py-io-impl": HOSTILE_CLASS}),
        ({}, {}, {"write.py-location-provider.impl": HOSTILE_CLASS}),
    ],
)
def test_the_server_of_a_rest_catalog_names_no_class(
    mark: Path,
    tmp_path: Path,
    metadata: Path,
    config: dict[str, Any],
    of_table: dict[str, Any],
    properties: dict[str, Any],
) -> None:
    tree = json.loads(metadata.read_text())
    tree["properties"] |= properties
    StubRest.config = {"defaults": {}, "overrides": {}, **config}
    StubRest.table = {"metadata-location": metadata.as_uri(), "metadata": tree, "config": of_table}
    with ThreadingHTTPServer(("127.0.0.1", 0), StubRest) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        made = iceberg(tmp_path, type="rest", uri=f"http://127.0.0.1:{server.server_port}")
        try:
            with pytest.raises(Invalid, match=r"add hostile_code to jobs\.allowed_code"):
                made.table.latest()
        finally:
            made.close()
            server.shutdown()
    assert not mark.exists()


@pytest.mark.parametrize(
    ("location", "allowed", "passes"),
    [
        ("shop.jobs:Copy", ["shop.jobs"], True),
        ("shop.jobs.deep:Copy", ["shop.jobs"], True),
        ("shop.jobs_of_others:Copy", ["shop.jobs"], False),
        ("shop:Copy", ["shop.jobs"], False),
        ("shop.jobs:os.system", ["shop.jobs"], True),
        ("os:system", [], False),
        (":x", ["shop"], False),
        ("..:x", ["shop"], False),
        ("", ["shop"], False),
    ],
)
def test_a_module_is_listed_itself_or_by_a_package_above_it(
    location: str, allowed: list[str], passes: bool
) -> None:
    if passes:
        check_code(location, allowed, "consumer")
    else:
        with pytest.raises(Invalid, match=r"jobs\.allowed_code"):
            check_code(location, allowed, "consumer")


@pytest.mark.parametrize("listed", ["", ".", "shop.", "shop:Copy", "*", "shop jobs"])
def test_a_list_has_names_of_modules_only(listed: str) -> None:
    with pytest.raises(Invalid, match=r"jobs\.allowed_code"):
        parse({"jobs": {"allowed_code": [listed]}})
