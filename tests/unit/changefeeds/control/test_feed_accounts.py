"""Whose a changefeed is."""

import json
from pathlib import Path

import pytest

from penstock.changefeeds.model import ChangefeedInfo
from penstock.secret_keys import Keyring


@pytest.fixture
def keys(tmp_path: Path) -> Keyring:
    made = Keyring(tmp_path)
    made.claim(None)
    return made


def test_a_changefeed_keeps_its_account(keys: Keyring) -> None:
    info = ChangefeedInfo(id="feed", settings={}, start_ts=1, account="ann")
    assert ChangefeedInfo.from_json("feed", info.to_json(keys), keys) == info


def test_one_from_before_there_were_accounts_is_the_systems(keys: Keyring) -> None:
    tree = json.loads(ChangefeedInfo(id="feed", settings={}, start_ts=1).to_json(keys))
    del tree["account"]
    assert ChangefeedInfo.from_json("feed", json.dumps(tree).encode(), keys).account == "sys"


def test_settings_that_mean_nothing_any_more_are_dropped(keys: Keyring) -> None:
    info = ChangefeedInfo(id="feed", settings={"split_rows": 5, "spark_rows": 20_000}, start_ts=1)
    assert ChangefeedInfo.from_json("feed", info.to_json(keys), keys).settings == {"split_rows": 5}


def test_the_sink_of_now_and_of_before_is_stored_in_no_clear_text(keys: Keyring) -> None:
    sinks = [
        {"sink_uri": f"s3://{word}", "sink": {"a": word}, "storage_options": {}} for word in ("now", "before")
    ]
    info = ChangefeedInfo(
        id="feed", settings=sinks[0], start_ts=1, previous_settings={**sinks[1], "tables": ["a.b"]}
    )
    data = info.to_json(keys)
    assert b"s3:" not in data
    assert b"a.b" in data
    assert ChangefeedInfo.from_json("feed", data, keys) == info
