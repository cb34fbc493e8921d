"""A release is installed with the very files that were resolved for it, and audited before."""

import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

TOOLS = Path(__file__).parents[2] / "tools"


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


pins = _load("pin_hashes")


def write_wheel(folder: Path, name: str, *, needs: str = "", code: str = "") -> None:
    """Write a wheel with one module."""
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n" + (
        f"Requires-Dist: {needs}\n" if needs else ""
    )
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", code)
        wheel.writestr(f"{info}/METADATA", metadata)
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def install(requirements: Path, wheels: Path, target: Path) -> "subprocess.CompletedProcess[str]":
    offline = ["--no-index", "--find-links", str(wheels), "--target", str(target)]
    command = [sys.executable, "-m", "pip", "install", "--require-hashes", "-r", str(requirements), *offline]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_a_package_that_was_exchanged_after_the_release_is_not_installed(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    write_wheel(wheels, "penstock", needs="sluice")
    write_wheel(wheels, "sluice", needs="weir")
    write_wheel(wheels, "weir")
    (tmp_path / "constraints.txt").write_text("weir==1.0\n")
    offline = ["--no-index", "--find-links", str(wheels)]
    text = pins.render(pins.resolve(["penstock"], tmp_path / "constraints.txt", offline))
    assert [line.partition(" ")[0] for line in text.splitlines()[1:]] == ["sluice==1.0", "weir==1.0"]
    assert "://" not in text
    requirements = tmp_path / "requirements.txt"
    requirements.write_text(text)
    assert install(requirements, wheels, tmp_path / "sound").returncode == 0
    write_wheel(wheels, "weir", code="print('attack')")
    refused = install(requirements, wheels, tmp_path / "attacked")
    assert refused.returncode != 0
    assert "DO NOT MATCH THE HASHES" in refused.stderr
    assert not (tmp_path / "attacked/weir.py").exists()


def test_a_package_without_a_hash_is_not_released() -> None:
    package = {"metadata": {"name": "weir", "version": "1.0"}, "download_info": {"dir_info": {}}}
    with pytest.raises(SystemExit, match="pip tells no hash of weir"):
        pins.render({"install": [package]})


def test_requirements_that_cannot_be_resolved_are_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "constraints.txt").write_text("")
    with pytest.raises(SystemExit) as caught:
        pins.resolve(["weir"], tmp_path / "constraints.txt", ["--no-index"])
    assert str(caught.value).startswith("requirements not written: pip does not resolve them (")
    assert "\n" not in str(caught.value)


def test_an_audit_that_cannot_ask_fails_with_one_line() -> None:
    nobody = "http://127.0.0.1:9"  # the advisory service is asked through it
    environment = os.environ | dict.fromkeys(
        ("HTTPS_PROXY", "HTTP_PROXY", "https_proxy", "http_proxy"), nobody
    )
    environment["NO_PROXY"] = environment["no_proxy"] = ""
    command = [sys.executable, str(TOOLS / "audit_dependencies.py"), "--strict"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert done.returncode == 2
    assert done.stdout == "dependencies not audited: the advisory service does not answer\n"
    assert done.stderr == ""
