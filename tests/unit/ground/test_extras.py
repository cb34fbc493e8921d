"""Optional packages: which extra has each, and what is said where one is missing."""

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from penstock import tracing
from penstock.errors import Invalid
from penstock.extras import EXTRAS, import_with_extra
from penstock.jobs.consumer import BUILT_IN
from penstock.settings import TracingSettings

ROOT = Path(__file__).parents[3]
PYPROJECT = ROOT / "pyproject.toml"
QUICKSTART = ROOT / "docs" / "quickstart.md"
MISSING = [
    "boto3",
    "deltalake",
    "lance",
    "opentelemetry.exporter",
    "opentelemetry.sdk",
    "psycopg",
    "pyiceberg",
]
"""What no extra has installed; FastAPI brings OpenTelemetry's API with it."""

WITHOUT = """
import json, sys
for name in json.loads(sys.argv[1]):
    sys.modules[name] = None  # as Python has it where a package is missing

from penstock.errors import Invalid
from penstock.jobs.consumer import find_consumer

said = {}
for name in json.loads(sys.argv[2]):
    try:
        find_consumer(name)
    except Invalid as error:
        said[name] = str(error)
print(json.dumps(said))
"""

PARTS = """
import json, sys
for name in json.loads(sys.argv[1]):
    sys.modules[name] = None

import penstock.api.app, penstock.cli.main, penstock.cli.up.part, penstock.cli.services.jobs
import penstock.consumers.search_index.search, penstock.control.search, penstock.control.verify
import penstock.spark.session, penstock.verify.target
"""


def run_without_extras(script: str, *arguments: object) -> str:
    command = [sys.executable, "-c", script, *map(json.dumps, [MISSING, *arguments])]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def needs(consumer: str, package: str, extra: str) -> str:
    return (
        f"consumer {consumer} needs the package {package}; install it with: pip install 'penstock[{extra}]'"
    )


def test_a_consumer_whose_package_is_missing_says_in_one_line_how_to_install_it() -> None:
    assert json.loads(run_without_extras(WITHOUT, sorted(BUILT_IN))) == {
        "delta": needs("delta", "deltalake", "delta"),
        "fulltext": needs("fulltext", "pylance", "lance"),
        "iceberg": needs("iceberg", "pyiceberg", "iceberg"),
        "postgres": needs("postgres", "psycopg", "postgres"),
        "vector": needs("vector", "pylance", "lance"),
    }


def test_every_service_is_imported_without_any_extra() -> None:
    assert run_without_extras(PARTS) == ""


def test_traces_without_their_package_are_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    monkeypatch.delitem(sys.modules, "penstock.tracing.otlp", raising=False)
    tracing.require_packages(TracingSettings())  # nothing is to be traced
    with pytest.raises(
        Invalid, match=r"tracing needs the package opentelemetry-sdk; install it with: pip in"
    ):
        tracing.require_packages(TracingSettings(endpoint="http://127.0.0.1:4318/v1/traces"))


def test_another_module_that_is_missing_is_not_taken_for_an_extra() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        import_with_extra("no_such_module", needed_by="this test")


def test_each_extra_installs_the_package_that_messages_name() -> None:
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    extras = project["optional-dependencies"]
    distributions = packages_distributions()
    assert {name.partition(".")[0] for name in MISSING} == set(EXTRAS)
    for module, extra in EXTRAS.items():
        assert any(line.startswith(extra.package) for line in extras[extra.name]), module
        assert extra.package in distributions[module], module
        assert not any(line.startswith(extra.package) for line in project["dependencies"]), module
    names = sorted({extra.name for extra in EXTRAS.values()})
    assert set(extras) == {*names, "all", "dev"}
    assert extras["all"] == [f"penstock[{','.join(names)}]"]
    assert "penstock[all]" in extras["dev"]


def test_the_table_of_the_quickstart_has_every_extra_and_its_packages() -> None:
    extras = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    rows = re.findall(r"^\| `(\w+)` \| .* \|(.*)\|$", QUICKSTART.read_text(), re.MULTILINE)
    packages = {name: [re.split(r"[\[>]", line)[0] for line in lines] for name, lines in extras.items()}
    del packages["dev"]
    packages["all"] = []  # it names the others
    assert {name: sorted(filter(None, text.strip().split(", "))) for name, text in rows} == {
        name: sorted(found) for name, found in packages.items()
    }
