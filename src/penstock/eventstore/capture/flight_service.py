"""Arrow Flight: the tables of a capture, for readers on other machines.

A ticket is JSON and names a logical range, not a place: {"table_id", "from_ts", "to_ts", "side", "columns",
"handle_from", "handle_to", "backfills"} (handles in base64). `get_flight_info` takes the same as its command
and answers with a ticket for each part that has one schema. `list_flights` names the tables with their
timestamps. The action `resolved_ts` says how far a table ({"table_id": n}) can be read; `progress` says that
of all tables at once, as one list for each timestamp, and `refusals` which tables the capture owns and cannot
capture. `catalog` answers a reader of many tables with one call: {"patterns", "since_ts"} gives the progress
of the tables that match the patterns, and the schemas of those that changed since.

By the actions `plan_merge` and `commit_merge` others do the merges of a capture: it plans, they write, it
commits. A plan is handed out under an id and remembered for a while. Only the output of such a plan is
committed, so that a caller can at worst waste work. `flight_server` decides who may call, and how much.
"""

import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import pyarrow as pa
from pyarrow import flight

from penstock.clock import SYSTEM, TS_MAX, Clock
from penstock.errors import Invalid, Unavailable
from penstock.eventstore.capture.flight_server import (
    OPEN,
    FlightAccess,
    FlightLimits,
    FlightMethod,
    FlightServer,
    encode_batches,
    encode_field,
)
from penstock.eventstore.capture.store import EventStore
from penstock.eventstore.capture.tables import matches_patterns
from penstock.eventstore.read.flight_client import (
    read_names,
    read_number,
    read_object_of_json,
    read_ticket,
    write_ticket,
)
from penstock.eventstore.read.partition import CaptureProgress, RangeReader, Refusal
from penstock.eventstore.schema_version import SchemaVersion
from penstock.eventstore.sides import side_schema
from penstock.eventstore.upkeep.merge import MergePlan, plan_tree, read_output
from penstock.tables.table_patterns import TablePatterns

PLANS_MAX = 64  # of one call
_REMEMBERED_MAX = 1024
_TABLE_ID_MAX = (1 << 63) - 1
_PATTERNS_MAX = 64  # of readers whose tables are remembered

Action = Callable[[bytes], bytes]


@dataclass(slots=True)
class MergeActions:
    """The actions `plan_merge` and `commit_merge`. Thread-safe."""

    store: EventStore
    clock: Clock = SYSTEM
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _plans: dict[str, MergePlan] = field(default_factory=dict)

    @property
    def actions(self) -> Mapping[str, tuple[str, Action]]:
        """Each action's name, its purpose, and the method that runs it; they raise what the store raises."""
        return {
            "plan_merge": ("Plan the merges of a table, for others to write.", self.plan),
            "commit_merge": (
                "Replace the inputs of a plan by the objects that were written for it.",
                self.commit,
            ),
        }

    def plan(self, body: bytes) -> bytes:
        """Plan merges that may be written at the same time.

        Takes {"table_id": n}; returns [{"plan_id", "plan"}].
        """
        plans = {
            self.clock.unique_id(): plan for plan in self.store.plan_merges(table_id_in(body), PLANS_MAX)
        }
        with self._lock:
            self._plans |= plans
            while len(self._plans) > _REMEMBERED_MAX:
                del self._plans[next(iter(self._plans))]
        return json.dumps(
            [{"plan_id": name, "plan": plan_tree(plan)} for name, plan in plans.items()]
        ).encode()

    def commit(self, body: bytes) -> bytes:
        """Commit the output of a plan; calling it again gives the same answer.

        Takes {"plan_id", "data", "tombstones"}; returns {"committed"}. False: an input is no longer part of
        the table, or the plan is forgotten; plan again.
        """
        plan_id, output = read_output(body)
        with self._lock:
            plan = self._plans.get(plan_id)
        committed = plan is not None and self.store.commit_merge(plan.table_id, plan, output)
        return json.dumps({"committed": committed}).encode()


def table_id_in(body: bytes) -> int:
    """Return the table that an action is about; raise Invalid when the body names none."""
    try:
        return read_number(read_object_of_json(body)["table_id"], _TABLE_ID_MAX)
    except (ValueError, KeyError, TypeError) as error:
        raise Invalid('the body of the action needs {"table_id": n}') from error


_log = logging.getLogger(__name__)

