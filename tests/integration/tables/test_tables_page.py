"""The page about tables: its programs, one after the other, as a reader would type them."""

from pathlib import Path

import pytest

from penstock.kv import Client
from penstock.tables import Catalog
from support.docblocks import blocks_of
from support.warmstore import WarmStore

PAGE = Path(__file__).parents[3] / "docs" / "tables.md"


def test_the_programs_of_the_page_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {}
    with WarmStore.start(tmp_path / "store", stores=1) as store:
        for block in blocks_of(PAGE.read_text()):
            assert block.kind == "python"
            program = block.text.replace("127.0.0.1:2379", store.pd_addr)
            exec(compile(program, f"{PAGE.name}:{block.line}", "exec"), names)
        client = names["client"]
        assert isinstance(client, Client)
        with client:
            assert [table.name for table in Catalog(client).tables("shop")] == ["notes", "orders", "visits"]
    assert "write reorg 2" in capsys.readouterr().out
