"""What is encoded again when rows have moved meanwhile."""

from collections.abc import Iterator

import pytest

from penstock.changefeeds.engines.encode import retry_when_moved
from penstock.errors import Unavailable


class Moving:
    """Gives three chunks; the first tries end early."""

    def __init__(self, *ends: int) -> None:
        self._ends = list(ends)

    def __call__(self) -> Iterator[str]:
        end = self._ends.pop(0) if self._ends else 3
        yield from "abc"[:end]
        if end < 3:
            raise Unavailable("the rows have moved")


@pytest.mark.parametrize("given", [0, 1, 2])
def test_it_goes_on_after_what_was_given_already(given: int) -> None:
    assert "".join(retry_when_moved(Moving(given))) == "abc"


def test_who_is_away_for_longer_is_not_waited_for() -> None:
    chunks = retry_when_moved(Moving(1, 2))
    assert [next(chunks), next(chunks)] == ["a", "b"]
    with pytest.raises(Unavailable, match="the rows have moved"):
        next(chunks)