STOP_TIMEOUT_S = 5.0


def _catalog_question(body: bytes) -> tuple[TablePatterns, int]:
    try:
        tree = read_object_of_json(body)
        patterns = read_names(tree["patterns"])
        since_ts = read_number(tree["since_ts"], TS_MAX)
    except (KeyError, ValueError) as error:
        raise Invalid('the body of the action needs {"patterns": [...], "since_ts": n}') from error
    return TablePatterns(patterns), since_ts


def _matching_names(patterns: TablePatterns, versions: Sequence[SchemaVersion]) -> list[tuple[str, str]]:
    """Return the names of a table that match."""
    names = {(version.database, version.table.name) for version in versions}
    return [name for name in names if patterns.matches(*name)]


@dataclass(slots=True)
class _Matching:
    """Which tables of the capture match some patterns, as of a DDL."""

    ddl_ts: int
    matches: dict[int, bool] = field(default_factory=dict)


class FlightService:
    """Serves the tables of one event store to callers with access; `close` ends it."""

    def __init__(
        self,
        addr: str,
        store: EventStore,
        reader: RangeReader,
        access: FlightAccess = OPEN,
        *,
        refusals: Callable[[], Sequence[Refusal]] = tuple,
        captured: Sequence[str] = ("*.*",),
        limits: FlightLimits | None = None,
    ) -> None:
        """`refusals` returns the tables that the capture owns and cannot capture.

        Only tables that match the patterns `captured` are in the catalog: nobody captures others.
        """
        self._store = store
        self._reader = reader
        self._refusals = refusals
        self._captured = captured
        self._merging = MergeActions(store).actions
        self._closing = False
        self._matching: dict[tuple[str, ...], _Matching] = {}
        self._lock = threading.Lock()  # for the above
        methods: dict[str, FlightMethod] = {
            "DoGet": self._do_get,
            "DoAction": self._do_action,
            "GetFlightInfo": self._get_flight_info,
            "ListActions": self._list_actions,
            "ListFlights": self._list_flights,
        }
        self._server = FlightServer(addr, methods, access, limits=limits)
        self.addr = self._server.addr

    def close(self) -> None:
        """Stop serving. Streams end with their next batch; a reader that takes none is cut off soon."""
        self._closing = True
        if not self._server.close(STOP_TIMEOUT_S):
            _log.warning("a Flight reader that does not take its rows was abandoned")

    def _do_get(self, request: bytes) -> Iterator[bytes]:
        """Stream the rows of a ticket."""
        schema, batches = self._reader.read(read_ticket(_parse(flight.Ticket, request).ticket))
        return encode_batches(schema, self._until_closed(batches))

    def _until_closed(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if self._closing:
                raise Unavailable("the capture stops; ask the table's next owner")
            yield batch

    def _get_flight_info(self, request: bytes) -> Iterator[bytes]:
        """Divide a range into tickets, one for each schema in it; the schema of the answer is the newest.

        The metadata of an endpoint is its schema version, as a manifest's fact.
        """
        descriptor = _parse(flight.FlightDescriptor, request)
        wanted = read_ticket(descriptor.command or b"")
        parts = self._reader.parts(wanted)
        schema = side_schema(parts[-1].schema.table, wanted.side)
        endpoints = [
            flight.FlightEndpoint(
                write_ticket(part.wanted), [], None, json.dumps(part.schema.as_fact()).encode()
            )
            for part in parts
        ]
        yield flight.FlightInfo(schema, descriptor, endpoints, -1, -1).serialize()

    def _list_flights(self, _request: bytes) -> Iterator[bytes]:
        """Yield the tables; the descriptor of each is the answer of the action `resolved_ts`."""
        for table_id in sorted(self._store.tables()):
            progress = flight.FlightDescriptor.for_command(json.dumps(self._describe(table_id)).encode())
            yield flight.FlightInfo(pa.schema([]), progress, [], -1, -1).serialize()

    def _list_actions(self, _request: bytes) -> Iterator[bytes]:
        """Yield the actions and their purposes."""
        purposes = {
            "resolved_ts": "Return how far a table can be read, and how far it is in objects.",
            "progress": "Return the same for all tables.",
            "refusals": "Return the tables that the capture owns and cannot capture, and why.",
            "catalog": "Return the progress of tables of some names, and those of them that changed.",
            **{name: purpose for name, (purpose, _) in self._merging.items()},
        }
        for name, purpose in purposes.items():
            yield encode_field(1, name.encode()) + encode_field(2, purpose.encode())

    def _do_action(self, request: bytes) -> Iterator[bytes]:
        """Run an action."""
        action = _parse(flight.Action, request)
        body = action.body.to_pybytes()
        if action.type == "resolved_ts":
            answer = json.dumps(self._describe(table_id_in(body))).encode()
        elif action.type == "progress":
            answer = json.dumps(self._progress(sorted(self._store.tables()))).encode()
        elif action.type == "refusals":
            answer = json.dumps([asdict(refusal) for refusal in self._refusals()]).encode()
        elif action.type == "catalog":
            answer = json.dumps(self._catalog(body)).encode()
        elif action.type in self._merging:
            answer = self._merging[action.type][1](body)
        else:
            known = ", ".join(["resolved_ts", "progress", "refusals", "catalog", *self._merging])
            raise Invalid(f"there is no action {action.type!r}; there are {known}")
        yield flight.Result(answer).serialize()

    def _catalog(self, body: bytes) -> Mapping[str, Any]:
        """Return the progress of tables that match, and the schemas of those that changed after `since_ts`.

        Schemas are read before the progress: a table that can be read up to a timestamp is then known, and
        so is every other that existed by then.
        """
        patterns, since_ts = _catalog_question(body)
        schemas = self._store.schemas
        upto_ts = schemas.resolved_ts()
        ddl_ts = min(schemas.last_ddl_ts(), upto_ts)  # one that resolved in between is in the next answer
        histories: dict[int, Any] = {}
        for table_id in sorted(schemas.known_ids()) if ddl_ts > since_ts else ():
            versions = self._versions(table_id, upto_ts)
            if not versions:  # it was created after `upto_ts`, and is in the next answer
                continue
            ends = schemas.ends(table_id, 0, upto_ts)
            changed = max([version.since_ts for version in versions] + ends) > since_ts
            if changed and any(
                matches_patterns(*name, self._captured) for name in _matching_names(patterns, versions)
            ):
                facts = [version.as_fact() for version in versions]
                histories[table_id] = {"versions": facts, "ends": ends}
        return {
            "resolved_ts": upto_ts,
            "ddl_ts": ddl_ts,
            "progress": self._progress(self._find_matching(patterns, ddl_ts, upto_ts)),
            "histories": histories,
        }

    def _versions(self, table_id: int, upto_ts: int) -> list[SchemaVersion]:
        """Return the schema versions of a table up to a timestamp; none when it was not there by then."""
        try:
            return self._store.schemas.versions(table_id, 0, upto_ts)
        except Unavailable:
            return []

    def _find_matching(self, patterns: TablePatterns, ddl_ts: int, upto_ts: int) -> list[int]:
        """Return the tables of this capture that ever had a matching name, or whose name is not known.

        Names are compared again only after a DDL, however often a reader asks.
        """
        key = tuple(patterns.patterns)
        with self._lock:
            known = self._matching.pop(key, None)
        if known is None or known.ddl_ts != ddl_ts:
            known = _Matching(ddl_ts)
        own = sorted(self._store.tables())
        for table_id in own:
            if table_id not in known.matches:
                versions = self._versions(table_id, upto_ts)
                known.matches[table_id] = not versions or bool(_matching_names(patterns, versions))
        with self._lock:
            self._matching[key] = known
            while len(self._matching) > _PATTERNS_MAX:
                del self._matching[next(iter(self._matching))]
        return [table_id for table_id in own if known.matches[table_id]]

    def _progress(self, table_ids: Sequence[int]) -> Mapping[str, list[int]]:
        found = []
        for table_id in table_ids:
            with suppress(Unavailable):  # the table was given up meanwhile
                found.append(self._reader.progress(table_id))
        return {column.name: [getattr(of, column.name) for of in found] for column in fields(CaptureProgress)}

    def _describe(self, table_id: int) -> Mapping[str, Any]:
        return asdict(self._reader.progress(table_id))


def _parse(kind: Any, request: bytes) -> Any:
    """Return a message of Flight's; raise Invalid when a request is none."""
    try:
        return kind.deserialize(request)
    except (pa.ArrowException, ValueError) as error:
        raise Invalid(f"the request is no {kind.__name__} of Arrow Flight") from error
