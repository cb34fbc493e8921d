"""How large something becomes, learnt per dispatcher from what it became before. Pure."""

from collections import OrderedDict

_DISPATCHERS_MAX = 10_000  # the least recently used are forgotten first


class SizeEstimator:
    """Bytes out per byte in, per dispatcher: a mean that is weighted by bytes and forgets.

    `window_bytes` of input halve the weight of everything before. A dispatcher that is not known yet goes by
    what all together show, and the first one by `first`.
    """

    def __init__(self, window_bytes: int, *, first: float = 1.0) -> None:
        self._window = window_bytes
        self._first = first
        self._all = _Mean(window_bytes, first)
        self._dispatchers: OrderedDict[str, _Mean] = OrderedDict()

    def of(self, dispatcher_id: str) -> float:
        """Expected bytes out of one byte in."""
        known = self._dispatchers.get(dispatcher_id)
        return (known or self._all).ratio

    def learn(self, dispatcher_id: str, bytes_in: int, bytes_out: int) -> None:
        """One more that is known now; of nothing comes no knowledge."""
        if bytes_in <= 0:
            return
        mean = self._dispatchers.pop(dispatcher_id, None) or _Mean(self._window, self._all.ratio)
        mean.add(bytes_in, bytes_out)
        self._all.add(bytes_in, bytes_out)
        self._dispatchers[dispatcher_id] = mean
        if len(self._dispatchers) > _DISPATCHERS_MAX:
            self._dispatchers.popitem(last=False)

    def forget(self, dispatcher_id: str) -> None:
        """The dispatcher is gone."""
        self._dispatchers.pop(dispatcher_id, None)


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
