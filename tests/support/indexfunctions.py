"""Functions of one's own that an index is told by name: a parser, and an embedding that counts."""

import numpy as np
import pyarrow as pa

__all__ = ["asked", "embedded", "shouted", "wrong"]

asked: list[str] = []
"""Every text that `embedded` was given in this process."""


def shouted(texts: pa.Array) -> pa.Array:
    """Parse texts into their upper-case words."""
    found = [
        None if text is None else [word for word in text.split() if word.isupper()]
        for text in texts.to_pylist()
    ]
    return pa.array(found, pa.list_(pa.string()))


def embedded(texts: pa.Array) -> pa.Array:
    """Return an embedding of two dimensions: how long a text is, and how many words it has."""
    asked.extend(texts.to_pylist())
    made = [[float(len(text)), float(len(text.split()))] for text in texts.to_pylist()]
    return pa.array(made, pa.list_(pa.float32()))


def wrong(texts: pa.Array) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """Return an embedding of three dimensions."""
    return np.ones((len(texts), 3), np.float32)
