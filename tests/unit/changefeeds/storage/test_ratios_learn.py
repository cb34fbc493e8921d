"""Sizes that are learnt from sizes before."""

import pytest

from penstock.changefeeds.sinks.storage import buffers as module
from penstock.changefeeds.sinks.storage.buffers import SizeEstimator


def test_before_anything_is_known_a_byte_is_a_byte() -> None:
    assert SizeEstimator(1000).ratio("1") == 1.0


def test_one_full_file_comes_close_to_what_it_showed() -> None:
    ratios = SizeEstimator(1000)
    ratios.learn("1", 1000, 300)
    assert ratios.ratio("1") == pytest.approx(0.3, abs=0.03)


def test_a_tiny_file_proves_little() -> None:
    ratios = SizeEstimator(100_000)
    ratios.learn("1", 10, 2000)
    assert ratios.ratio("1") < 1.5


def test_a_dispatcher_that_is_not_known_goes_by_all_others() -> None:
    ratios = SizeEstimator(1000)
    for table in range(5):
        ratios.learn(str(table), 1000, 500)
    assert ratios.ratio("99") == pytest.approx(0.5, abs=0.05)


def test_what_was_long_ago_is_forgotten() -> None:
    ratios = SizeEstimator(1000)
    for _ in range(20):
        ratios.learn("1", 1000, 1000)
    for _ in range(8):
        ratios.learn("1", 1000, 100)
    assert ratios.ratio("1") == pytest.approx(0.1, abs=0.02)


def test_of_nothing_comes_no_knowledge() -> None:
    ratios = SizeEstimator(1000)
    ratios.learn("1", 0, 500)
    assert ratios.ratio("1") == 1.0


def test_the_least_used_one_is_forgotten_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_DISPATCHERS_MAX", 2)
    ratios = SizeEstimator(1000)
    ratios.learn("1", 100_000, 10_000)
    ratios.learn("2", 1000, 1000)
    ratios.learn("1", 1000, 100)
    ratios.learn("3", 100_000, 100_000)
    ratios.learn("4", 100_000, 100_000)
    assert ratios.ratio("1") == pytest.approx(1.0, abs=0.1)  # as all others


def test_one_that_is_gone_is_forgotten() -> None:
    ratios = SizeEstimator(1000)
    ratios.learn("1", 1000, 100)
    ratios.learn("2", 100_000, 100_000)
    ratios.forget("1")
    ratios.forget("3")
    assert ratios.ratio("1") == pytest.approx(1.0, abs=0.1)
