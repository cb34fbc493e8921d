"""`penstock changefeed` as a person uses it: what commands answer, and what they say when they cannot."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.command import penstock
from support.spark import stop_session
from support.warmstore import WarmStore

SECRET = "hunter2hunter2"
LAKE = f"s3://lake/orders?protocol=canal-json&access-key=me&secret-access-key={SECRET}&region=eu-central-1"
SHOWN = "s3://lake/orders?protocol=canal-json&access-key=***&secret-access-key=***&region=eu-central-1"
FUTURE = str(1 << 62)

Run = Callable[..., tuple[int, str, str]]
"""Gives exit code, standard output and standard error of a command."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmStore]:
    with WarmStore.start(tmp_path_factory.mktemp("commands") / "store", stores=1) as running:
        yield running


@pytest.fixture
def told(run: Run) -> Run:
    """What a command of changefeeds says; never a secret."""

    def told(*arguments: str) -> tuple[int, str, str]:
        code, out, err = run("changefeed", *arguments)
        assert SECRET not in out + err, arguments
        return code, out, err

    return told


@pytest.fixture
def changefeed(told: Run, store: WarmStore) -> Callable[..., Any]:
    """What commands of the cluster answer that work."""

    def answer(*arguments: str) -> Any:
        code, out, err = told(*arguments, "--pd", store.pd_addr)
        assert (code, err) == (0, ""), arguments
        return json.loads(out)

    return answer


def test_a_changefeed_from_its_creation_to_its_end(changefeed: Callable[..., Any], tmp_path: Path) -> None:
    made = changefeed("create", "orders", "--sink-uri", LAKE, "--table", "shop.*", "--start", "snapshot")
    assert (made["id"], made["state"], made["error"], made["snapshot"]) == ("orders", "normal", "", True)
    assert (made["settings"]["sink_uri"], made["settings"]["tables"]) == (SHOWN, ["shop.*"])
    assert made["checkpoint_ts"] == made["start_ts"] - 1, "nothing of a snapshot is there yet"
    assert made["lag_s"] < 60

    (listed,) = changefeed("list")
    times = {"checkpoint_ts", "checkpoint_time", "lag_s"}
    assert listed.keys() == {"id", "account", "state", "error", "warning"} | times
    assert changefeed("query", "orders")["settings"] == made["settings"]

    assert changefeed("pause", "orders")["state"] == "stopped"
    assert changefeed("pause", "orders")["state"] == "stopped", "again changes nothing"
    config = tmp_path / "penstock.yaml"
    section = {
        "sink_uri": "s3://lake/other",
        "sink": {"protocol": "csv"},
        "storage_options": {"secret_access_key": SECRET},
    }
    config.write_text(yaml.safe_dump({"changefeeds": {"orders": section}}))
    updated = changefeed("update", "orders", "--config", str(config))
    assert updated["settings"]["sink_uri"] == "s3://lake/other"
    assert (updated["settings"]["sink"], updated["settings"]["storage_options"]) == ("***", "***")
    assert (updated["state"], updated["start_ts"], updated["snapshot"]) == ("stopped", made["start_ts"], True)

    assert changefeed("resume", "orders")["state"] == "normal"
    assert changefeed("query", "orders")["checkpoint_ts"] == made["checkpoint_ts"]
    assert changefeed("remove", "orders")["id"] == "orders"
    assert changefeed("list") == []


