"""The batch client: channel, send loop, receive loops, re-creation, the unary path."""

import asyncio

import grpc
import pytest

from penstock import metrics
from penstock.clock import SYSTEM
from penstock.errors import Unavailable
from penstock.kv.rpc import client as rpc_client
from penstock.kv.rpc.client import RpcClient
from penstock.kv.rpc.connections import RpcFailed
from penstock.proto import kvrpcpb_pb2 as kvrpcpb
from penstock.proto import tikvpb_pb2 as tikvpb
from penstock.settings import KvSettings


def count(histogram) -> float:
    return sum(bucket.get() for bucket in histogram._buckets)


async def get(rpc, store, key, timeout_s=5.0):
    return await rpc.send(store.addr, "KvGet", kvrpcpb.GetRequest(key=key), timeout_s=timeout_s)


@pytest.fixture
def store(cluster):
    return cluster.stores[1]


async def test_requests_of_one_moment_travel_in_one_batch(cluster, store):
    rpc = (await cluster.connect()).rpc
    answers = await asyncio.gather(*(get(rpc, store, b"%d" % i) for i in range(64)))
    assert [answer.value for answer in answers] == [b"value of %d" % i for i in range(64)]
    assert store.batches == [64]


async def test_a_batch_is_never_larger_than_the_limit_and_later_callers_wait_in_order(cluster, store):
    rpc = (await cluster.connect(max_batch_size=8, grpc_connection_count=1)).rpc
    waited = count(metrics.KV_BATCH_WAIT_DURATION)
    answers = await asyncio.gather(*(get(rpc, store, b"%d" % i) for i in range(50)))
    assert [answer.value for answer in answers] == [b"value of %d" % i for i in range(50)]
    assert max(store.batches) == 8
    assert sum(store.batches) == 50
    assert count(metrics.KV_BATCH_WAIT_DURATION) == waited + 50
    assert [request.key for _, request, _ in store.seen[:8]] == [b"%d" % i for i in range(8)]


async def test_each_connection_is_one_of_its_own_and_all_take_their_turn(cluster, store):
    rpc = (await cluster.connect(grpc_connection_count=4)).rpc
    for i in range(8):
        await get(rpc, store, b"%d" % i)
    assert store.streams == 4
    assert len(store.peers) == 4  # four client ports: four TCP connections


async def test_request_ids_rise_over_all_streams(cluster, store):
    rpc = (await cluster.connect()).rpc
    for i in range(6):
        await get(rpc, store, b"%d" % i)
    assert store.batch_ids == sorted(set(store.batch_ids))


async def test_answers_find_their_callers_in_any_order_beside_unknown_ids(cluster, store):
    rpc = (await cluster.connect()).rpc
    store.reorder = True
    store.stray_ids = [999_999]
    answers = await asyncio.gather(*(get(rpc, store, b"%d" % i) for i in range(20)))
    assert [answer.value for answer in answers] == [b"value of %d" % i for i in range(20)]


async def test_an_answer_of_the_wrong_kind_is_a_failure(cluster, store, fakes):
    rpc = (await cluster.connect(grpc_connection_count=1)).rpc
    store.script["KvGet"].append(fakes.DROP)
    store.stray_ids = [1]  # the first request's id
    request = kvrpcpb.ScanRequest(limit=1)
    store.script["KvScan"].append(fakes.DROP)
    with pytest.raises(RpcFailed, match="answered Get to Scan"):
        await rpc.send(store.addr, "KvScan", request, timeout_s=5)


async def test_a_timed_out_request_fails_alone_and_its_late_answer_is_ignored(cluster, store, fakes):
    rpc = (await cluster.connect(grpc_connection_count=1)).rpc
    store.script["KvGet"].append(fakes.DROP)
    slow, fast = await asyncio.gather(
        get(rpc, store, b"slow", 0.05), get(rpc, store, b"fast"), return_exceptions=True
    )
    assert slow.code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert slow.sent
    assert fast.value == b"value of fast"
    store.stray_ids = [1]
    assert (await get(rpc, store, b"next")).value == b"value of next"


async def test_a_cancelled_request_is_not_sent(cluster, store):
    rpc = (await cluster.connect()).rpc
    await get(rpc, store, b"first")
    cancelled = asyncio.create_task(get(rpc, store, b"cancelled"))
    asyncio.get_running_loop().call_soon(cancelled.cancel)  # after it entered, before the send loop runs
    await asyncio.gather(cancelled, return_exceptions=True)
    await get(rpc, store, b"last")
    assert [request.key for _, request, _ in store.seen] == [b"first", b"last"]


async def test_a_broken_stream_fails_its_requests_and_is_made_again(cluster, store, fakes):
    rpc = (await cluster.connect(grpc_connection_count=1)).rpc
    store.script["KvGet"].append(fakes.RESET)
    resets = count(metrics.KV_BATCH_CLIENT_RESET)
    failed = await asyncio.gather(*(get(rpc, store, b"%d" % i) for i in range(5)), return_exceptions=True)
    assert [error.code for error in failed] == [grpc.StatusCode.UNAVAILABLE] * 5
    assert all(error.sent for error in failed)
    await fakes.until(lambda: count(metrics.KV_BATCH_CLIENT_RESET) == resets + 1)
    assert (await get(rpc, store, b"again")).value == b"value of again"
    assert store.streams == 2


