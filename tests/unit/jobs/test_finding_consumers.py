"""Finding consumers by name."""

from importlib.metadata import EntryPoint, EntryPoints

import pytest

from penstock.errors import Invalid
from penstock.jobs import consumer
from penstock.jobs.consumer import Consumer, DataRetriever, consumer_names, find_consumer


class Printing(Consumer):
    def consume(self, data: DataRetriever) -> None:
        raise NotImplementedError

    class Inner(Consumer):
        def consume(self, data: DataRetriever) -> None:
            raise NotImplementedError


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        __import__("sys").modules, "mine", __import__("types").SimpleNamespace(Printing=Printing, n=1)
    )


def test_a_class_is_found_by_its_module() -> None:
    assert find_consumer("mine:Printing", ["mine"]) is Printing
    assert find_consumer("mine:Printing.Inner", ["mine"]) is Printing.Inner


@pytest.mark.parametrize("name", consumer_names())
def test_every_short_name_is_a_consumer(name: str) -> None:
    assert issubclass(find_consumer(name), Consumer)


def test_a_package_offers_one_by_an_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    offered = EntryPoints([EntryPoint("shouting", "mine:Printing", consumer.GROUP)])
    monkeypatch.setattr(consumer, "entry_points", offered.select)
    assert find_consumer("shouting", ["mine"]) is Printing
    assert "shouting" in consumer_names()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("deltta", "there are delta, fulltext"),
        ("", "there are delta"),
        ("missing.module:Class", "cannot be loaded"),
        ("mine:Missing", "cannot be loaded"),
        ("mine:n", "no consumer"),
        ("json:JSONDecoder", "no consumer"),
    ],
)
def test_what_is_no_consumer_is_refused(name: str, said: str) -> None:
    with pytest.raises(Invalid, match=said):
        find_consumer(name, ["mine", "missing", "json"])