def test_what_cannot_be_done_is_said_in_one_line_and_shows_no_secret(
    told: Run, changefeed: Callable[..., Any], store: WarmStore, tmp_path: Path
) -> None:
    stop_session()  # one of another test would be used, whatever master the settings name
    changefeed("create", "there", "--sink-uri", LAKE)
    config = tmp_path / "penstock.yaml"
    sections = {
        "broken": {"sink_uri": f"s3://lake?secret-access-key={SECRET}"},
        "filtered": {
            "sink_uri": "s3://pond?protocol=csv",
            "row_filters": [{"tables": ["shop.*"], "where": "id >"}],
        },
    }
    config.write_text(yaml.safe_dump({"changefeeds": sections}))
    far = tmp_path / "far.yaml"
    far.write_text(yaml.safe_dump({"spark": {"master": "spark://127.0.0.1:1", "insecure": True}}))
    exposed = tmp_path / "exposed.yaml"
    exposed.write_text(yaml.safe_dump({"spark": {"master": "spark://192.0.2.1:7077"}}))
    pd = ("--pd", store.pd_addr)
    cases: list[tuple[list[str], str]] = [
        (["query", "gone", *pd], "there is no changefeed gone"),
        (["pause", "gone", *pd], "there is no changefeed gone"),
        (["resume", "gone", *pd], "there is no changefeed gone"),
        (["remove", "gone", *pd], "there is no changefeed gone"),
        (["update", "gone", "--table", "a.b", *pd], "there is no changefeed gone"),
        (["update", "there", *pd], "no change is given for changefeed there; give an option"),
        (["update", "there", "--table", "a.b", *pd], "changefeed there is normal; pause it"),
        (["create", "there", "--sink-uri", LAKE, *pd], "there is a changefeed there already"),
        (["create", "a/b", "--sink-uri", LAKE, *pd], "cannot name a changefeed"),
        (["create", "new", *pd], "changefeed new has no sink; give --sink-uri"),
        (["create", "new", "--sink-uri", f"ftp://me:{SECRET}@x/", *pd], "scheme 'ftp' is unknown"),
        (["create", "new", "--sink-uri", f"s3://me:{SECRET}@lake/?protocol=csv", *pd], "before an '@'"),
        (["create", "new", "--sink-uri", f"s3://lake?secret-access-key={SECRET}", *pd], "needs a protocol"),
        (["create", "new", "--sink-uri", f"{LAKE}&protocol=avro", *pd], "protocol is given twice"),
        (["create", "new", "--sink-uri", "s3://lake?protocol=avro", *pd], "protocol = 'avro' is refused"),
        (["create", "new", "--sink-uri", f"{LAKE}&file-sise=1", *pd], "did you mean file-size"),
        (["create", "new", "--sink-uri", f"{LAKE}&flush-interval=soon", *pd], "flush-interval"),
        (["create", "new", "--sink-uri", LAKE, "--table", "shop", *pd], "shop"),
        (["create", "new", "--sink-uri", LAKE, "--start", FUTURE, *pd], "which is in the future"),
        (["create", "new", "--sink-uri", LAKE, "--start", "soon", *pd], "start"),
        (["create", "new", "--sink-uri", LAKE, "--target-ts", "5", *pd], "not after its start"),
        (["create", "broken", "--config", str(config), *pd], "needs a protocol"),
        (["create", "new", "--sink-uri", LAKE, *pd], "changefeed there writes to s3://lake/orders/; give"),
        (["create", "new", "--sink-uri", "s3://lake?protocol=csv", *pd], "a place of its own"),
        (["create", "new", "--sink-uri", "s3://lake/orders/eu?protocol=csv", *pd], "a place of its own"),
        (
            ["create", "filtered", "--config", str(config), *pd],
            "row filter of some tables is no SQL predicate",
        ),
        (["list", "--pd", "127.0.0.1:1"], "no placement driver answers"),
        (["run", "--config", str(tmp_path / "none.yaml")], "cannot be read"),
        (["run", "--config", str(far)], "Spark master spark://127.0.0.1:1 does not answer"),
        (["run", "--config", str(exposed)], "has no secret, and whoever reaches it can run code"),
    ]

    for arguments, reason in cases:
        code, out, err = told(*arguments)
        assert (code, out, err.startswith("penstock: "), err.count("\n")) == (2, "", True, 1), (
            arguments,
            err,
        )
        assert reason in err, arguments
    assert [each["id"] for each in changefeed("list")] == ["there"], "nothing of them was done"


def test_a_process_answers_and_refuses_in_the_same_way(store: WarmStore) -> None:
    listed = penstock("changefeed", "list", "--pd", store.pd_addr)
    assert (listed.returncode, listed.stderr) == (0, "")
    assert isinstance(json.loads(listed.stdout), list)
    refused = penstock("changefeed", "query", "gone", "--pd", store.pd_addr)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert (
        refused.stderr
        == "penstock: there is no changefeed gone; `penstock changefeed list` shows those there are\n"
    )
