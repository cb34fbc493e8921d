"""A table with rows, for both files here."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.itemtables import item, item_table
from support.tableworld import TableWorld

ROWS = 200


@pytest.fixture
def table(tmp_path: Path) -> Iterator[TableWorld]:
    with TableWorld(tmp_path / "store", item_table()) as made:
        for number in range(ROWS):
            made.commit(item("integer", number, f"name {number}"))
        made.resolve()
        yield made
