"""The `changefeeds:` section of the settings."""

import pytest

from penstock import settings
from penstock.errors import Invalid

URI = "s3://b/p?protocol=csv&secret-access-key=hunter2"


def feed(**more: object) -> dict[str, object]:
    return {"changefeeds": {"orders": {"sink_uri": URI, **more}}}


def test_a_changefeed_needs_a_sink_uri_only() -> None:
    [(name, known)] = settings.parse(feed()).changefeeds.items()
    assert name == "orders"
    assert known.sink_uri.get_secret_value() == URI
    assert (known.tables, known.start, known.target_ts, known.split_rows) == (("*.*",), "now", None, 0)
    assert settings.Settings().changefeeds == {}


def test_parameters_may_be_numbers_and_booleans_in_yaml() -> None:
    known = settings.parse(feed(sink={"file-size": 1024, "output-column-id": True})).changefeeds["orders"]
    assert known.sink == {"file-size": "1024", "output-column-id": "true"}


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"start": 0}, "timestamp of 1 or more"),
        ({"start": "then"}, "start"),
        ({"start": 9, "target_ts": 9}, "target_ts must be after start"),
        ({"split_rows": -1}, "split_rows"),
        ({"column_selectors": [{"tables": [], "columns": ["a"]}]}, "column_selectors.0.tables"),
        ({"row_filters": [{"tables": ["a.b"]}]}, "row_filters.0.where"),
        ({"sink": ["hunter2"]}, r"sink = \*\*\*"),
        ({"storage_options": {"a": ["hunter2"]}}, r"storage_options.a = \*\*\*"),
        ({"sink_uri": ["hunter2"]}, r"sink_uri = \*\*\*"),
        ({"sinks": 1}, "unknown key"),
        ({"spark_rows": 20_000}, "spark_rows' is of an earlier release; remove it"),
    ],
)
def test_a_wrong_value_is_refused_without_its_secrets(more: dict[str, object], says: str) -> None:
    with pytest.raises(Invalid, match=says) as caught:
        settings.parse(feed(**more))
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "a b", "-a", "a--b", "ä", "a" * 129])
def test_a_name_has_letters_digits_and_single_hyphens(name: str) -> None:
    with pytest.raises(Invalid, match="is not a valid name"):
        settings.parse({"changefeeds": {name: {"sink_uri": URI}}})
    assert settings.parse({"changefeeds": {"a-1-B": {"sink_uri": URI}}})
