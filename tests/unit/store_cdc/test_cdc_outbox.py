import asyncio

import pytest

from penstock.proto import cdcpb_pb2 as cdcpb
from penstock.store.cdc import subscription
from penstock.store.cdc.outbox import EVENTS_MAX, MESSAGE_BYTES_MAX, Outbox, Quota
from penstock.store.cdc.subscription import EVENT_BYTES_MAX, EventRowWriter


@pytest.fixture
def quota():
    return Quota(1 << 30)


@pytest.fixture
def outbox(quota):
    return Outbox(quota)


def add(outbox, region_id, size=0):
    outbox.add_event(region_id, 1).entries.entries.add(key=bytes(size))
    outbox.charge(size)


def resolved(ts):
    return cdcpb.ChangeDataEvent(resolved_ts=cdcpb.ResolvedTs(regions=[1], ts=ts))


async def drain(outbox):
    messages = []
    while outbox._waiting or outbox._open is not None:
        messages.append(await outbox.next())
    return messages


async def test_events_share_a_message_up_to_the_limit_of_events(outbox):
    for region_id in range(EVENTS_MAX + 1):
        add(outbox, region_id)
    messages = await drain(outbox)
    assert [len(message.events) for message in messages] == [EVENTS_MAX, 1]
    assert [event.region_id for message in messages for event in message.events] == list(
        range(EVENTS_MAX + 1)
    )


async def test_a_message_stays_below_the_limit_of_bytes(outbox):
    for region_id in range(5):
        add(outbox, region_id, MESSAGE_BYTES_MAX // 2 - 1000)
    messages = await drain(outbox)
    assert [len(message.events) for message in messages] == [2, 2, 1]
    assert all(message.ByteSize() <= MESSAGE_BYTES_MAX for message in messages)


async def test_an_event_larger_than_a_message_travels_alone(outbox):
    add(outbox, 1, 10)
    add(outbox, 2, MESSAGE_BYTES_MAX + 1)
    add(outbox, 3, 10)
    assert [[event.region_id for event in message.events] for message in await drain(outbox)] == [
        [1],
        [2],
        [3],
    ]


async def test_a_resolved_timestamp_stands_alone_between_what_came_before_and_after(outbox):
    add(outbox, 1)
    outbox.add_resolved(resolved(10))
    add(outbox, 2)
    first, second, third = await drain(outbox)
    assert (first.events[0].region_id, third.events[0].region_id) == (1, 2)
    assert not second.events
    assert second.resolved_ts.ts == 10


async def test_waiting_resolved_timestamps_are_counted(outbox):
    outbox.add_resolved(resolved(10))
    assert outbox.resolved_waiting == 1
    await outbox.next()
    assert outbox.resolved_waiting == 0


async def test_bytes_are_pending_until_the_message_after_them_is_asked_for(outbox, quota):
    add(outbox, 1, 1000)
    assert quota.used == outbox.pending_bytes >= 1000
    await outbox.next()
    assert quota.used >= 1000
    waiting = asyncio.ensure_future(outbox.next())
    await asyncio.wait([waiting], timeout=0)
    assert quota.used == outbox.pending_bytes == 0
    outbox.close()
    assert await waiting is None


async def test_a_crowded_outbox_has_room_once_the_reader_has_moved_on():
    outbox = Outbox(Quota(8000))
    add(outbox, 1, 2000)
    assert outbox.crowded
    room = asyncio.ensure_future(outbox.room())
    await outbox.next()
    await asyncio.wait([room], timeout=0)
    assert not room.done()
    reading = asyncio.ensure_future(outbox.next())
    await asyncio.wait_for(room, 5)
    outbox.close()
    assert await reading is None


async def test_a_reader_wakes_up_for_a_new_event(outbox):
    waiting = asyncio.ensure_future(outbox.next())
    await asyncio.wait([waiting], timeout=0)
    add(outbox, 7)
    message = await asyncio.wait_for(waiting, 5)
    assert message.events[0].region_id == 7


async def test_closing_frees_everything_and_wakes_everybody():
    quota = Quota(100)
    outbox = Outbox(quota)
    add(outbox, 1, 1000)
    room = asyncio.ensure_future(outbox.room())
    await asyncio.wait([room], timeout=0)
    outbox.close()
    await asyncio.wait_for(room, 5)
    assert await outbox.next() is None
    assert quota.used == 0


async def test_dropping_data_keeps_the_errors_in_order(outbox, quota):
    add(outbox, 1, 1000)
    outbox.add_event(2, 1).error.congested.region_id = 2
    outbox.charge(8)
    outbox.add_resolved(resolved(10))
    outbox.add_event(3, 1).error.congested.region_id = 3
    outbox.charge(8)
    add(outbox, 4, 1000)
    outbox.drop_data()
    (message,) = await drain(outbox)
    assert [event.error.congested.region_id for event in message.events] == [2, 3]
    assert outbox.resolved_waiting == 0
    assert quota.used == outbox.pending_bytes < 1000


async def test_rows_fill_an_event_up_to_its_limit(outbox):
    writer = EventRowWriter(outbox, 7, 9)
    for i in range(10):
        writer.add(subscription.COMMITTED, subscription.PUT, b"%d" % i, 1, 2, bytes(EVENT_BYTES_MAX // 4))
    writer.finish()
    (message,) = await drain(outbox)
    assert [len(event.entries.entries) for event in message.events] == [3, 3, 3, 1]
    assert {(event.region_id, event.request_id) for event in message.events} == {(7, 9)}
    keys = [row.key for event in message.events for row in event.entries.entries]
    assert keys == [b"%d" % i for i in range(10)]


async def test_a_row_larger_than_an_event_has_one_of_its_own(outbox):
    writer = EventRowWriter(outbox, 7, 9)
    for size in (10, EVENT_BYTES_MAX * 2, 10):
        writer.add(subscription.PREWRITE, subscription.PUT, b"k", 1, 0, bytes(size))
    writer.finish()
    (message,) = await drain(outbox)
    assert [len(event.entries.entries) for event in message.events] == [1, 1, 1]


async def test_a_row_carries_what_it_was_given(outbox):
    writer = EventRowWriter(outbox, 7, 9)
    writer.add(subscription.COMMITTED, subscription.DELETE, b"k", 3, 5, b"", b"old")
    writer.mark_initialized()
    writer.finish()
    ((row, last),) = [event.entries.entries for event in (await outbox.next()).events]
    assert row == cdcpb.Event.Row(
        type=cdcpb.Event.COMMITTED,
        op_type=cdcpb.Event.Row.DELETE,
        key=b"k",
        start_ts=3,
        commit_ts=5,
        old_value=b"old",
    )
    assert last == cdcpb.Event.Row(type=cdcpb.Event.INITIALIZED)


async def test_a_writer_without_rows_writes_nothing(outbox):
    EventRowWriter(outbox, 7, 9).finish()
    assert await drain(outbox) == []
