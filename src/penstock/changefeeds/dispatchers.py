"""All dispatchers of a changefeed: those at rest as one, the active ones each by itself. Pure."""

from collections.abc import Iterable, Iterator, Mapping

from penstock.changefeeds.dispatcher import Dispatcher
from penstock.clock import TS_MAX
from penstock.follow.positions import Position
from penstock.follow.source import ReadableRange


class Dispatchers:
    """Who carries which table, and how far all have come.

    A dispatcher is at rest when its table has no change that it has not read: then it is as far as the table
    can be read, and nothing is done for it. It is active otherwise. Those at rest cost one comparison of
    numbers a look, per table.
    """

    def __init__(self) -> None:
        self.active: dict[str, Dispatcher] = {}
        self.looks: Mapping[int, ReadableRange] = {}
        self.table_ids: tuple[int, ...] = ()
        self._by_table: dict[int, dict[str, Dispatcher]] = {}
        self._resting: dict[int, list[Dispatcher]] = {}
        self._rested_ts: dict[int, int] = {}  # a table that changed after it wakes its dispatchers
        self._resting_ts = TS_MAX  # a bound of how far those at rest have come
        self._unflushed: dict[str, Dispatcher] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Dispatcher]:
        return (each for together in self._by_table.values() for each in together.values())

    def add(self, dispatchers: Iterable[Dispatcher]) -> None:
        """Begin with some; they are active."""
        for each in dispatchers:
            self._by_table.setdefault(each.spec.table_id, {})[each.spec.id] = each
            self.active[each.spec.id] = each
            self._count += 1
        self.table_ids = tuple(self._by_table)

    def remove_tables(self, table_ids: Iterable[int]) -> list[Dispatcher]:
        """End with those of some tables, which are active."""
        removed = [each for table_id in table_ids for each in self._by_table.pop(table_id, {}).values()]
        self._count -= len(removed)
        for each in removed:
            del self.active[each.spec.id]
            self._unflushed.pop(each.spec.id, None)
        self.table_ids = tuple(self._by_table)
        return removed

    def of_table(self, table_id: int) -> list[Dispatcher]:
        """Those of a physical table."""
        return list(self._by_table.get(table_id, {}).values())

    def sent(self, dispatcher: Dispatcher) -> None:
        """It gave something to the sink: it counts with what is not flushed."""
        self._unflushed[dispatcher.spec.id] = dispatcher

    def rest(self, dispatcher: Dispatcher, *, for_good: bool = False) -> None:
        """An active one has everything that its table has; `for_good`: it will not need more."""
        del self.active[dispatcher.spec.id]
        table_id, ts = dispatcher.spec.table_id, dispatcher.position.ts
        self._resting.setdefault(table_id, []).append(dispatcher)
        self._resting_ts = min(self._resting_ts, ts)
        until_ts = TS_MAX if for_good else ts
        self._rested_ts[table_id] = min(self._rested_ts.get(table_id, TS_MAX), until_ts)

    def wake(self, table_id: int, done_ts: int) -> list[Dispatcher]:
        """Make those of a table active that were at rest. Every change up to `done_ts` is done."""
        woken = self._resting.pop(table_id, [])
        self._rested_ts.pop(table_id, None)
        for each in woken:
            each.progress.skip_to(Position(done_ts))
            self.active[each.spec.id] = each
        return woken

    def looked(self, looks: Mapping[int, ReadableRange]) -> list[int]:
        """Take in how far tables can be read now; those that changed while their dispatchers rested."""
        self.looks = looks
        changed, lowest_ts = [], TS_MAX
        for table_id, rested_ts in self._rested_ts.items():
            look = looks.get(table_id)
            if look is None:
                lowest_ts = min(lowest_ts, rested_ts)
            elif look.changed_ts > rested_ts:
                changed.append(table_id)
            elif look.readable_ts < lowest_ts:
                lowest_ts = look.readable_ts
        self._resting_ts = lowest_ts
        return changed

    def checkpoint_ts(self) -> int:
        """Every change of every table up to it is on the remote; TS_MAX when there is no table.

        Those that `looked` returned have to be active again before it is asked.
        """
        for dispatcher_id in [key for key, each in self._unflushed.items() if each.progress.flushed]:
            del self._unflushed[dispatcher_id]
        reading = min((each.position.checkpoint_ts for each in self.active.values()), default=TS_MAX)
        writing = min((each.progress.checkpoint_ts for each in self._unflushed.values()), default=TS_MAX)
        return min(self._resting_ts, reading, writing)
