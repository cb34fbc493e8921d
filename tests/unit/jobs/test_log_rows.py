"""Jobs as rows of the log, and back."""

import logging
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.clock import TS_MAX
from penstock.jobs.job import Job, JobId, JobKey, JobState, JobStatus
from penstock.jobs.log.job_rows import COLUMNS, PRIMARY_KEY, JobRows
from penstock.jobs.spec import JobSpec
from penstock.secret_keys import Keyring, MissingKey
from penstock.tables.codec import rows as rowcodec
from penstock.tables.define import define_table
from penstock.tables.keys import prefix_end
from penstock.tables.values import to_cell

TABLE = replace(define_table("iscp_log", COLUMNS, primary_key=PRIMARY_KEY), id=77)
KEYS = Keyring(Path(tempfile.mkdtemp()))
KEYS.claim(None)
ROWS = JobRows(TABLE, KEYS)
SECRET = "pa55word"
SPEC = JobSpec.parse(
    {
        "trigger": {"job_type": "periodic", "schedule": {"interval": "10s", "share": True}, "paused": False},
        "detail": {
            "priority": -3,
            "consumer": {
                "consumer": "postgres",
                "columns": ["a", "b"],
                "options": {"dsn": SECRET, "ü": "日本"},
            },
            "rows_max": 10,
            "bytes_max": 20,
            "span": "30m",
        },
    }
)


def job(name: str = "search", *, job_id: int = 1, table_id: int = 5, account_id: int = 0) -> Job:
    return Job(
        key=JobKey(account_id, table_id, name, job_id),
        id=JobId("shöp", "orders", name),
        account="acme",
        spec=SPEC,
        state=JobState.ERROR,
        watermark=450_000_000_000_000_001,
        status=JobStatus(
            lsn=3, runner=2, from_ts=1, to_ts=1 << 62, start_at=4, end_at=5, error_code=10_001,
            error_msg="ä\n", failures=2, committed_ts=7, resync_ts=8, begun_ts=9,
        ),
        create_at=1_794_808_935_507,
        drop_at=1_794_808_935_999,
    )  # fmt: skip


@pytest.mark.parametrize(
    "each",
    [
        job(),
        replace(job(), drop_at=None, spec=JobSpec(), status=JobStatus(), watermark=0),
        replace(job(), watermark=TS_MAX, state=JobState.PENDING),
        job("a" * 128, job_id=TS_MAX, table_id=TS_MAX, account_id=(1 << 32) - 1),
    ],
)
def test_a_job_comes_back_as_it_was_written(each: Job) -> None:
    assert list(ROWS.jobs([(ROWS.key(each.key), ROWS.value(each))])) == [each]


def test_a_prefix_has_the_jobs_of_one_name_on_one_table_and_no_others() -> None:
    same = [job(job_id=number) for number in (1, 2, 10, 300)]
    others = [job("searc"), job("search2"), job("search.2"), job(table_id=6), job(account_id=1)]
    prefix = ROWS.prefix(0, 5, "search")
    inside = [each for each in same + others if prefix <= ROWS.key(each.key) < prefix_end(prefix)]
    assert inside == same
    assert sorted(same, key=lambda each: ROWS.key(each.key)) == same, "in the order of their ids"
    assert all(ROWS.range[0] <= ROWS.key(each.key) < ROWS.range[1] for each in same + others)


def test_what_a_newer_version_wrote_of_a_status_is_left_alone() -> None:
    cells = rowcodec.decode(ROWS.value(job())).cells
    column = ROWS.table.column("job_status")
    cells[column.id] = to_cell(column.type, {"lsn": 9, "colour": "red"})
    (read,) = ROWS.jobs([(ROWS.key(job().key), rowcodec.encode(cells))])
    assert read.status == JobStatus(lsn=9)


