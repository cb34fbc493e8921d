"""The numbers of data files: which is next in a folder that may have been left at any moment. Pure."""

from collections.abc import Callable

from penstock.changefeeds.sinks.storage.layout import parse_file_name
from penstock.errors import Corrupt


def number_in_index(content: bytes | None, path: str) -> int:
    """The number that an index names; 0 without an index. Raises Corrupt when it names no data file."""
    if content is None:
        return 0
    name = parse_file_name(content.decode("utf-8", "replace").removesuffix("\n"))
    if name is None:
        raise Corrupt(f"index {path} names no data file; look at it, and remove it to have it written again")
    return name.number


def last_number(indexed: int, exists: Callable[[int], bool]) -> int:
    """The last number in use, from the one in the index on: a crash may leave files that no index names.

    Numbers have no holes, so that a few looks are enough however many files there are.
    """
    low, step = indexed, 1
    while exists(low + step):
        low, step = low + step, step * 2
    high = low + step  # in use: low; free: high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if exists(middle) else (low, middle)
    return low
