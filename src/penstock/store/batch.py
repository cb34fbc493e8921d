"""The batched stream: a message has many commands, and each is answered as soon as it is ready."""

import asyncio
import logging
import types
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Coroutine, Generator
from functools import partial
from typing import Any

import grpc
from google.protobuf.message import Message

from penstock.clock import SYSTEM, Clock
from penstock.proto import tikvpb_pb2 as tikvpb
from penstock.store.executor import Command, CommandExecutor, Effect, StoreHealth
from penstock.store.faults import FaultStruck
from penstock.store.server import end_call

__all__ = ["BATCHED", "BatchCommandsStream"]

_log = logging.getLogger(__name__)

BATCH_MAX = 128
BATCH_BYTES = 8 * 1024 * 1024  # a message of this size takes no further answer
_BACKLOG_MAX = 8192  # commands and answers of one stream above which its requests are not read

# The names of commands in a batch, and the names of their RPCs.
BATCHED = {
    "Get": "KvGet",
    "Scan": "KvScan",
    "Prewrite": "KvPrewrite",
    "Commit": "KvCommit",
    "Cleanup": "KvCleanup",
    "BatchGet": "KvBatchGet",
    "BatchRollback": "KvBatchRollback",
    "ScanLock": "KvScanLock",
    "ResolveLock": "KvResolveLock",
    "GC": "KvGC",
    "DeleteRange": "KvDeleteRange",
    "RawGet": "RawGet",
    "RawBatchGet": "RawBatchGet",
    "RawPut": "RawPut",
    "RawBatchPut": "RawBatchPut",
    "RawDelete": "RawDelete",
    "RawBatchDelete": "RawBatchDelete",
    "RawScan": "RawScan",
    "RawDeleteRange": "RawDeleteRange",
    "PessimisticLock": "KvPessimisticLock",
    "PessimisticRollback": "KVPessimisticRollback",
    "CheckTxnStatus": "KvCheckTxnStatus",
    "TxnHeartBeat": "KvTxnHeartBeat",
    "CheckSecondaryLocks": "KvCheckSecondaryLocks",
    "GetHealthFeedback": "GetHealthFeedback",
    "BroadcastTxnStatus": "BroadcastTxnStatus",
}


@types.coroutine
def _resume(work: Coroutine[Any, Any, Message], waits_for: Any) -> Generator[Any, Any, Message]:
    """Continue, inside a task, a coroutine whose first step ran outside of a task."""
    try:
        while True:
            try:
                sent = yield waits_for
            except BaseException as error:  # noqa: BLE001 - a cancellation belongs to the coroutine
                waits_for = work.throw(error)
            else:
                waits_for = work.send(sent)
    except StopIteration as done:
        result: Message = done.value
        return result


