"""How the code is laid out, held where it is: by every change it may only become better.

`tools/measure_layout.py` says what is counted, and prints all of it.
"""

import importlib.util
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[3] / "tools" / "measure_layout.py"

SINGLE_IMPORTER_MODULES_MAX = 120
MODULE_CYCLES_MAX = 0
PACKAGES_WITH_FOLDER_CYCLES_MAX = 8
KNOWN: frozenset[str] = frozenset()
"""Names that several classes still have: none comes, and one that is theirs no more leaves."""


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("measure_layout", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look for it there
    spec.loader.exec_module(module)
    return module


measure_layout = _load()
HOUSE = measure_layout.read_layout()


def test_no_two_classes_share_a_name_also_if_one_is_private_or_a_double() -> None:
    shared = measure_layout.shared_class_names(HOUSE)
    new = {name: where for name, where in shared.items() if name not in KNOWN}
    assert new == {}, "give one of them another name"
    assert sorted(KNOWN.difference(shared)) == [], "they are shared no more: take them out of KNOWN"


def test_few_modules_have_one_importer() -> None:
    single = measure_layout.single_importers(HOUSE)
    shown = "\n".join(f"{module} is imported by {importer} alone" for module, importer in single.items())
    assert len(single) <= SINGLE_IMPORTER_MODULES_MAX, shown


def test_modules_do_not_import_each_other() -> None:
    found = measure_layout.module_cycles(HOUSE)
    assert len(found) <= MODULE_CYCLES_MAX, found


def test_folders_of_few_packages_import_each_other() -> None:
    found = {
        package: measured.folder_cycles
        for package, measured in measure_layout.package_measures(HOUSE).items()
        if measured.folder_cycles
    }
    assert len(found) <= PACKAGES_WITH_FOLDER_CYCLES_MAX, found


def test_contracts_that_list_layers_list_all_of_them() -> None:
    with (SCRIPT.parents[1] / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    layered = [contract for contract in contracts if contract["type"] == "layers"]
    assert len(layered) >= 12
    assert [contract["name"] for contract in layered if not contract.get("exhaustive")] == []


ELSEWHERE = re.compile(r"[Rr]aises? as `|[Rr]aises? what `?\w+`? (raises|does)|[Rr]eturns? as `|\bSee `")


def test_docstrings_state_the_promise_where_the_reader_is() -> None:
    found = [
        f"{path.relative_to(SCRIPT.parents[1])}: {match[0]}"
        for path in (SCRIPT.parents[1] / "src").rglob("*.py")
        for match in ELSEWHERE.finditer(" ".join(path.read_text().split()))
    ]
    assert found == [], "write what is raised, and when"


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A repository with every form of an import."""
    texts = {
        "__init__": "",
        "ground": "class Thing: ...\nclass _Hidden: ...\n",
        "a/__init__": "from penstock.a.one import One\n",
        "a/one": "class One: ...\n",
        "a/two": "def two():\n    from penstock import ground\n    from penstock.a import one\n",
        "b/__init__": "",
        "b/three": (
            "from typing import TYPE_CHECKING\n"
            "if TYPE_CHECKING:\n    from penstock.a.two import two\n"
            "class Thing: ...\nclass _Hidden: ...\n"
        ),
        "b/low/four": "from penstock.b.high.five import five\n",
        "b/high/five": "import penstock.b.low.four\n",
        "testing/six": "import penstock.b.three\nclass One: ...\n",
    }
    for name, text in texts.items():
        path = tmp_path / "src" / "penstock" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_every_form_of_an_import_is_seen(small: Path) -> None:
    house = measure_layout.read_layout(small)
    seen = {(each.importer, each.imported, each.typing) for each in house.imports}
    assert seen == {
        ("penstock.a", "penstock.a.one", False),
        ("penstock.a.two", "penstock.ground", False),
        ("penstock.a.two", "penstock.a.one", False),
        ("penstock.b.three", "penstock.a.two", True),
        ("penstock.b.low.four", "penstock.b.high.five", False),
        ("penstock.b.high.five", "penstock.b.low.four", False),
        ("penstock.testing.six", "penstock.b.three", False),
    }


def test_what_is_measured_is_what_the_script_says(small: Path) -> None:
    house = measure_layout.read_layout(small)
    assert measure_layout.single_importers(house) == {
        "penstock.a.two": "penstock.b.three",
        "penstock.b.high.five": "penstock.b.low.four",
        "penstock.b.low.four": "penstock.b.high.five",
        "penstock.ground": "penstock.a.two",
    }
    assert "penstock.a.two" not in measure_layout.single_importers(house, typing=False)
    assert measure_layout.module_cycles(house) == [["penstock.b.high.five", "penstock.b.low.four"]]
    assert measure_layout.folder_cycles(house, "b") == [["high", "low"]]
    assert measure_layout.shared_class_names(house) == {
        "Hidden": ["penstock.b.three", "penstock.ground"],
        "One": ["penstock.a.one", "penstock.testing.six"],
        "Thing": ["penstock.b.three", "penstock.ground"],
    }
