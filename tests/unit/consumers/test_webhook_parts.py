"""The webhook's pure parts: answers, waits, addresses, lines, options."""

import json
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.consumers.webhook import Webhook
from penstock.consumers.webhook.bodies import JsonLines
from penstock.consumers.webhook.sender import Address, Answer, DeliveryResult, retry_delay_s
from penstock.errors import Invalid
from penstock.tables import alter
from penstock.testing.consumers import SourceModel, job_context
from support.everytype import EVERY_CELL, EVERY_TYPE


@pytest.mark.parametrize(
    ("status", "result"),
    [
        (200, DeliveryResult.ACCEPTED),
        (204, DeliveryResult.ACCEPTED),
        (301, DeliveryResult.REFUSED),
        (400, DeliveryResult.REFUSED),
        (404, DeliveryResult.REFUSED),
        (408, DeliveryResult.RETRY),
        (409, DeliveryResult.FENCED),
        (410, DeliveryResult.REFUSED),
        (425, DeliveryResult.RETRY),
        (429, DeliveryResult.RETRY),
        (500, DeliveryResult.RETRY),
        (599, DeliveryResult.RETRY),
    ],
)
def test_each_status_has_one_meaning(status: int, result: DeliveryResult) -> None:
    assert Answer(status).result is result


@pytest.mark.parametrize(
    ("attempt", "retry_after", "seconds"),
    [
        (0, "", 0.5),
        (3, "", 4.0),
        (60, "", 30.0),
        (0, "7", 7.0),
        (0, "Thu, 01 Jan 1970 00:01:50 GMT", 10.0),
        (0, "Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
        (1, "soon", 1.0),
        (1, "-5", 1.0),
    ],
)
def test_waits_are_what_the_server_says_or_double(attempt: int, retry_after: str, seconds: float) -> None:
    assert retry_delay_s(attempt, retry_after, now_s=100.0, chance=1.0) == seconds


def test_waits_vary() -> None:
    assert retry_delay_s(1, "", now_s=0, chance=0.0) == 0.5


@pytest.mark.parametrize(
    ("url", "shown", "path"),
    [
        ("https://host", "https://host", "/"),
        ("http://host:81/a/b?c=d#e", "http://host:81", "/a/b?c=d"),
        ("https://[::1]:8/x", "https://[::1]:8", "/x"),
    ],
)
def test_only_the_server_of_an_address_is_shown(url: str, shown: str, path: str) -> None:
    address = Address.parse("url", url)
    assert (address.public_url, address.path) == (shown, path)


@pytest.mark.parametrize(
    "url",
    [
        "hush",
        "ftp://hush/",
        "https://",
        "https://u:hush@host/",
        "https://host:hush/",
        "https://h/hush hush",
        "https://h/hüsh",
    ],
)
def test_what_is_no_address_is_refused_without_showing_it(tmp_path: Path, url: str) -> None:
    with pytest.raises(Invalid, match="option url") as caught:
        Webhook(job_context(tmp_path, "webhook", {"url": url}))
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"headers.Penstock-Job": "x"}, "this header cannot be set"),
        ({"headers.Host": "x"}, "this header cannot be set"),
        ({"headers.a b": "x"}, "this header cannot be set"),
        ({"headers.X": "hush\r\nY: 1"}, "characters that headers cannot have"),
        ({"request_bytes": "1"}, "option request_bytes"),
        ({"format": "xml"}, "'json' or 'arrow'"),
        ({"timeout": "0s"}, "option timeout"),
    ],
)
def test_wrong_options_are_refused(tmp_path: Path, options: dict[str, str], why: str) -> None:
    with pytest.raises(Invalid, match=why) as caught:
        Webhook(job_context(tmp_path, "webhook", {"url": "https://host/", **options}))
    assert "hush" not in str(caught.value)


def test_every_type_has_one_form_in_json() -> None:
    source = SourceModel(alter.add_column(EVERY_TYPE, "direction", "vector(2)"))
    source.commit(
        {**EVERY_CELL, "direction": [0.5, -1.0]}, dict.fromkeys(EVERY_CELL) | {"id": 7, "direction": None}
    )
    ((inserts, deletes),) = source.retriever(0, source.ts).batches
    found, empty = [json.loads(line.as_py()) for line in JsonLines(["doc"]).encode(inserts, deletes)]
    assert found == {
        "op": "upsert",
        "commit_ts": str(source.ts),
        "row": {
            "id": "-5",
            "tiny": -1,
            "big": "18446744073709551615",
            "single": 0.5,
            "real_": 0.25,
            "price": "12.50",
            "wide": "1.5000000000",
            "day": "2026-02-28",
            "at": "2026-02-28 01:02:03.000004",
            "utc": "2026-02-28 01:02:03.000000Z",
            "span": "-01:00:00.000000",
            "year_": 2026,
            "bits": "5",
            "text_": "ü",
            "raw": "AP8=",
            "doc": {"a": 1},
            "choice": "b",
            "direction": [0.5, -1],
        },
    }
    assert {cell for name, cell in empty["row"].items() if name != "id"} == {None}


def test_changes_of_one_commit_have_their_deletes_first() -> None:
    inserts = pa.RecordBatch.from_pydict({"id": pa.array([1, 2], pa.int32()), "_commit_ts": [5, 6]})
    deletes = pa.RecordBatch.from_pydict({"id": pa.array([1, 3], pa.int32()), "_commit_ts": [5, 7]})
    lines = [json.loads(line.as_py()) for line in JsonLines([]).encode(inserts, deletes)]
    assert [(line["op"], line["commit_ts"]) for line in lines] == [
        ("delete", "5"),
        ("upsert", "5"),
        ("upsert", "6"),
        ("delete", "7"),
    ]
