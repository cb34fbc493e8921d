"""One side of changes, and some of its columns, is what both sides with all columns say."""

from itertools import chain, combinations

import pytest

from penstock.eventstore.paths import Side
from penstock.eventstore.sides import HANDLE, OLD, UPDATE, decode_side, decode_sides
from penstock.tables.decoding.decoder import TidbRowDecoder
from support.events import a_table, change
from support.rawbatches import raw

TABLE = a_table()
RAW = raw(
    [
        change(TABLE, 10, {"id": 1, "name": "new"}, None),
        change(TABLE, 12, {"id": 2, "name": "after"}, {"id": 2, "name": "before"}),
        change(TABLE, 14, None, {"id": 3, "name": "gone"}),
    ]
)
NAMES = ("id", "name", HANDLE, UPDATE, OLD)


@pytest.mark.parametrize("side", ["data", "tombstone"])
@pytest.mark.parametrize(
    "names", list(chain.from_iterable(combinations(NAMES, count) for count in range(1, len(NAMES) + 1)))
)
def test_a_side_with_some_columns_is_part_of_both_sides_with_all(side: Side, names: tuple[str, ...]) -> None:
    decoder = TidbRowDecoder()
    both = decode_sides(RAW, TABLE, decoder).of(side)
    wanted = [name for name in both.schema.names if name in names]
    assert decode_side(RAW, TABLE, decoder, side, set(names)).equals(both.select(wanted))


def test_columns_that_nobody_asked_for_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[str] = []
    decoder = TidbRowDecoder()
    decode = decoder.decode_new

    def noted(raw_rows, table, columns):
        decoded.extend(column.name for column in columns)
        return decode(raw_rows, table, columns)

    monkeypatch.setattr(decoder, "decode_new", noted)
    assert decode_side(RAW, TABLE, decoder, "data", {"id", HANDLE}).num_rows == 2
    assert decoded == ["id"]
