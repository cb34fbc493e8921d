"""Whose a changefeed is."""

import json

from penstock.changefeeds.model import FeedInfo


def test_a_changefeed_keeps_its_account() -> None:
    info = FeedInfo(id="feed", settings={}, start_ts=1, account="ann")
    assert FeedInfo.from_json("feed", info.to_json()) == info


def test_one_from_before_there_were_accounts_is_the_systems() -> None:
    tree = json.loads(FeedInfo(id="feed", settings={}, start_ts=1).to_json())
    del tree["account"]
    assert FeedInfo.from_json("feed", json.dumps(tree).encode()).account == "sys"
