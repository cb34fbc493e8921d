"""How large something becomes, learnt per table from what it became before. Pure."""

from collections import OrderedDict

_TABLES_MAX = 10_000  # the least recently used are forgotten first


class Ratios:
    """Bytes out per byte in, per table: a mean that is weighted by bytes and forgets.

    `window_bytes` of input halve the weight of everything before. A table that is not known yet goes by what
    all tables together show, and one that nobody knows by `first`.
    """

    def __init__(self, window_bytes: int, *, first: float = 1.0) -> None:
        self._window = window_bytes
        self._first = first
        self._all = _Mean(window_bytes, first)
        self._tables: OrderedDict[int, _Mean] = OrderedDict()

    def of(self, table_id: int) -> float:
        """Expected bytes out of one byte in."""
        known = self._tables.get(table_id)
        return (known or self._all).ratio

    def learn(self, table_id: int, bytes_in: int, bytes_out: int) -> None:
        """One more that is known now; of nothing comes no knowledge."""
        if bytes_in <= 0:
            return
        mean = self._tables.pop(table_id, None) or _Mean(self._window, self._all.ratio)
        mean.add(bytes_in, bytes_out)
        self._all.add(bytes_in, bytes_out)
        self._tables[table_id] = mean
        if len(self._tables) > _TABLES_MAX:
            self._tables.popitem(last=False)


class _Mean:
    """Begins at `first` with the weight of a sixteenth of the window, so that a tiny file proves little."""

    __slots__ = ("_in", "_out", "_window")

    def __init__(self, window: int, first: float) -> None:
        self._window = window
        self._in = max(window / 16, 1.0)
        self._out = self._in * first

    @property
    def ratio(self) -> float:
        return self._out / self._in

    def add(self, bytes_in: int, bytes_out: int) -> None:
        kept = 0.5 ** (bytes_in / self._window)
        self._in = self._in * kept + bytes_in
        self._out = self._out * kept + bytes_out
