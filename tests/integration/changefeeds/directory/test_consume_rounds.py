"""The command in this process: URIs, storages, and what it refuses."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.consume import ConsumeOptions, Into, consume_directory
from penstock.errors import Invalid, PenstockError
from penstock.object_storage import open_storage
from support.s3server import S3Bucket
from support.ticdcfiles import TicdcDirectory, canal_line, column

ORDERS = [column("id", "BIGINT", pk=True), column("note", "VARCHAR", ColumnPrecision="20")]


def insert(key: int, commit_ts: int) -> bytes:
    return canal_line("INSERT", {"id": str(key), "note": "n"}, commit_ts=commit_ts)


def printed(capsys: pytest.CaptureFixture[str], uri: str, **options: Any) -> list[dict[str, Any]]:
    asyncio.run(consume_directory(ConsumeOptions(uri=uri, **options)))
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.fixture
def directory(tmp_path: Path) -> TicdcDirectory:
    made = TicdcDirectory(open_storage(f"file://{tmp_path}/out"))
    made.schema("shop/orders", 100, ORDERS)
    made.data("shop/orders/100", 1, insert(1, 110))
    made.checkpoint(150)
    return made


def test_a_round_is_kept_in_the_state_file(
    directory: TicdcDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state.json"
    assert len(printed(capsys, directory.storage.url, state=state)) == 2
    assert printed(capsys, directory.storage.url, state=state) == []
    assert len(printed(capsys, f"{directory.storage.url}?protocol=canal-json")) == 2


def test_what_was_printed_before_a_failure_is_kept(
    directory: TicdcDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state.json"
    directory.data("shop/orders/100", 2, b"{")
    with pytest.raises(PenstockError, match=r"CDC00000000000000000002\.json"):
        printed(capsys, directory.storage.url, state=state)
    assert len(capsys.readouterr().out.splitlines()) == 2
    directory.data("shop/orders/100", 2, insert(2, 120))
    assert [line["row"]["id"] for line in printed(capsys, directory.storage.url, state=state)] == [2]


def test_csv_is_read_with_the_parameters_that_it_was_written_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = TicdcDirectory(open_storage(f"file://{tmp_path}/out"), date="2026-02")
    made.schema("112", 100, ORDERS, name=("shop", "orders"))
    made.data("112/100", 1, b"I|orders|shop|7|a\\|b\n", extension=".csv")
    made.checkpoint(150)
    query = "protocol=csv&delimiter=%7C&quote=&terminator=%5Cn&date-separator=month&use-table-id-as-path=true"
    assert printed(capsys, f"{made.storage.url}?{query}")[1]["row"] == {"id": 7, "note": "a|b"}


def test_a_bucket_is_read_by_the_uri_that_wrote_it(
    s3_bucket: S3Bucket, capsys: pytest.CaptureFixture[str]
) -> None:
    made = TicdcDirectory(open_storage(f"{s3_bucket.url}/feeds/one", s3_bucket.options))
    made.schema("shop/orders", 100, ORDERS)
    made.data("shop/orders/100", 1, insert(1, 110))
    made.checkpoint(150)
    query = f"protocol=canal-json&{s3_bucket.query}"
    found = printed(capsys, f"{s3_bucket.url}/feeds/one?{query}")
    assert [line["op"] for line in found] == ["schema", "insert"]
    with pytest.raises(Invalid, match="no metadata file"):
        printed(capsys, f"{s3_bucket.url}/feeds?{query}")


@pytest.mark.parametrize(
    ("more", "options", "message"),
    [
        ("/nowhere", {}, "does not exist"),
        ("/meta?protocol=csv", {}, "does not exist"),
        ("?protocol=avro", {}, "protocol = 'avro' is refused"),
        ("?protcol=csv", {}, "did you mean protocol"),
        ("?use-table-id-as-path=true", {}, "use-table-id-as-path as the sink had"),
        ("", {"time_zone": "Mars"}, "time zone 'Mars' is unknown"),
        ("", {"into": Into.DATABASE}, "add --pd-addrs"),
        ("", {"pd_addrs": ("127.0.0.1:1",)}, "add --into database"),
        ("", {"state": Path("/nowhere/state.json")}, "cannot be written"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(
    directory: TicdcDirectory,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    more: str,
    options: dict[str, Any],
    message: str,
) -> None:
    with pytest.raises(Invalid, match=message) as caught:
        asyncio.run(consume_directory(ConsumeOptions(uri=f"{directory.storage.url}{more}", **options)))
    assert "\n" not in str(caught.value)
    assert capsys.readouterr().out == ""
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"metadata", "shop", "staging"}


def test_an_output_that_is_none_is_refused() -> None:
    with pytest.raises(Invalid, match="use lines or database"):
        Into.parse("nowhere")
