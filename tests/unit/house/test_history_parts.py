"""What tests compare of a record of TiDB follows from the record: it may have any number of points."""

import pytest

from support.tidb_history import Part, PointTable, part_behind


@pytest.mark.parametrize("points", range(1, 12))
@pytest.mark.parametrize("share", [0.0, 1 / 3, 0.5, 2 / 3])
def test_a_part_begins_at_a_point_and_reaches_the_end(points: int, share: float) -> None:
    part = part_behind(points, share)
    assert 1 <= part.start <= points
    assert part.first == part.start - 1, "the point that it begins at is not compared"
    assert part.last == points


def test_every_point_is_compared_of_what_begins_with_the_first() -> None:
    assert part_behind(1, 0.0) == part_behind(1, 2 / 3) == Part(1, 0, 1)
    assert part_behind(9, 0.0) == Part(1, 0, 9)


def test_texts_of_a_definition_say_nothing_of_the_column() -> None:
    lines = [
        "CREATE TABLE `t` (",
        "  `a` int(11) DEFAULT NULL COMMENT 'GENERATED ALWAYS AS it''s VIRTUAL \\' NOT NULL\x85',",
        "  `v` int(11) GENERATED ALWAYS AS (`a` + 1) VIRTUAL,",
        "  `s` date GENERATED ALWAYS AS ('2024-01-01') STORED NOT NULL",
        ") ENGINE=InnoDB",
    ]
    table = PointTable("d.t", ("a", "v", "s"), ("int", "int", "date"), "\n".join(lines), ())
    assert table.virtual_columns == {"v"}
    assert table.not_null_columns == {"s"}