DAMAGES: dict[str, tuple[str, object]] = {
    "a spec that is none": ("job_spec", {"detail": {"colour": SECRET}, "source": {}}),
    "a spec that is a list": ("job_spec", [SECRET]),
    "a spec without its source": ("job_spec", {}),
    "a source that is a number": ("job_spec", {"source": 5}),
    "a state that there is not": ("job_state", 77),
    "a watermark that is no number": ("watermark", SECRET),
    "a watermark that is negative": ("watermark", "-1"),
    "a watermark beyond all timestamps": ("watermark", str(TS_MAX + 1)),
    "a status that is a list": ("job_status", [1]),
    "a status with a wrong field": ("job_status", {"lsn": SECRET}),
    "a status with a truth for a number": ("job_status", {"lsn": True}),
    "no time of creation": ("create_at", None),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_row_is_logged_without_its_values_and_does_not_block_the_others(
    damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    name, value = DAMAGES[damage]
    column = ROWS.table.column(name)
    cells = rowcodec.decode(ROWS.value(job())).cells
    cells[column.id] = to_cell(column.type, value)
    bad = (ROWS.key(job().key), rowcodec.encode(cells))
    good = [(ROWS.key(each.key), ROWS.value(each)) for each in (job("a"), job("z"))]
    with caplog.at_level(logging.ERROR):
        assert list(ROWS.jobs([good[0], bad, good[1]])) == [job("a"), job("z")]
    assert dict(ROWS.read([bad])) == {job().key: None}
    (record, *_) = caplog.records
    assert record.__dict__["job"] == "0/5/search/1"
    assert SECRET not in str(record.__dict__)


@pytest.mark.parametrize("value", [b"", b"\x80", b"\x80\x00\xff\xff", b"nothing of the kind"])
def test_a_row_that_is_cut_short_is_damaged(value: bytes) -> None:
    assert dict(ROWS.read([(ROWS.key(job().key), value)])) == {job().key: None}


def test_a_key_that_is_none_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    keys = [ROWS.range[0] + rest for rest in (b"", b"\x80\0\0\0\0\0\0\1", b"\x04\0", b"\x03" + bytes(8))]
    assert list(ROWS.read([(key, b"") for key in [*keys, b"elsewhere"]])) == []
    assert len(caplog.records) == 5


def test_a_job_does_not_show_the_values_of_its_options() -> None:
    assert SECRET not in repr(job())
    assert SECRET not in str(job().spec)


def in_clear(options: dict[str, str]) -> tuple[bytes, bytes]:
    """Return the row of a job as earlier releases wrote it."""
    cells = rowcodec.decode(ROWS.value(job())).cells
    column = ROWS.table.column("job_spec")
    source = {"database": "shöp", "table": "orders", "account": "acme"}
    tree = {"detail": {"consumer": {"consumer": "webhook", "options": options}}, "source": source}
    cells[column.id] = to_cell(column.type, tree)
    return ROWS.key(job().key), rowcodec.encode(cells)


def test_a_row_shows_nothing_of_the_options_and_no_two_rows_are_the_same() -> None:
    value = ROWS.value(job())
    assert SECRET.encode() not in value
    assert b"dsn" not in value
    assert value != ROWS.value(job())
    assert ROWS.is_sealed(ROWS.key(job().key), value)


def test_a_row_of_an_earlier_release_is_read_and_its_references_are_texts() -> None:
    key, value = in_clear({"url": "http://x", "headers.X": "${HOME}"})
    (read,) = ROWS.jobs([(key, value)])
    assert read.spec.detail.consumer.options == {"url": "http://x", "headers.X": "$${HOME}"}
    assert not ROWS.is_sealed(key, value)
    assert ROWS.is_sealed(key, ROWS.value(read))


def test_a_row_without_options_needs_no_key(tmp_path: Path) -> None:
    rows = JobRows(TABLE, Keyring(tmp_path / "none"))
    plain = replace(job(), spec=JobSpec())
    assert list(rows.jobs([(rows.key(plain.key), rows.value(plain))])) == [plain]
    with pytest.raises(MissingKey, match="has no key to seal secrets with; copy the key file"):
        rows.value(job())


def test_a_row_whose_key_is_not_here_is_no_damaged_row(tmp_path: Path) -> None:
    rows = JobRows(TABLE, Keyring(tmp_path / "none"))
    with pytest.raises(
        MissingKey, match=r"^secrets are sealed with key [0-9a-f]{12}, which .* does not have"
    ):
        list(rows.jobs([(ROWS.key(job().key), ROWS.value(job()))]))


def test_a_sealed_text_that_is_damaged_costs_its_own_row(caplog: pytest.LogCaptureFixture) -> None:
    cells = rowcodec.decode(ROWS.value(job())).cells
    column = ROWS.table.column("job_spec")
    for sealed in (f"{KEYS.ids[0]}:gAAAA", "no colon", 5, KEYS.seal({"a": "b"})[:-4] + "AAAA"):
        tree = {"detail": {"consumer": {"consumer": "x"}}, "sealed": sealed, "source": {}}
        cells[column.id] = to_cell(column.type, tree)
        assert dict(ROWS.read([(ROWS.key(job().key), rowcodec.encode(cells))])) == {job().key: None}
    assert "gAAAA" not in caplog.text


def test_a_row_that_an_older_key_sealed_is_read_and_is_to_be_sealed_again(tmp_path: Path) -> None:
    keys = Keyring(tmp_path)
    keys.claim(None)
    rows = JobRows(TABLE, keys)
    place, value = rows.key(job().key), rows.value(job())
    keys.rotate()
    assert list(rows.jobs([(place, value)])) == [job()]
    assert not rows.is_sealed(place, value)
    assert rows.is_sealed(place, rows.value(job()))
