"""Worlds of one table, over storage in memory."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from support.itemtables import item_table
from support.tableworld import TableWorld

MakeWorld = Callable[..., TableWorld]
_MADE = count()


@pytest.fixture
def make_world(tmp_path: Path) -> Iterator[MakeWorld]:
    """Make a world; it is closed after the test."""
    with ExitStack() as stack:

        def make(kind: str = "integer", *, partitions: tuple[int, ...] = (), **settings: Any) -> TableWorld:
            table = item_table(kind, partitions=partitions)
            nth = next(_MADE)
            url = f"memory:///changes-{nth}"
            made = TableWorld(tmp_path / str(nth), table, partitions=partitions, url=url, **settings)
            return stack.enter_context(made)

        yield make


@pytest.fixture
def world(make_world: MakeWorld) -> TableWorld:
    """A table with an integer key."""
    return make_world()