class BatchCommandsStream:
    """One open stream of batches.

    A read that needs no waiting is answered without a task. Answers are collected while a message
    is being sent, so a busy stream sends full batches and an idle one answers at once.
    """

    def __init__(self, executor: CommandExecutor, health: StoreHealth, *, clock: Clock = SYSTEM) -> None:
        self._executor = executor
        self._health = health
        self._clock = clock
        self._commands = {name: executor.table[rpc] for name, rpc in BATCHED.items()}
        self._answers: deque[tuple[int, str, Message]] = deque()
        self._waiting = 0
        self._own: set[asyncio.Task[Message]] = set()  # those that end with the stream
        self._failure: BaseException | None = None
        self._ended = False
        self._ready = asyncio.Event()
        self._room = asyncio.Event()

    async def serve(
        self,
        requests: AsyncIterator[tikvpb.BatchCommandsRequest],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> None:
        """Answer until the client ends the stream, then answer the commands under way."""
        reader = asyncio.ensure_future(self._read(requests))
        try:
            while not (self._ended and not self._waiting and not self._answers):
                await self._ready.wait()
                self._ready.clear()
                while self._answers and self._failure is None:
                    await context.write(self._take_batch())
                    self._room.set()
                if self._failure is not None:
                    await end_call(context, self._failure, "BatchCommands")
        finally:
            for task in (reader, *self._own):
                task.cancel()
            await asyncio.gather(reader, *self._own, return_exceptions=True)

    async def _read(self, requests: AsyncIterator[tikvpb.BatchCommandsRequest]) -> None:
        try:
            async for message in requests:
                for request_id, request in zip(message.request_ids, message.requests, strict=False):
                    self._handle(request_id, request)
                if self._answers:
                    self._ready.set()
                while self._waiting + len(self._answers) > _BACKLOG_MAX:
                    self._room.clear()
                    await self._room.wait()
        finally:
            self._ended = True
            self._ready.set()

    def _handle(self, request_id: int, request: tikvpb.BatchCommandsRequest.Request) -> None:
        name = request.WhichOneof("cmd")
        command = self._commands.get(name) if name is not None else None
        if name == "Empty":
            self._handle_empty(request_id, request.Empty)
        elif name is None or command is None:
            # As in TiKV: an answer without a command, which every client takes for an error.
            _log.warning("a batch has a command that is not served; its answer is empty")
            self._answers.append((request_id, "", tikvpb.BatchCommandsEmptyResponse()))
        elif command.effect is Effect.READS and not self._executor.faults.active:
            self._handle_read(request_id, name, command, getattr(request, name))
        else:
            self._await(request_id, name, self._executor.start(command, getattr(request, name)))

    def _handle_read(self, request_id: int, name: str, command: Command, request: Any) -> None:
        work = self._executor.execute(command, request)
        try:
            waits_for = work.send(None)
        except StopIteration as done:
            self._answers.append((request_id, name, done.value))
        except Exception as error:  # noqa: BLE001 - ends the stream, where it is raised again
            self._fail(error)
        else:
            self._await(request_id, name, self._run(_resume(work, waits_for)))

    def _handle_empty(self, request_id: int, request: tikvpb.BatchCommandsEmptyRequest) -> None:
        answer = tikvpb.BatchCommandsEmptyResponse(test_id=request.test_id)
        if request.delay_time:
            self._await(request_id, "Empty", self._run(self._later(answer, request.delay_time)))
        else:
            self._answers.append((request_id, "Empty", answer))

    async def _later(self, answer: Message, delay_ms: int) -> Message:
        await self._clock.sleep(delay_ms / 1000)
        return answer

    def _run(self, work: Awaitable[Message]) -> asyncio.Task[Message]:
        task = asyncio.ensure_future(work)
        assert isinstance(task, asyncio.Task)
        self._own.add(task)
        task.add_done_callback(self._own.discard)
        return task

    def _await(self, request_id: int, name: str, task: asyncio.Task[Message]) -> None:
        self._waiting += 1
        task.add_done_callback(partial(self._finish, request_id, name))

    def _finish(self, request_id: int, name: str, task: asyncio.Task[Message]) -> None:
        self._waiting -= 1
        if task.cancelled():  # the stream has ended
            return
        error = task.exception()
        if error is None:
            self._answers.append((request_id, name, task.result()))
        elif not (isinstance(error, FaultStruck) and error.code is None):
            self._fail(error)
        self._ready.set()
        self._room.set()

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error
        self._ready.set()

    def _take_batch(self) -> tikvpb.BatchCommandsResponse:
        batch = tikvpb.BatchCommandsResponse(transport_layer_load=self._health.load)
        responses, request_ids = batch.responses, batch.request_ids
        size = 0
        while self._answers and len(request_ids) < BATCH_MAX and size < BATCH_BYTES:
            request_id, name, response = self._answers.popleft()
            answer = responses.add()
            if name:
                getattr(answer, name).CopyFrom(response)
            request_ids.append(request_id)
            size += response.ByteSize()
        if self._health.sample_if_due():
            batch.health_feedback.CopyFrom(self._health.feedback())
        return batch