async def test_the_other_connections_go_on_while_one_is_made_again(cluster, store, fakes):
    rpc = (await cluster.connect(grpc_connection_count=2)).rpc
    await get(rpc, store, b"warm")
    store.script["KvGet"].append(fakes.RESET)
    with pytest.raises(RpcFailed):
        await get(rpc, store, b"unlucky")
    for i in range(4):
        assert (await get(rpc, store, b"%d" % i)).value == b"value of %d" % i


async def test_without_any_stream_requests_fail_at_once_and_are_counted(cluster, store, fakes):
    rpc = (await cluster.connect(grpc_connection_count=2)).rpc
    await get(rpc, store, b"warm")
    await store.stop()
    unavailable = metrics.KV_BATCH_CLIENT_NO_AVAILABLE_CONNECTION_TOTAL
    before = unavailable._value.get()
    deadline = SYSTEM.monotonic() + 5
    while True:
        with pytest.raises(RpcFailed) as raised:
            await get(rpc, store, b"a")
        if "no available connections" in str(raised.value):
            break
        assert SYSTEM.monotonic() < deadline
    assert not raised.value.sent
    assert unavailable._value.get() > before
    await store.start()
    deadline = SYSTEM.monotonic() + 10
    while SYSTEM.monotonic() < deadline:
        try:
            answer = await get(rpc, store, b"back")
            break
        except RpcFailed:
            await SYSTEM.sleep(0.05)
    assert answer.value == b"value of back"


async def test_an_overloaded_store_gets_larger_batches(cluster, store):
    rpc = (await cluster.connect(max_batch_wait_ms=300, batch_wait_size=3, overload_threshold=200)).rpc
    waits = metrics.KV_BATCH_WAIT_OVERLOAD._value
    before = waits.get()
    store.load = 200
    await get(rpc, store, b"warm")
    assert waits.get() == before  # the load was not known yet
    first = asyncio.create_task(get(rpc, store, b"0"))
    await asyncio.wait([first], timeout=0.05)  # the send loop has it and waits for more
    await asyncio.gather(first, get(rpc, store, b"1"), get(rpc, store, b"2"))
    assert store.batches == [1, 3]
    assert waits.get() == before + 1
    started = SYSTEM.monotonic()
    await get(rpc, store, b"alone")
    assert SYSTEM.monotonic() - started >= 0.29  # and not for ever
    store.load = 10
    await get(rpc, store, b"calm")
    before = waits.get()
    await get(rpc, store, b"calm again")
    assert waits.get() == before


async def test_the_wait_for_larger_batches_ends_when_a_batch_is_full(cluster, store):
    rpc = (
        await cluster.connect(
            max_batch_size=2, max_batch_wait_ms=1000, batch_wait_size=64, overload_threshold=1
        )
    ).rpc
    store.load = 500
    await get(rpc, store, b"warm")
    started = SYSTEM.monotonic()
    await asyncio.gather(*(get(rpc, store, b"%d" % i) for i in range(4)))
    assert SYSTEM.monotonic() - started < 0.9
    assert store.batches == [1, 2, 2]


async def test_a_stalled_connection_does_not_hold_back_the_others(cluster, store, fakes):
    rpc = (await cluster.connect(grpc_connection_count=2)).rpc
    store.value = lambda key: key[:5]
    store.hold = asyncio.Event()  # the store does not read: flow control stops the writer
    dispatched = metrics.KV_BATCH_REQUESTS.labels(store.addr)
    before = count(dispatched)
    stuck = asyncio.create_task(get(rpc, store, b"x" * 32 * 1024 * 1024, 20))
    await fakes.until(lambda: count(dispatched) == before + 1)
    quick = asyncio.create_task(get(rpc, store, b"quick"))
    await fakes.until(lambda: count(dispatched) == before + 2)
    assert not stuck.done()
    store.hold.set()
    assert ((await quick).value, (await stuck).value) == (b"quick", b"xxxxx")


async def test_commands_without_a_batch_form_are_unary_calls_in_turn(cluster, store):
    rpc = (await cluster.connect()).rpc
    for _ in range(4):
        await rpc.send(store.addr, "MvccGetByKey", kvrpcpb.MvccGetByKeyRequest(key=b"k"), timeout_s=5)
    assert {how for _, _, how in store.seen} == {"unary"}
    assert len(store.peers) == 4


async def test_batching_can_be_turned_off(cluster, store):
    rpc = (await cluster.connect(max_batch_size=0)).rpc
    await get(rpc, store, b"a")
    assert store.seen[0][2] == "unary"
    assert store.streams == 0


async def test_a_store_without_a_batch_service_is_served_by_unary_calls(fakes):
    store = fakes.Store(1)
    store.with_batch = False
    await store.start()
    rpc = RpcClient(None, KvSettings())
    answers = await asyncio.gather(*(get(rpc, store, b"%d" % i) for i in range(10)))
    assert [answer.value for answer in answers] == [b"value of %d" % i for i in range(10)]
    assert {how for _, _, how in store.seen} == {"unary"}
    await rpc.close()
    await store.stop()


