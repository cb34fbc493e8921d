"""Routes changes to the subscriptions of their regions."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat

from penstock.store.bounds import KeyBounds
from penstock.store.cdc.subscription import RegionSubscription
from penstock.store.observe import Change
from penstock.store.region import Region

__all__ = ["Delegate", "Delegates", "OldValues"]

OldValues = Callable[[Sequence[Change]], Sequence[bytes]]


class Delegate:
    """The subscriptions of one region, in one version of its range."""

    __slots__ = ("bounds", "region", "subscriptions")

    def __init__(self, region: Region) -> None:
        self.region = region
        self.bounds: KeyBounds = region.bounds()
        self.subscriptions: list[RegionSubscription] = []

    @property
    def holds_keys(self) -> bool:
        """Whether any transactional key can lie in the region; a split of raw data may leave none."""
        return not self.bounds.end or self.bounds.start < self.bounds.end

    def publish(self, changes: Sequence[Change], old_values: OldValues) -> int:
        """Deliver changes of this region to every subscription; return how many rows were sent."""
        with_old: list[tuple[Change, bytes]] | None = None
        without_old = None
        count = 0
        for subscription in self.subscriptions:
            if subscription.old_values:
                with_old = with_old or list(zip(changes, old_values(changes), strict=True))
                count += subscription.deliver(with_old)
            else:
                without_old = without_old or list(zip(changes, repeat(b"")))
                count += subscription.deliver(without_old)
        return count


class Delegates:
    """Every region that has subscriptions, by id and by place.

    Invariant: the ranges do not overlap. A delegate whose region changes its range is taken out in
    the step in which the change becomes visible, before anybody can subscribe to what replaces it.
    """

    def __init__(self) -> None:
        self._by_id: dict[int, Delegate] = {}
        self._ordered: list[Delegate] = []
        self._starts: list[bytes] = []

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, region_id: int) -> Delegate | None:
        return self._by_id.get(region_id)

    def add(self, region: Region, subscription: RegionSubscription) -> None:
        """Deliver the changes of a region to a subscription from now on."""
        delegate = self._by_id.get(region.id)
        if delegate is None:
            delegate = self._by_id[region.id] = Delegate(region)
            if delegate.holds_keys:
                at = bisect_left(self._starts, delegate.bounds.start)
                self._ordered.insert(at, delegate)
                self._starts.insert(at, delegate.bounds.start)
        delegate.subscriptions.append(subscription)

    def remove(self, subscription: RegionSubscription) -> None:
        """Take a subscription out, and its delegate once it has none; repeating it is harmless."""
        delegate = self._by_id.get(subscription.region_id)
        if delegate is None or subscription not in delegate.subscriptions:
            return
        # A new list: the old one may be in use by a delivery that ends this subscription.
        delegate.subscriptions = [one for one in delegate.subscriptions if one is not subscription]
        if not delegate.subscriptions:
            del self._by_id[delegate.region.id]
            if delegate.holds_keys:
                at = bisect_left(self._starts, delegate.bounds.start)
                del self._ordered[at], self._starts[at]

    def route(self, changes: Sequence[Change]) -> Iterator[tuple[Delegate, Sequence[Change]]]:
        """Split the changes of a command into runs of one region each; skip regions without subscriptions.

        A command nearly always works on one region, so the first change is looked up and the rest are only
        checked. A region that is split during a command gives several runs.
        """
        at = 0
        while at < len(changes):
            delegate = self._holding(changes[at].key)
            end = at + 1
            if delegate is not None:
                contains = delegate.bounds.contains
                while end < len(changes) and contains(changes[end].key):
                    end += 1
                yield delegate, changes if end - at == len(changes) else changes[at:end]
            at = end

    def _holding(self, key: bytes) -> Delegate | None:
        at = bisect_right(self._starts, key) - 1
        if at < 0 or not self._ordered[at].bounds.contains(key):
            return None
        return self._ordered[at]
