"""Those that have nothing to do cost nothing, however many they are."""

from penstock.changefeeds import run
from penstock.changefeeds.dispatcher import Dispatcher
from support.ddlevents import alter_table, table_schema

IDLE, BUSY = 10_000, 10


async def test_ten_thousand_idle_dispatchers_are_not_touched_while_ten_are_busy(world, monkeypatch) -> None:
    w = world(*(table_schema(each) for each in range(1, IDLE + BUSY + 1)))
    steps: list[int] = []
    next_step = Dispatcher.next_step

    def counted(self, horizon, pace):
        steps.append(self.span.table_id)
        return next_step(self, horizon, pace)

    w.source.advance(100)
    w.start()
    await w.reached(100)
    monkeypatch.setattr(Dispatcher, "next_step", counted)
    spawned: list[object] = []
    spawn = run.ChangefeedRun._spawn
    monkeypatch.setattr(
        run.ChangefeedRun, "_spawn", lambda self, work: (spawned.append(work), spawn(self, work))[1]
    )
    looks = w.source.progress_reads
    for ts in range(110, 310, 10):
        for table_id in range(1, BUSY + 1):
            w.source.put(table_id, ts)
        w.source.advance(ts)
        await w.settle()
    await w.reached(300)
    looks = w.source.progress_reads - looks
    assert set(steps) == set(range(1, BUSY + 1))
    assert len(w.rows()) == len(w.source.slice_calls) == len(spawned) == 20 * BUSY
    assert len(steps) <= 20 * BUSY * 6
    assert looks < 20 * 10


async def test_a_ddl_of_an_idle_table_touches_that_table_only(world, monkeypatch) -> None:
    tables = [table_schema(each) for each in range(1, 1001)]
    w = world(*tables)
    w.source.advance(100)
    w.start()
    await w.reached(100)
    touched: set[int] = set()
    next_step = Dispatcher.next_step

    def counted(self, horizon, pace):
        touched.add(self.span.table_id)
        return next_step(self, horizon, pace)

    monkeypatch.setattr(Dispatcher, "next_step", counted)
    w.source.ddl(alter_table(150, tables[4]))
    w.source.advance(200)
    await w.reached(200)
    assert touched == {5}
    assert [each.commit_ts for each in w.remote.ddls] == [150]