async def test_a_unary_call_reports_its_status(cluster, store, fakes):
    rpc = (await cluster.connect(max_batch_size=0)).rpc
    store.script["KvGet"].append(grpc.StatusCode.RESOURCE_EXHAUSTED)
    with pytest.raises(RpcFailed) as raised:
        await get(rpc, store, b"a")
    assert raised.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    store.script["KvGet"].append(fakes.DROP)
    with pytest.raises(RpcFailed) as raised:
        await get(rpc, store, b"a", 0.05)
    assert raised.value.code is grpc.StatusCode.DEADLINE_EXCEEDED


@pytest.mark.parametrize("batch", [128, 0])
async def test_closing_an_address_fails_its_requests_without_cancelling_their_tasks(
    cluster, store, fakes, batch
):
    rpc = (await cluster.connect(max_batch_size=batch)).rpc
    store.script["KvGet"].append(fakes.DROP)
    waiting = asyncio.create_task(get(rpc, store, b"a"))
    await fakes.until(lambda: len(store.seen) == 1)
    await rpc.close_addr(store.addr)
    with pytest.raises(RpcFailed) as raised:
        await waiting
    assert raised.value.code is grpc.StatusCode.CANCELLED
    assert (await get(rpc, store, b"b")).value == b"value of b"  # a new pool


async def test_a_closed_client_says_so(cluster, store):
    rpc = (await cluster.connect()).rpc
    await rpc.close()
    with pytest.raises(Unavailable, match="closed"):
        await get(rpc, store, b"a")


async def test_pools_nobody_uses_are_recycled(cluster, store, fakes, monkeypatch):
    monkeypatch.setattr(rpc_client, "IDLE_MAX_S", 0.0)
    rpc = (await cluster.connect()).rpc
    store.script["KvGet"].append(fakes.DROP)
    busy = asyncio.create_task(get(rpc, store, b"a", 0.3))
    await fakes.until(lambda: len(store.seen) == 1)
    await rpc.recycle()
    assert list(rpc._pools) == [store.addr]  # a request is under way
    with pytest.raises(RpcFailed):
        await busy
    await rpc.recycle()
    assert not rpc._pools
    rpc.channel(store.addr)
    await rpc.recycle()
    assert list(rpc._pools) == [store.addr]  # somebody holds a channel


async def test_a_stream_receives_its_first_response_while_it_opens(cluster, store):
    rpc = (await cluster.connect()).rpc
    request = tikvpb.BatchCommandsRequest(request_ids=[5])
    request.requests.add().Get.key = b"k"
    stream = await rpc.stream(store.addr, "tikvpb.Tikv", "BatchCommands", request, timeout_s=5)
    assert list(stream.first.request_ids) == [5]
    request.request_ids[0] = 6
    await stream.write(request)
    assert list((await stream.receive(5)).request_ids) == [6]
    stream.cancel()


async def test_a_stream_the_store_refuses_fails_while_it_opens(cluster, store, fakes):
    rpc = (await cluster.connect()).rpc
    store.script["KvGet"].append(grpc.StatusCode.PERMISSION_DENIED)
    request = tikvpb.BatchCommandsRequest(request_ids=[5])
    request.requests.add().Get.key = b"k"
    with pytest.raises(RpcFailed) as raised:
        await rpc.stream(store.addr, "tikvpb.Tikv", "BatchCommands", request, timeout_s=5)
    assert raised.value.code is grpc.StatusCode.PERMISSION_DENIED
    store.hold = asyncio.Event()
    with pytest.raises(RpcFailed, match="silent"):
        await rpc.stream(store.addr, "tikvpb.Tikv", "BatchCommands", request, timeout_s=0.05)
    store.hold.set()


async def test_a_request_of_the_wrong_class_fails_its_caller_only(cluster, store):
    rpc = (await cluster.connect()).rpc
    with pytest.raises(AssertionError, match="ScanRequest is no Get request"):
        await rpc.send(store.addr, "KvGet", kvrpcpb.ScanRequest(), timeout_s=1)
    assert (await get(rpc, store, b"a")).value == b"value of a"


async def test_a_channel_closed_under_a_stream_breaks_it_like_any_other_loss(cluster, store, fakes):
    rpc = (await cluster.connect(grpc_connection_count=1)).rpc
    await get(rpc, store, b"warm")
    connection = rpc._pools[store.addr].array.connections[0]
    connection._stamp = (1,)  # as if the TLS files had changed
    await connection.renew()
    await fakes.until(lambda: store.streams == 2)
    assert (await get(rpc, store, b"again")).value == b"value of again"


async def test_an_answer_without_a_command_is_an_error_and_no_empty_success(cluster, store, fakes):
    rpc = (await cluster.connect()).rpc
    store.script["KvGet"].append(fakes.NO_COMMAND)
    with pytest.raises(RpcFailed, match="the store answered None to Get"):
        await get(rpc, store, b"a")
    assert (await get(rpc, store, b"b")).value == b"value of b"
