"""Whose a changefeed is."""

import json

from penstock.changefeeds.model import ChangefeedInfo


def test_a_changefeed_keeps_its_account() -> None:
    info = ChangefeedInfo(id="feed", settings={}, start_ts=1, account="ann")
    assert ChangefeedInfo.from_json("feed", info.to_json()) == info


def test_one_from_before_there_were_accounts_is_the_systems() -> None:
    tree = json.loads(ChangefeedInfo(id="feed", settings={}, start_ts=1).to_json())
    del tree["account"]
    assert ChangefeedInfo.from_json("feed", json.dumps(tree).encode()).account == "sys"
