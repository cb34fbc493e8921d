import asyncio
from typing import Any

import grpc
import pytest

from penstock.proto import kvrpcpb_pb2 as kvrpcpb
from penstock.proto import storepb_pb2 as storepb
from penstock.proto import tikvpb_pb2 as tikvpb
from penstock.store.batch import BATCH_BYTES, BATCH_MAX, BATCHED

Wire = Any  # the fixture's class


def batch(*commands: tuple[int, str, Any]) -> tikvpb.BatchCommandsRequest:
    message = tikvpb.BatchCommandsRequest()
    for request_id, name, request in commands:
        getattr(message.requests.add(), name).CopyFrom(request)
        message.request_ids.append(request_id)
    return message


class Stream:
    """A batch stream to the leader of one region, with answers by their ids."""

    def __init__(self, wire: Wire, key: bytes) -> None:
        region = wire.region(key)
        self.context = wire.context(region)
        self.call = wire.store(region.leader_store).BatchCommands()
        self.sizes: list[int] = []

    async def send(self, *commands: tuple[int, str, Any]) -> None:
        for _, _, request in commands:
            if hasattr(request, "context"):
                request.context.MergeFrom(self.context)
        await self.call.write(batch(*commands))

    async def answers(self, count: int) -> dict[int, Any]:
        found: dict[int, Any] = {}
        async with asyncio.timeout(20):
            while len(found) < count:
                message = await self.call.read()
                self.sizes.append(len(message.responses))
                found.update(zip(message.request_ids, message.responses, strict=True))
        return found


def test_every_command_of_a_batch_has_its_unary_form() -> None:
    declared = {field.name for field in tikvpb.BatchCommandsRequest.Request.DESCRIPTOR.fields}
    assert declared == {*BATCHED, "Empty"}


async def test_commands_of_all_kinds_are_answered_by_their_ids(wire: Wire) -> None:
    await wire.put(wire.key("a"), b"1")
    stream, ts = Stream(wire, wire.key("a")), await wire.ts()
    await stream.send(
        (7, "Get", kvrpcpb.GetRequest(key=wire.key("a"), version=ts)),
        (3, "Prewrite", wire.prewrite(ts, {wire.key("b"): b"2"})),
        (5, "Get", kvrpcpb.GetRequest(key=wire.key("none"), version=ts)),
        (9, "GetHealthFeedback", kvrpcpb.GetHealthFeedbackRequest()),
        (11, "Empty", tikvpb.BatchCommandsEmptyRequest(test_id=77)),
    )
    answers = await stream.answers(5)
    assert answers[7].Get.value == b"1"
    assert answers[3].WhichOneof("cmd") == "Prewrite"
    assert not answers[3].Prewrite.errors
    assert answers[5].Get.not_found
    assert answers[9].GetHealthFeedback.health_feedback.slow_score == 1
    assert answers[11].Empty.test_id == 77
    stream.call.cancel()


async def test_a_slow_command_holds_up_no_other(wire: Wire) -> None:
    stream, ts = Stream(wire, wire.key("a")), await wire.ts()
    await stream.send(
        (1, "Empty", tikvpb.BatchCommandsEmptyRequest(delay_time=60_000)),
        (2, "Get", kvrpcpb.GetRequest(key=wire.key("a"), version=ts)),
    )
    assert set(await stream.answers(1)) == {2}
    await stream.send((3, "Get", kvrpcpb.GetRequest(key=wire.key("a"), version=ts)))
    assert set(await stream.answers(1)) == {3}
    stream.call.cancel()


async def test_a_waiting_lock_holds_up_no_other(wire: Wire) -> None:
    key, holder = wire.key("k"), await wire.ts()

    def lock(ts: int) -> kvrpcpb.PessimisticLockRequest:
        return kvrpcpb.PessimisticLockRequest(
            mutations=[kvrpcpb.Mutation(op=kvrpcpb.PessimisticLock, key=key)],
            primary_lock=key,
            start_version=ts,
            for_update_ts=ts,
            lock_ttl=3000,
            wait_timeout=1000,
        )

    stream = Stream(wire, key)
    await stream.send((1, "PessimisticLock", lock(holder)))
    assert not (await stream.answers(1))[1].PessimisticLock.errors
    waiter = await wire.ts()
    await stream.send((2, "PessimisticLock", lock(waiter)))
    await stream.send((3, "Get", kvrpcpb.GetRequest(key=key, version=waiter)))
    assert set(await stream.answers(1)) == {3}
    release = kvrpcpb.PessimisticRollbackRequest(start_version=holder, for_update_ts=holder, keys=[key])
    await stream.send((4, "PessimisticRollback", release))
    assert set(await stream.answers(2)) == {2, 4}
    stream.call.cancel()


async def test_answers_come_in_messages_of_a_bounded_size(wire: Wire) -> None:
    stream, ts = Stream(wire, wire.key("a")), await wire.ts()
    gets = [(i, "Get", kvrpcpb.GetRequest(key=wire.key("a"), version=ts)) for i in range(1000)]
    await stream.send(*gets)
    assert set(await stream.answers(1000)) == set(range(1000))
    assert max(stream.sizes) == BATCH_MAX
    assert len(stream.sizes) <= 1000 // BATCH_MAX + 2
    stream.call.cancel()


async def test_large_answers_travel_in_several_messages(wire: Wire) -> None:
    await wire.put(wire.key("a"), b"x" * (3 << 20))
    stream, ts = Stream(wire, wire.key("a")), await wire.ts()
    gets = [(i, "Get", kvrpcpb.GetRequest(key=wire.key("a"), version=ts)) for i in range(10)]
    await stream.send(*gets)
    assert set(await stream.answers(10)) == set(range(10))
    assert max(stream.sizes) * (3 << 20) < BATCH_BYTES + (3 << 20)
    stream.call.cancel()


