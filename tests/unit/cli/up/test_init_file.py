"""The settings file that `penstock init` writes."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from penstock.cli.init_file import EXAMPLES, render_file, write_file
from penstock.errors import Invalid
from penstock.settings import Settings, expand, parse, read_file

TEXT = render_file(Path("penstock.yaml"))
WHOLE = re.sub(r"(?m)^( *)#(?=[a-z_]+:)", r"\1", TEXT)
"""With every key that is commented out."""


def keys(model: type[BaseModel], prefix: str = "") -> set[str]:
    found: set[str] = set()
    for name, field in model.model_fields.items():
        found.add(prefix + name)
        if isinstance(field.default, BaseModel):
            found |= keys(type(field.default), f"{prefix}{name}.")
    return found


def keys_of_tree(tree: Any, prefix: str = "") -> set[str]:
    found: set[str] = set()
    for name, value in tree.items():
        found.add(prefix + name)
        if isinstance(value, dict):
            found |= keys_of_tree(value, f"{prefix}{name}.")
    return found


def test_it_loads_as_it_is_and_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_file(Path("penstock.yaml"))
    assert read_file(tmp_path / "penstock.yaml") == Settings()


def test_in_another_folder_it_says_where_the_tokens_are(tmp_path: Path) -> None:
    write_file(tmp_path / "penstock.yaml")
    assert read_file(tmp_path / "penstock.yaml") == Settings(secrets_dir=tmp_path / "penstock-data/secrets")


def test_what_is_commented_out_is_the_default() -> None:
    assert parse(yaml.safe_load(WHOLE)) == Settings()


def test_every_key_is_in_it() -> None:
    assert keys_of_tree(yaml.safe_load(WHOLE)) == keys(Settings)


def test_every_key_has_something_said_of_it() -> None:
    lines = TEXT.splitlines()
    for number, line in enumerate(lines):
        if re.match(r" *#?[a-z_]+:", line):
            assert re.match(r" *# ", lines[number - 1]), line


def test_what_people_set_first_is_set() -> None:
    tree = yaml.safe_load(TEXT)
    assert set(tree) == {"pd_addrs", "store", "capture", "jobs", "api", "up"}
    assert set(tree["capture"]) == {"data", "storage", "tables"}


@pytest.mark.parametrize("key", EXAMPLES)
def test_its_examples_are_accepted(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in re.findall(r"\$\{([A-Z_]+)\}", TEXT):
        monkeypatch.setenv(name, "0123456789abcdef")
    tree: Any = EXAMPLES[key]
    for name in reversed(key.split(".")):
        tree = {name: tree}
    assert parse(expand(tree)) != Settings()


def test_lines_are_short_enough_to_read() -> None:
    assert max(map(len, TEXT.splitlines())) <= 110


def test_a_file_is_not_written_over_unless_asked(tmp_path: Path) -> None:
    path = tmp_path / "penstock.yaml"
    path.write_text("mine")
    with pytest.raises(Invalid, match="exists already"):
        write_file(path)
    assert path.read_text() == "mine"
    write_file(path, force=True)
    assert read_file(path) == Settings(secrets_dir=tmp_path / "penstock-data/secrets")


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"none/penstock\.yaml cannot be written \(No such file or directory\)"):
        write_file(tmp_path / "none" / "penstock.yaml")
