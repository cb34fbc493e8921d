"""What `from penstock import ...` offers."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import penstock

PACKAGE = Path(penstock.__file__).parent
HEAVY = ("grpc", "numpy", "pyarrow", "pydantic", "pyspark", "yaml")


def test_every_public_name_is_there_and_they_are_in_order() -> None:
    assert penstock.__all__ == sorted(penstock.__all__)
    assert all(getattr(penstock, name).__name__ == name for name in penstock.__all__)
    assert set(penstock.__all__) <= set(dir(penstock))
    with pytest.raises(AttributeError, match="module 'penstock' has no attribute 'Nothing'"):
        penstock.Nothing  # type: ignore[attr-defined] # noqa: B018 - that it raises is the point


def test_importing_the_package_alone_loads_nothing_heavy() -> None:
    script = (
        "import sys, penstock; dir(penstock);"
        f"print(sorted({{name.partition('.')[0] for name in sys.modules}} & {set(HEAVY)!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "[]\n"


def test_type_checkers_are_told_of_the_same_names_in_the_same_modules() -> None:
    assert (PACKAGE / "py.typed").read_bytes() == b""
    declared: dict[str, str | None] = {}
    for node in ast.parse((PACKAGE / "__init__.pyi").read_text()).body:
        match node:
            case ast.ImportFrom(module=module, names=names):
                declared |= dict.fromkeys([each.name for each in names], module)
            case ast.Assign(targets=[ast.Name(id="__all__")], value=value):
                assert ast.literal_eval(value) == penstock.__all__
    assert sorted(declared) == penstock.__all__
    for name, module in declared.items():
        assert getattr(sys.modules[str(module)], name) is getattr(penstock, name)
