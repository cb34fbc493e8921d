from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.store.engine import Engine


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    opened = Engine.open(tmp_path / "data", sync=False)
    yield opened
    opened.close()
