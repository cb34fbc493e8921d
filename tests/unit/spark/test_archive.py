import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from penstock.errors import Invalid
from penstock.spark.shipping import build_archive


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "pack"
    (folder / "inner" / "__pycache__").mkdir(parents=True)
    (folder / "__init__.py").write_text("VALUE = 1\n")
    (folder / "inner" / "__init__.py").write_text("from pack import VALUE\n")
    (folder / "inner" / "facts.txt").write_text("fact")
    (folder / "inner" / "__pycache__" / "old.pyc").write_bytes(b"old")
    return folder


def test_an_archive_has_sources_compiled_files_and_data_but_no_caches(package: Path, tmp_path: Path):
    with zipfile.ZipFile(build_archive(tmp_path, package)) as archive:
        assert set(archive.namelist()) == {
            "pack/__init__.py",
            "pack/__init__.pyc",
            "pack/inner/__init__.py",
            "pack/inner/__init__.pyc",
            "pack/inner/facts.txt",
        }


def test_equal_sources_give_equal_archives_and_other_sources_another_name(package: Path, tmp_path: Path):
    first, second = tmp_path / "1", tmp_path / "2"
    first.mkdir()
    second.mkdir()
    one, same = build_archive(first, package), build_archive(second, package)
    assert one.name == same.name
    assert one.read_bytes() == same.read_bytes()
    (package / "__init__.py").write_text("VALUE = 2\n")
    assert build_archive(first, package).name != one.name


def test_a_worker_imports_what_was_compiled_before(package: Path, tmp_path: Path):
    path = build_archive(tmp_path, package)
    program = (
        f"import sys; sys.path.insert(0, {str(path)!r}); import pack.inner as p; print(p.__file__, p.VALUE)"
    )
    said = subprocess.run(
        [sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert said.stdout.split() == [f"{path}/pack/inner/__init__.pyc", "1"]


def test_a_package_without_files_is_refused(tmp_path: Path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(Invalid, match="no files to ship"):
        build_archive(tmp_path, tmp_path / "empty")


def test_penstock_itself_can_be_shipped(tmp_path: Path):
    with zipfile.ZipFile(build_archive(tmp_path)) as archive:
        assert {"penstock/errors.py", "penstock/spark/source.pyc"} <= set(archive.namelist())