async def test_writes_of_one_message_share_their_answers(wire: Wire) -> None:
    """Group commit: concurrent writes are durable together, so their answers travel together."""
    stream, ts = Stream(wire, wire.key("a")), await wire.ts()
    writes = [(i, "Prewrite", wire.prewrite(ts, {wire.key(f"{i:03d}"): b"v"})) for i in range(100)]
    await stream.send(*writes)
    answers = await stream.answers(100)
    assert not any(answer.Prewrite.errors for answer in answers.values())
    assert len(stream.sizes) < 50
    stream.call.cancel()


async def test_an_unknown_command_is_answered_without_a_command(wire: Wire) -> None:
    stream = Stream(wire, wire.key("a"))
    # Field 22 is a coprocessor request, which this store has no part in.
    unknown = tikvpb.BatchCommandsRequest.Request.FromString(b"\xb2\x01\x00")
    await stream.call.write(tikvpb.BatchCommandsRequest(requests=[unknown], request_ids=[4]))
    assert (await stream.answers(1))[4].WhichOneof("cmd") is None
    stream.call.cancel()


async def test_region_errors_stay_with_their_command(wire: Wire) -> None:
    stream, ts = Stream(wire, wire.key("a")), await wire.ts()
    stale = kvrpcpb.GetRequest(key=wire.key("a"), version=ts)
    stale.context.CopyFrom(stream.context)
    stale.context.region_epoch.version += 50
    good = kvrpcpb.GetRequest(key=wire.key("a"), version=ts, context=stream.context)
    await stream.call.write(batch((1, "Get", stale), (2, "Get", good)))
    answers = await stream.answers(2)
    assert answers[1].Get.region_error.HasField("epoch_not_match")
    assert answers[2].Get.not_found
    stream.call.cancel()


async def test_a_command_of_another_cluster_ends_the_stream(wire: Wire) -> None:
    stream = Stream(wire, wire.key("a"))
    await stream.send((1, "Get", kvrpcpb.GetRequest(context=kvrpcpb.Context(cluster_id=1))))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stream.call.read()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_client_that_stops_writing_still_gets_its_answers(wire: Wire) -> None:
    stream, ts = Stream(wire, wire.key("a")), await wire.ts()
    await stream.send(
        (1, "Empty", tikvpb.BatchCommandsEmptyRequest(delay_time=50)),
        (2, "Prewrite", wire.prewrite(ts, {wire.key("a"): b"1"})),
    )
    await stream.call.done_writing()
    assert set(await stream.answers(2)) == {1, 2}
    assert await stream.call.read() == grpc.aio.EOF
    assert await stream.call.code() is grpc.StatusCode.OK


async def test_a_write_outlives_the_stream_that_carried_it(wire: Wire) -> None:
    region = wire.cluster.regions.by_key(wire.prefix)
    store, context = wire.store(region.leader_store), wire.context(region)
    put = kvrpcpb.RawPutRequest(context=context, key=wire.key("a"), value=b"1")
    call = store.BatchCommands()
    await call.write(batch((1, "RawPut", put), (2, "Empty", tikvpb.BatchCommandsEmptyRequest())))
    await call.read()
    call.cancel()
    async with asyncio.timeout(10):
        while (await store.RawGet(kvrpcpb.RawGetRequest(context=context, key=wire.key("a")))).not_found:
            await asyncio.to_thread(int)


async def test_load_and_health_come_along_once_a_second(wire: Wire) -> None:
    stream, ts = Stream(wire, wire.key("a")), await wire.ts()
    async with asyncio.timeout(10):
        while True:
            await stream.send((1, "Get", kvrpcpb.GetRequest(key=wire.key("a"), version=ts)))
            message = await stream.call.read()
            if message.HasField("health_feedback"):
                break
    assert message.health_feedback.store_id == stream.context.peer.store_id
    await stream.send((1, "Get", kvrpcpb.GetRequest(key=wire.key("a"), version=ts)))
    later = await stream.call.read()
    assert later.transport_layer_load > 0
    assert not later.HasField("health_feedback")
    stream.call.cancel()


async def test_faults_drop_one_answer_or_break_the_stream(wire: Wire) -> None:
    stream, ts = Stream(wire, wire.key("a")), await wire.ts()

    def get() -> kvrpcpb.GetRequest:
        return kvrpcpb.GetRequest(key=wire.key("a"), version=ts)

    wire.cluster.faults.set([storepb.Fault(kind="DROP", method="KvGet", times=1)])
    await stream.send((1, "Get", get()), (2, "Get", get()))
    assert set(await stream.answers(1)) == {2}
    wire.cluster.faults.set([storepb.Fault(kind="SERVER_IS_BUSY", method="KvGet", times=1)])
    await stream.send((3, "Get", get()))
    assert (await stream.answers(1))[3].Get.region_error.HasField("server_is_busy")
    write = wire.prewrite(ts, {wire.key("a"): b"1"})
    write.try_one_pc = True
    wire.cluster.faults.set([storepb.Fault(kind="UNDETERMINED", method="KvPrewrite", times=1)])
    await stream.send((4, "Prewrite", write))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stream.call.read()
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert await wire.get(wire.key("a")) == b"1"
    stream = Stream(wire, wire.key("a"))
    wire.cluster.faults.set([storepb.Fault(kind="STREAM_RESET", times=1)])
    await stream.send((5, "Get", get()))
    with pytest.raises(grpc.aio.AioRpcError):
        await stream.call.read()
