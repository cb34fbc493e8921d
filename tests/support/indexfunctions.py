"""Functions of one's own that an index is told by name: a parser, and an embedding that counts."""

import numpy as np
import pyarrow as pa

__all__ = ["asked", "embedded", "shouted", "wrong"]

asked: list[str] = []
"""Every text that `embedded` was given in this process."""


def shouted(texts: pa.Array) -> pa.Array:
    """A parser: only words that are shouted."""
    found = [
        None if each is None else [word for word in each.split() if word.isupper()]
        for each in texts.to_pylist()
    ]
    return pa.array(found, pa.list_(pa.string()))


def embedded(texts: pa.Array) -> pa.Array:
    """An embedding of two dimensions: how long a text is, and how many words it has."""
    asked.extend(texts.to_pylist())
    made = [[float(len(each)), float(len(each.split()))] for each in texts.to_pylist()]
    return pa.array(made, pa.list_(pa.float32()))


def wrong(texts: pa.Array) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """An embedding of three dimensions."""
    return np.ones((len(texts), 3), np.float32)
