"""A sink that writes down what it is given, and a remote that lasts longer than it."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby

from penstock.changefeeds.model import PendingFile, ProgressStore
from penstock.changefeeds.sinks.sink import DmlEvent, FailingDispatcher
from penstock.errors import Invalid
from penstock.follow.ddl_events import DdlEvent
from penstock.follow.slices import Position, Slice, SliceSize, TableSpan
from penstock.testing.consumers import Fault, no_fault

__all__ = ["RecordingSink", "RemoteDouble"]


class RemoteDouble:
    """Files as facts, in the order in which they came to be. Implements SinkFiles."""

    def __init__(self, location: str = "remote") -> None:
        self.location = location
        self.files: dict[str, tuple[Slice, ...]] = {}
        self.log: list[str] = []
        self.checkpoints: list[int] = []
        self.repaired: list[PendingFile] = []  # each time that somebody looked for a file
        self.ddls: list[DdlEvent] = []
        self.hanging: dict[int, asyncio.Event] = {}  # tables whose missing files are written when it is set

    def next_path(self, dispatcher_id: str, behind: int = 0) -> str:
        """Return the path of a dispatcher's next file, or of one so many files behind it."""
        number = sum(path.startswith(f"{dispatcher_id}/") for path in self.files)
        return f"{dispatcher_id}/{number + behind + 1}"

    def check_unused(self) -> None:
        if self.files or self.ddls or self.checkpoints:
            raise Invalid(f"{self.location} holds files of a changefeed already")

    def repair(self, pending: PendingFile) -> Position | None:
        self.repaired.append(pending)
        return pending.end if pending.data_path in self.files else None

    def forget(self, dispatcher_id: str) -> None:
        pass

    def write_checkpoint(self, ts: int) -> None:
        assert not self.checkpoints or ts >= self.checkpoints[-1], "consumers were told more before"
        self.checkpoints.append(ts)


