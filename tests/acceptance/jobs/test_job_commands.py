"""`penstock job` as a person uses it: what commands answer, and what they say when they cannot."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.kv import Client
from penstock.tables import Catalog
from support.command import penstock
from support.warmstore import WarmStore

SECRET = "hunter2hunter2"
DSN = f"dsn=postgresql://me:{SECRET}@127.0.0.1/shop"
COPY = "shop.orders/copy"

Run = Callable[..., tuple[int, str, str]]
"""Gives exit code, standard output and standard error of a command."""
Answer = Callable[..., Any]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmStore]:
    with WarmStore.start(tmp_path_factory.mktemp("commands") / "store", stores=1) as running:
        with Client.connect([running.pd_addr]) as client:
            db = Catalog(client)
            db.create_database("shop")
            db.create_table(
                "shop.orders", [("id", "bigint primary key"), ("title", "varchar(99)"), ("total", "int")]
            )
        yield running


@pytest.fixture
def told(run: Run) -> Run:
    """Commands, none of which ever says the secret."""

    def told(*arguments: str) -> tuple[int, str, str]:
        code, out, err = run(*arguments)
        assert SECRET not in out + err, arguments
        return code, out, err

    return told


@pytest.fixture
def job(told: Run, store: WarmStore) -> Answer:
    """What commands of the cluster answer that work."""

    def answer(*arguments: str) -> Any:
        code, out, err = told("job", *arguments, "--pd", store.pd_addr)
        assert (code, err) == (0, ""), arguments
        return json.loads(out)

    return answer


def test_a_relative_place_is_kept_as_that_of_the_command(
    job: Answer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def place(shown: Any) -> str:
        return str(shown["spec"]["detail"]["consumer"]["options"]["uri"])

    made = job("register", "shop.orders/files", "--consumer", "parquet", "--option", "uri=data/orders")
    assert place(made) == str(tmp_path / "data" / "orders")
    made = job("update", "shop.orders/files", "--option", "uri=file://elsewhere")
    assert place(made) == (tmp_path / "elsewhere").as_uri()
    assert place(job("update", "shop.orders/files", "--priority", "1")) == (tmp_path / "elsewhere").as_uri()
    job("unregister", "shop.orders/files")


def test_a_job_from_its_registration_to_its_end(job: Answer, tmp_path: Path) -> None:
    made = job(
        "register", COPY, "--consumer", "postgres", "--option", DSN, "--option", "table=orders_copy",
        "--column", "title", "--priority", "3",
    )  # fmt: skip
    assert (made["job"], made["consumer"], made["trigger"]) == (COPY, "postgres", "default")
    assert (made["state"], made["watermark"], made["watermark_time"]) == ("completed", 0, None)
    assert (made["error_code"], made["error"], made["job_id"], made["account"]) == (0, "", 1, "sys")
    assert (made["lacks"], made["captured"]) == ("no runner", False)
    detail = made["spec"]["detail"]
    assert detail["consumer"]["options"] == {"dsn": "***", "table": "orders_copy"}
    assert (detail["consumer"]["columns"], detail["priority"]) == (["title"], 3)

    (listed,) = job("list")
    assert listed == {name: made[name] for name in listed}
    assert [each["job"] for each in job("list", "--state", "completed")] == [COPY]
    assert job("list", "--state", "error") == []

    status = job("status", COPY)
    assert status["spec"] == made["spec"]
    assert (status["watermark"], status["lacks"], status["coverage"]) == (0, "no runner", None)

    assert job("pause", COPY)["state"] == "paused"
    assert job("status", COPY)["lacks"] == "paused"
    assert job("pause", COPY)["state"] == "paused", "again changes nothing"
    assert job("resume", COPY)["state"] == "completed"

    changed = job("update", COPY, "--trigger", "periodic", "--interval", "1m30s", "--no-share")
    assert changed["spec"]["trigger"] == {
        "job_type": "periodic",
        "schedule": {"interval": "1m30s", "share": False},
        "paused": False,
    }
    assert changed["spec"]["detail"] == detail, "what was not given has stayed"
    spec = tmp_path / "spec.yaml"
    spec.write_text(yaml.safe_dump({"detail": {"consumer": {"options": {"nul": "replace"}}}}))
    changed = job("update", COPY, "--spec", str(spec), "--priority", "-1", "--interrupt")
    assert changed["spec"]["detail"]["consumer"]["options"] == {
        "dsn": "***",
        "table": "orders_copy",
        "nul": "replace",
    }
    assert changed["spec"]["detail"]["priority"] == -1

    hurried = job("update", COPY, "--trigger", "greedy")
    assert hurried["trigger"] == "greedy", "what is left of its interval does no harm"

    assert job("unregister", COPY) == {"job": COPY, "state": "unregistered"}
    assert job("list") == []
    again = job("register", COPY, "--consumer", "postgres", "--option", DSN)
    assert again["job_id"] == 2, "it is another one"
    assert job("unregister", COPY)["state"] == "unregistered"


def test_a_secret_comes_from_the_environment(job: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COPY_DSN", DSN.removeprefix("dsn="))
    made = job("register", "shop.orders/env", "--consumer", "postgres", "--option", "dsn=${COPY_DSN}")
    assert made["spec"]["detail"]["consumer"]["options"] == {"dsn": "***"}
    job("unregister", "shop.orders/env")


def test_usage_is_a_list_by_account(job: Answer) -> None:
    assert job("usage") == []


def test_what_cannot_be_done_is_said_in_one_line_and_shows_no_secret(
    told: Run, job: Answer, store: WarmStore, tmp_path: Path
) -> None:
    job("register", "shop.orders/there", "--consumer", "postgres", "--option", DSN)
    files = {
        "list": "- 1",
        "broken": "a: [",
        "unknown": "detail: {priorty: 1}",
        "secret": f"detail: {{consumer: {{options: {{dsn: {{a: {SECRET}}}}}}}}}",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    new = ["register", "shop.orders/new"]
    postgres = [*new, "--consumer", "postgres", "--option", DSN]
    cases: list[tuple[list[str], str]] = [
        (["status", "shop.orders/gone"], "there is no job shop.orders/gone; `penstock job list` shows"),
        (["pause", "shop.orders/gone"], "there is no job shop.orders/gone"),
        (["resume", "shop.orders/gone"], "there is no job shop.orders/gone"),
        (["unregister", "shop.orders/gone"], "there is no job shop.orders/gone"),
        (["update", "shop.orders/gone", "--priority", "1"], "there is no job shop.orders/gone"),
        (["verify", "shop.orders/gone"], "there is no job shop.orders/gone"),
        (["repair", "shop.orders/gone"], "there is no job shop.orders/gone"),
        (["status", "orders"], "'orders' names no job; write database.table/job"),
        (["register", "shop.orders/a b", "--consumer", "kv"], "'a b' is no name of a job"),
        (["update", "shop.orders/there"], "no change is given for job shop.orders/there; give an option"),
        (["update", "shop.orders/there", "--column", "none"], "selects the column 'none'"),
        (["update", "shop.orders/there", "--interval", "1s"], "is default, which has no interval"),
        (["register", "shop.orders/there", *postgres[2:]], "job shop.orders/there exists already"),
        (["register", "shop.none/new", *postgres[2:]], "none"),
        (["register", "penstock.iscp_log/new", *postgres[2:]], "jobs cannot follow penstock.iscp_log"),
        (new, "job shop.orders/new has no consumer"),
        ([*new, "--consumer", "mysql"], "there is no consumer 'mysql'; there are delta, fulltext"),
        ([*new, "--consumer", "nowhere:Sink"], "add nowhere to jobs.allowed_code"),
        ([*new, "--consumer", "json:loads"], "add json to jobs.allowed_code"),
        ([*new, "--consumer", "kv", "--trigger", "os:getcwd"], "add os to jobs.allowed_code"),
        ([*new, "--consumer", "postgres"], "consumer postgres needs the option dsn"),
        ([*postgres, "--option", "tabel=x"], "has no option tabel; did you mean table?"),
        ([*postgres, "--option", "nul=keep"], "option nul of consumer postgres"),
        ([*postgres, "--option", SECRET], "--option number 2 is not name=value"),
        ([*postgres, "--option", "dsn=x"], "--option dsn is given twice"),
        ([*postgres, "--option", "table=${fiel:/x}"], "${fiel:/x} names no provider of secrets; use"),
        ([*postgres, "--column", "none"], "which shop.orders does not have; choose from id, title, total"),
        ([*postgres, "--trigger", "sometimes"], "there is no trigger 'sometimes'"),
        ([*postgres, "--trigger", "no.module:here"], "add no.module to jobs.allowed_code"),
        ([*postgres, "--trigger", "periodic", "--interval", "soon"], "'soon' is not a duration"),
        ([*postgres, "--interval", "5s"], "is default, which has no interval"),
        ([*postgres, "--trigger", "greedy", "--share"], "cannot share"),
        ([*postgres, "--priority", "1000"], "priority is refused"),
        ([*postgres, "--span", "0s"], "span is refused"),
        ([*postgres, "--spec", str(tmp_path / "none")], "cannot be read"),
        ([*postgres, "--spec", str(tmp_path / "list")], "must be a mapping"),
        ([*postgres, "--spec", str(tmp_path / "broken")], "is not valid YAML"),
        ([*postgres, "--spec", str(tmp_path / "unknown")], "detail.priorty is refused"),
        ([*postgres, "--spec", str(tmp_path / "secret")], "detail.consumer.options.dsn is refused"),
        (["list", "--state", "asleep"], "there is no state 'asleep'; there are pending, running"),
        (["status", "shop.orders/there", "--wait-for", "soon"], "'soon' is not a timestamp"),
    ]

    for arguments, reason in cases:
        code, out, err = told("job", *arguments, "--pd", store.pd_addr)
        assert (code, out, err.startswith("penstock: "), err.count("\n")) == (2, "", True, 1), (
            arguments,
            err,
        )
        assert reason in err, arguments
    assert [each["job"] for each in job("list")] == ["shop.orders/there"], "nothing of them was done"
    nobody = told("job", "list", "--pd", "127.0.0.1:1")
    assert (nobody[0], "no placement driver answers" in nobody[2]) == (2, True)
    lost = told("job", "run", "--config", str(tmp_path / "none.yaml"))
    assert (lost[0], "cannot be read" in lost[2]) == (2, True)


def test_a_process_answers_and_refuses_in_the_same_way(store: WarmStore) -> None:
    listed = penstock("job", "list", "--pd", store.pd_addr)
    assert (listed.returncode, listed.stderr) == (0, "")
    assert isinstance(json.loads(listed.stdout), list)
    refused = penstock("job", "pause", "shop.orders/gone", "--pd", store.pd_addr)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert (
        refused.stderr
        == "penstock: there is no job shop.orders/gone; `penstock job list` shows those there are\n"
    )
