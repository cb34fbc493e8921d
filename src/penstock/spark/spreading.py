"""Dividing pieces of work among tasks, so that no task has much more than the others. Pure."""

import heapq
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def spread(pieces: Iterable[T], tasks: int, *, weight: Callable[[T], int]) -> tuple[tuple[T, ...], ...]:
    """At most so many groups, none of them empty; each keeps the order of its pieces.

    The heaviest pieces are placed first, each where there is least.
    """
    listed = list(pieces)
    heap = [(0, group) for group in range(min(tasks, len(listed)))]
    group_of = [0] * len(listed)
    for place in sorted(range(len(listed)), key=lambda each: -weight(listed[each])):
        load, group = heap[0]
        heapq.heapreplace(heap, (load + max(1, weight(listed[place])), group))
        group_of[place] = group
    groups: list[list[T]] = [[] for _ in heap]
    for place, piece in enumerate(listed):
        groups[group_of[place]].append(piece)
    return tuple(tuple(group) for group in groups)