class RecordingSink:
    """A Sink that does nothing by itself but what is set: `wake` and `write` say whether it wakes at once
    and writes at once. `drains_held` stops drains until it is set, `drains_held_of` those of a table,
    `ddls_held` the files of a DDL, `removals_held` removals of dispatchers. `log` has every call, in words.
    """

    def __init__(
        self,
        remote: RemoteDouble,
        progress: ProgressStore,
        *,
        wake: bool = True,
        write: bool = True,
        fault: Fault = no_fault,
    ) -> None:
        self.wake = wake
        self.write = write
        self.log: list[str] = remote.log
        self.events: dict[str, list[DmlEvent]] = {}  # not written yet
        self.unwoken: list[DmlEvent] = []
        self.on_add: Callable[[Slice], None] = lambda _: None
        self.on_ddl: Callable[[DdlEvent], None] = lambda _: None
        self.drains_held: asyncio.Event | None = None
        self.drains_held_of: dict[int, asyncio.Event] = {}
        self.ddls_held: dict[int, asyncio.Event] = {}
        self.removals_held: asyncio.Event | None = None
        self._remote = remote
        self._progress = progress
        self.fault = fault
        self._given = asyncio.Event()
        self._writing: dict[str, asyncio.Lock] = {}
        self._end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._failed = False
        self.published_ts = 0
        self.failing: dict[str, FailingDispatcher] = {}

    def slice_size(self, dispatcher: TableSpan) -> SliceSize:  # noqa: ARG002 - the same for all
        return SliceSize(1 << 40)

    def add_dml_event(self, event: DmlEvent) -> None:
        if self._failed:
            return
        piece = event.slice
        self.on_add(piece)
        self.log.append(f"dml {piece.dispatcher.table_id} {_show(piece.start)}..{_show(piece.end)}")
        self.events.setdefault(piece.dispatcher.id, []).append(event)
        if self.wake:
            asyncio.get_running_loop().call_soon(event.post_enqueue)
        else:
            self.unwoken.append(event)
        self._given.set()

    async def flush(self, dispatcher_id: str, count: int | None = None, *, files: int = 1) -> None:
        """Write the first events of a dispatcher, all by default, as one file, or as several that are begun
        together.
        """
        async with self._writing.setdefault(dispatcher_id, asyncio.Lock()):
            events = self.events.get(dispatcher_id, [])[:count]
            if not events:
                return
            size = -(-len(events) // files)
            groups = [events[start : start + size] for start in range(0, len(events), size)]
            paths = [self._remote.next_path(dispatcher_id, behind) for behind in range(len(groups))]
            pending = [
                PendingFile(dispatcher_id, path, f"{path}.index", group[0].slice.start, group[-1].slice.end)
                for path, group in zip(paths, groups, strict=True)
            ]
            await self._progress.begin_files([replace(file, followed=files > 1) for file in pending])
            for file, group in zip(pending, groups, strict=True):
                self.fault("write_file")
                self._remote.files[file.data_path] = tuple(event.slice for event in group)
                spans = f"{_show(file.start)}..{_show(file.end)}"
                self.log.append(f"file {group[0].slice.dispatcher.table_id} {spans}")
                self.fault("wrote_file")
                del self.events[dispatcher_id][: len(group)]
                for event in group:
                    event.post_flush()

    async def pass_block_event(self, dispatcher: TableSpan, event: DdlEvent) -> None:
        self.fault("pass_block_event")
        self.log.append(f"drain {dispatcher.table_id} for {event.commit_ts}")
        for held in (self.drains_held, self.drains_held_of.get(dispatcher.table_id)):
            if held is not None:
                await held.wait()
        await self.flush(dispatcher.id)

    async def write_block_event(self, event: DdlEvent) -> None:
        self.fault("write_block_event")
        if event.commit_ts in self.ddls_held:
            await self.ddls_held[event.commit_ts].wait()
        self.on_ddl(event)
        self.log.append(f"ddl {event.commit_ts}")
        self._remote.ddls.append(event)
        self.fault("wrote_block_event")

    def add_checkpoint_ts(self, ts: int) -> None:
        try:
            self.fault("tell")
            self._remote.write_checkpoint(ts)
        except Exception as error:  # noqa: BLE001 - whatever it is, a sink tells it when it runs
            self.fail(error)
        else:
            self.published_ts = ts

    async def write_again(self, files: Sequence[tuple[PendingFile, Sequence[Slice]]]) -> None:
        for _, group in groupby(files, key=lambda pair: pair[0].dispatcher_id):
            await self._progress.begin_files([replace(file, nbytes=0) for file, _ in group])
        for file, slices in files:
            hanging = self._remote.hanging.get(slices[0].dispatcher.table_id)
            if hanging is not None:
                await hanging.wait()
            self.fault("write_file")
            self._remote.files.setdefault(file.data_path, tuple(slices))
            spans = f"{_show(file.start)}..{_show(file.end)}"
            self.log.append(f"file {slices[0].dispatcher.table_id} {spans} again")

    async def remove_dispatcher(self, dispatcher_id: str) -> None:
        if self.removals_held is not None:
            await self.removals_held.wait()
        assert not self.events.pop(dispatcher_id, None), "a dispatcher is removed with unwritten changes"
        self.log.append("removed")

    async def run(self) -> None:
        while not self._end.done():
            given = asyncio.ensure_future(self._given.wait())
            try:
                await asyncio.wait((given, self._end), return_when=asyncio.FIRST_COMPLETED)
            finally:
                given.cancel()
            self._given.clear()
            if self.write and not self._end.done():
                await self._flush_all()
        self._end.result()

    def fail(self, error: Exception) -> None:
        """Let `run` raise; nothing works afterwards."""
        self._failed = True
        if not self._end.done():
            self._end.set_exception(error)

    async def close(self) -> None:
        if not self._failed:
            await self._flush_all()
        if not self._end.done():
            self._end.set_result(None)
        self.log.append("closed")

    async def _flush_all(self) -> None:
        try:
            for dispatcher_id in list(self.events):
                await self.flush(dispatcher_id)
        except BaseException:
            self._failed = True
            raise


def _show(position: Position) -> str:
    return str(position.ts) if position.handle is None else f"{position.ts}:{position.handle.decode()}"
