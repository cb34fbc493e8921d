"""Columns that Lance cannot have."""

from dataclasses import replace
from pathlib import Path

import pytest

from penstock.errors import Invalid
from penstock.tables.define import define_table
from support.indexworld import IndexWorld

ITEMS = define_table("items", [("id", "int primary key"), ("name", "text"), ("more", "int")])


@pytest.mark.parametrize("name", ["more.or.less", "more`s"])
def test_a_column_whose_name_is_an_expression_for_lance_is_told_before_anything_is_written(
    tmp_path: Path, name: str
) -> None:
    columns = [replace(each, name=name) if each.name == "more" else each for each in ITEMS.columns]
    world = IndexWorld(tmp_path, "fulltext", replace(ITEMS, columns=tuple(columns)), {"text_columns": "name"})
    world.source.commit({"id": 1, "name": "a word", name: 2})
    with pytest.raises(Invalid, match="leave it out of the job's columns"):
        world.catch_up()
