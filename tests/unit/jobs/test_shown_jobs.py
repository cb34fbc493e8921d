"""What is shown of jobs: every fact, and no secret."""

import json
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr

from penstock.cli import output
from penstock.clock import compose_ts
from penstock.consumers.options import Properties
from penstock.control import job_views, search
from penstock.errors import Invalid
from penstock.jobs.consumer import Consumer, DataRetriever
from penstock.jobs.freshness import Freshness, freshness_of
from penstock.jobs.job import ErrorCode, Job, JobId, JobKey, JobState, JobStatus
from penstock.jobs.spec import JobSpec

SECRET = "hunter2hunter2"
NOW = compose_ts(1_700_000_010_000)


class Quiet(Consumer):
    """Says nothing of its options."""

    def consume(self, data: DataRetriever) -> None:
        raise NotImplementedError


class OpenOptions(BaseModel):
    place: str
    dsn: SecretStr
    perhaps: SecretStr | None = None
    access_token: str = ""
    storage: Properties = {}


class Open(Quiet):
    """Says which of its options are secrets."""

    options_type = OpenOptions


def a_job(consumer: str, options: dict[str, str], **more: Any) -> Job:
    spec = {
        "trigger": more.pop("trigger", {}),
        "detail": {"consumer": {"consumer": consumer, "options": options}},
    }
    facts: dict[str, Any] = {
        "key": JobKey(0, 7, "copy", 3),
        "id": JobId("shop", "orders", "copy"),
        "account": "sys",
        "spec": JobSpec.parse(spec),
        "state": JobState.COMPLETED,
        "watermark": compose_ts(1_700_000_000_000),
        "status": JobStatus(),
        "create_at": 1_700_000_000_000,
    }
    return Job(**{**facts, **more})


def fresh(job: Job) -> Freshness:
    return freshness_of(job, None, now_ts=NOW, span_s=1800)


def shown(job: Job) -> dict[str, str]:
    tree = job_views.job_details(job, fresh(job), allowed_code=[__name__])
    assert SECRET not in json.dumps(tree)
    options: dict[str, str] = tree["spec"]["detail"]["consumer"]["options"]
    return options


def test_only_options_that_a_consumer_declares_as_no_secrets_are_shown() -> None:
    given = {
        "place": f"s3://me:{SECRET}@bucket/a?token={SECRET}",
        "dsn": SECRET,
        "perhaps": SECRET,
        "access_token": SECRET,
        "storage.secret": SECRET,
        "unknown": SECRET,
    }
    assert shown(a_job(f"{__name__}:Open", given)) == {
        **dict.fromkeys(given, "***"),
        "place": "s3://***@bucket/a?token=***",
    }
    assert shown(a_job(f"{__name__}:Open", {"place": "/data/x"})) == {"place": "/data/x"}
    assert shown(a_job(f"{__name__}:Quiet", {"place": SECRET})) == {"place": "***"}
    assert shown(a_job("not.here:Consumer", {"place": SECRET})) == {"place": "***"}, (
        "nor where it is not known"
    )


def test_a_job_shows_how_it_does() -> None:
    job = a_job(
        "kv",
        {},
        status=JobStatus(
            error_code=ErrorCode.TEMPORARY, error_msg="no route", failures=2, start_at=5, end_at=9
        ),
    )
    tree = job_views.job_details(job, fresh(job))
    assert (tree["state"], tree["lag_s"], tree["error_code"], tree["error"]) == (
        "completed",
        10.0,
        1,
        "no route",
    )
    assert (tree["failures"], tree["table_id"], tree["job_id"]) == (2, 7, 3)
    assert tree["iteration"]["started"] == "1970-01-01T00:00:00.005+00:00"
    job = a_job("kv", {}, watermark=0)
    new = job_views.job_summary(job, fresh(job))
    assert (new["watermark_time"], new["lag_s"]) == (None, None)


@pytest.mark.parametrize(
    ("state", "paused", "said"),
    [
        (JobState.COMPLETED, True, "paused"),
        (JobState.RUNNING, True, "running"),
        (JobState.ERROR, True, "error"),
        (JobState.CANCELED, False, "canceled"),
    ],
)
def test_a_pause_is_said_where_nothing_else_matters_more(state: JobState, paused: bool, said: str) -> None:
    job = a_job("kv", {}, state=state, trigger={"paused": paused})
    assert job_views.job_summary(job)["state"] == said


def test_a_terminal_shows_tables(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    output.print_jobs([job_views.job_summary(a_job("kv", {}))])
    output.print_jobs([])
    output.print_facts({"lag_s": None, "iteration": {"from_ts": 1, "ended": None}, "jobs": ["a", "[b]"]})
    output.print_search(
        {"rows": [{"id": 1, "text": "x" * 99}], "watermark_time": "now", "lag_s": 0.5, "complete": False}
    )
    output.print_search({"rows": [], "watermark_time": "now", "lag_s": 0.5, "complete": True})
    out = capsys.readouterr().out
    for said in ("shop.orders/copy", "none", "from ts 1", "a, [b]", "nothing found", "being rebuilt"):
        assert said in out


def test_a_vector_is_numbers_with_commas_or_a_file(tmp_path: Any) -> None:
    assert search.parse_vector("1,2.5,-3e2") == [1.0, 2.5, -300.0]
    assert search.parse_vector(" [0, 1] ") == [0.0, 1.0]
    (tmp_path / "v.json").write_text("[0.5, 2]\n")
    assert search.parse_vector(f"@{tmp_path}/v.json") == [0.5, 2.0]
    for wrong in ("", "[]", "a,b", "1;2", "[[1]]", f"@{tmp_path}/none", "1,null"):
        with pytest.raises(Invalid, match="vector"):
            search.parse_vector(wrong)
