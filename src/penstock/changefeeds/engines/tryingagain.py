"""Reading that is begun anew when rows have moved meanwhile."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TypeVar

from penstock.errors import Unavailable

T = TypeVar("T")


def tried_again(work: Callable[[], Iterator[T]]) -> Iterator[T]:
    """What `work` gives, which is the same each time; once it is begun anew when something is not available.

    A capture that gives a table up has put its rows into objects; who looked there before asks it in vain.
    """
    given = 0
    try:
        for each in work():
            yield each
            given += 1
    except Unavailable:
        yield from islice(work(), given, None)
