"""Hostile traffic against a whole deployment, beside the work of a tenant that does no harm.

Strangers hold connections, send garbage, guess tokens, and call Flight and the placement driver. A caller
with the token of Flight sends malformed tickets, and reads without end. The tenant ann has webhooks and a
database that never answer, three hundred of them on one table, hostile files in her targets, changefeeds that
she makes and removes, filters that must not run, reads of which she takes nothing, and names bob's things in
her requests. Bob writes rows, and has a changefeed and a job. `KINDS` lists the attacks.

In `make soak` it lasts an hour, and bob's lags, at the median and at the 95th percentile, are compared with
those without it; a question that gets no answer counts as the time until the next answer. The hour is cut
into rounds, each after a calm time, so that other load of the machine falls on both alike. An attack whose
traces pile up would slow the calm times too: so what the parts hold after the last round is compared with
what they held after the first one. In `make test` it lasts seconds, of which a quantile says more about the
machine: there bob's changefeed and job must reach a row that he wrote under attack, while that goes on.
"""

import contextlib
import json
import logging
import os
import random  # noqa: TID251 - seeded
import shutil
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import grpc
import httpx
import pyarrow as pa
import pytest
from pyarrow import flight

from penstock.clock import SYSTEM
from penstock.errors import PenstockError
from penstock.eventstore.read.flight_client import write_ticket
from penstock.eventstore.read.partition import ReadRange
from penstock.object_storage import open_storage
from penstock.process import raise_file_limit
from penstock.tables import Table
from penstock.testing.directory import Replica
from support.apiworld import TOKENS
from support.blackhole import BlackHole
from support.campaign import length
from support.hostilerequests import MALFORMED_TICKETS, hostile_filters
from support.upworld import UpWorld, up_world

LOGGER = logging.getLogger(__name__)
logging.getLogger("httpx").setLevel(logging.WARNING)  # pytest keeps every line of an hour

WHOLE_S = 3600
HOSTILE_S = length(8, WHOLE_S)
ROUNDS = length(1, 6)
CALM_S = 60 if HOSTILE_S >= WHOLE_S else 3
DEADLINE_S = 120.0
pytestmark = pytest.mark.timeout(HOSTILE_S + ROUNDS * (CALM_S + 5 * DEADLINE_S) + 300)
COLUMNS = [("id", "bigint primary key"), ("name", "varchar(64)")]
BIG_COLUMNS = [("id", "bigint primary key"), ("text", "longtext")]
BIG_ROWS, BIG_CHARS = 120, 100_000
"""More than the buffers of a connection hold: whoever reads it holds a reader until it takes the rows."""
READERS = 4
SILENT = 100
"""Connections that one stranger holds at a time."""
CROWD = 1005
"""Connections that a stranger at another address opens at once, to one port after the other."""
CROWD_ADDRESS = "127.0.0.2"
HOOKS = 300
LEAST_LAG_S = 0.5
"""A lag below half of the flush interval is not told apart from none."""
TIMES_OWN = 2
SHARES = {"median": 0.5, "p95": 0.95}
KINDS = (
    "hold_connections",
    "crowd",
    "send_garbage",
    "guess",
    "call_flight",
    "misuse_flight",
    "call_pd",
    "be_ann",
    "search",
    "hook_one_table",
    "name_bobs",
    "hang",
    "feed_hostile_folders",
    "spoil_copy",
)
"""The attacks that run, by their methods of `Attack`."""
MUST_MEET = (
    "guess",
    "call_flight",
    "misuse_flight",
    "call_pd",
    "search",
    "name_bobs",
    "hang",
    "feed_hostile_folders",
)
"""Attacks that a protection must have met in each round: else they attacked nothing."""
REFUSALS = frozenset({400, 401, 403, 404, 409, 422})
BUSY = frozenset({429, 503})
"""Answers that say nothing of whether a request is allowed."""
PD_METHODS = (
    "GetRegion",
    "GetRegionByID",
    "ScanRegions",
    "GetStore",
    "GetAllStores",
    "GetGCSafePoint",
    "GetMembers",
)
LEAST_ANSWERED = 0.9
"""The share of bob's requests that are answered, while strangers hold connections from his address."""
LEAST_THREADS, LEAST_FILES, LEAST_BYTES = 50, 100, 256 << 20
"""What a part may hold more than twice of what it held after the first round."""


@dataclass
class World:
    """A deployment of two tenants, and what bob has in it."""

    deployment: UpWorld
    table: Table
    hole: BlackHole
    rows: dict[int, str] = field(default_factory=dict)
    """What bob's table has, by the answers of its commits."""


@contextlib.contextmanager
def open_world(folder: Path) -> Iterator[World]:
    with BlackHole() as hole:
        accounts = {
            "root": {"token": TOKENS["root"], "admin": True},
            "ann": {
                "token": TOKENS["ann"],
                "targets": [
                    f"http://{hole.address}/",
                    f"postgresql://{hole.address}/lake",
                    f"file://{folder}/ann",
                ],
            },
            "bob": {"token": TOKENS["bob"], "targets": [f"file://{folder}/bob"]},
        }
        api = {"accounts": accounts, "readers": READERS}
        with up_world(folder, jobs={"stall_s": 5}, api=api) as world:
            db = world.db
            for account in ("ann", "bob"):
                db.create_account(account)
                db.create_database(f"of_{account}", account=account)
                db.create_table(f"of_{account}.items", COLUMNS)
            db.table("of_ann.items").insert([{"id": number, "name": "red kettle"} for number in range(200)])
            db.create_table("of_ann.big", BIG_COLUMNS)
            for first in range(0, BIG_ROWS, 20):
                rows = [{"id": first + number, "text": "x" * BIG_CHARS} for number in range(20)]
                db.table("of_ann.big").insert(rows)
            _build_index(world)
            yield World(world, db.table("of_bob.items"), hole)


def _build_index(world: UpWorld) -> None:
    """Give ann an index, so that her filters reach what parses them."""
    options = {"uri": f"file://{world.folder}/ann/index", "text_columns": "name"}
    spec = {
        "trigger": {"job_type": "greedy"},
        "detail": {"consumer": {"consumer": "fulltext", "options": options}},
    }
    http = world.client("ann")
    assert http.post("/api/v1/jobs", json={"job": "of_ann.items/index", "spec": spec}).status_code == 201
    asked = {"q": "red", "filter": "id < 9"}
    world.until(
        lambda: http.get("/api/v1/search/of_ann.items/index", params=asked).status_code == 200,
        "ann's index is not built",
    )


Lags = dict[str, list[float]]
"""Lags of bob's changefeed and job, as the API showed them."""


class Bob:
    """Writes rows, and notes how far behind its changefeed and its job are."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._http = world.deployment.connect("bob")
        self._unanswered: dict[str, list[float]] = {"changefeed": [], "job": []}
        self.asked = 0
        self.answered = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def set_up(self) -> None:
        folder = self._world.deployment.folder
        sink = f"file://{folder}/bob/feed?protocol=canal-json&flush-interval=1s"
        feed = {"id": "feed", "sink_uri": sink, "tables": ["of_bob.*"], "start": "snapshot"}
        job = {
            "trigger": {"job_type": "greedy"},
            "detail": {"consumer": {"consumer": "parquet", "options": {"uri": f"file://{folder}/bob/copy"}}},
        }
        assert self._http.post("/api/v1/changefeeds", json=feed).status_code == 201
        made = self._http.post("/api/v1/jobs", json={"job": "of_bob.items/copy", "spec": job})
        assert made.status_code == 201, made.text

    def work(self, seconds: float, lags: Lags) -> None:
        """Write for a while, and note the lags."""
        end = SYSTEM.monotonic() + seconds
        while SYSTEM.monotonic() < end:
            self._write()
            self._look(lags)
            SYSTEM.pause(0.2)
        for name in lags:
            self._note_unanswered(name, lags)

    def catch_up(self) -> None:
        """Wait until both have everything."""
        done_ts = self._write()
        for name, path, key in (
            ("changefeed", "/api/v1/changefeeds/feed", "checkpoint_ts"),
            ("job", "/api/v1/jobs/of_bob.items/copy", "watermark"),
        ):
            self._world.deployment.until(
                lambda path=path, key=key: self._reached(path, key, done_ts), f"bob's {name} stands"
            )

    def verify(self) -> dict[str, Any]:
        answer = self._http.post("/api/v1/jobs/of_bob.items/copy/verify", timeout=DEADLINE_S)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def _reached(self, path: str, key: str, ts: int) -> bool:
        with contextlib.suppress(httpx.HTTPError, KeyError):
            return int(self._http.get(path).json()[key]) >= ts
        return False

    def _write(self) -> int:
        number = len(self._world.rows)
        rows = [{"id": each, "name": f"row {each}"} for each in range(number, number + 5)]
        self._world.table.insert(rows)
        self._world.rows |= {row["id"]: row["name"] for row in rows}
        return self._world.deployment.cluster.timestamp()

    def _look(self, lags: Lags) -> None:
        for name, path in (
            ("changefeed", "/api/v1/changefeeds/feed"),
            ("job", "/api/v1/jobs/of_bob.items/copy"),
        ):
            self.asked += 1
            lag_s = self._ask_lag(path)
            if lag_s is None:
                self._unanswered[name].append(SYSTEM.monotonic())
            else:
                self._note_unanswered(name, lags)
                lags[name].append(lag_s)

    def _ask_lag(self, path: str) -> float | None:
        """Return the lag that the API shows; None when it does not answer, or does not know."""
        try:
            answer = self._http.get(path, timeout=10)
        except httpx.HTTPError:  # strangers at his address have all of its connections
            return None
        assert answer.status_code in {200, 429, 503}, answer.text
        if answer.status_code != 200:
            return None
        self.answered += 1
        lag_s: float | None = answer.json()["lag_s"]
        return lag_s

    def _note_unanswered(self, name: str, lags: Lags) -> None:
        """Count each question without an answer as the time that has passed since it was asked."""
        now, asked = SYSTEM.monotonic(), self._unanswered[name]
        lags[name] += [now - at for at in asked]
        asked.clear()


class Attack:
    """Hostile traffic by several threads until it is stopped.

    `refused` counts, by attack, what a protection has met; `busy` the requests that met only a limit.
    """

    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        self._seed = seed
        self._stop = threading.Event()
        self._deployment = world.deployment
        self._ports = [part.addr for part in world.deployment.parts if part.addr]
        token_path = world.deployment.folder / "penstock-data/secrets/flight.token"
        self._flight_token = token_path.read_text().strip()
        self._big_id = world.deployment.db.table_info("of_ann.big").id
        self.refused: Counter[str] = Counter()
        self.busy = 0
        self.accepted: list[str] = []

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        kinds: list[Callable[[random.Random], None]] = [getattr(self, kind) for kind in KINDS]
        with ThreadPoolExecutor(len(kinds)) as pool:
            works = [pool.submit(self._repeat, kind, number) for number, kind in enumerate(kinds)]
            try:
                yield
                self._deployment.until(
                    lambda: all(self.refused[kind] for kind in MUST_MEET) or bool(self.accepted),
                    f"an attack attacks nothing: of {MUST_MEET} only these were met: {self.refused}",
                )
            finally:
                self._stop.set()
            for work in works:
                work.result()
        self._deployment.until(self._remove_anns, "jobs of ann remain")

    def _remove_anns(self) -> bool:
        with self._deployment.connect("ann") as http, contextlib.suppress(httpx.HTTPError):
            answer = http.get("/api/v1/jobs")
            jobs = [job["job"] for job in answer.json()] if answer.status_code == 200 else []
            return answer.status_code == 200 and all(
                http.delete(f"/api/v1/jobs/{job}").status_code == 204
                for job in jobs
                if not job.endswith("/index")
            )
        return False

    def _repeat(self, attack: Callable[[random.Random], None], number: int) -> None:
        dice = random.Random(f"{self._seed}-{number}")
        while not self._stop.is_set():
            # Refused connections are what we want.
            with contextlib.suppress(
                OSError, httpx.HTTPError, grpc.RpcError, flight.FlightError, PenstockError
            ):
                attack(dice)
            self._stop.wait(0.05)

    def _connect(self, dice: random.Random) -> socket.socket:
        return self._connect_to(dice.choice(self._ports))

    def _connect_to(self, addr: str, source: str = "") -> socket.socket:
        host, _, port = addr.rpartition("//")[2].rpartition(":")
        return socket.create_connection((host, int(port)), timeout=5, source_address=(source, 0))

    def crowd(self, dice: random.Random) -> None:
        """Open many connections to one port, and keep them as HTTP/2 clients that say nothing."""
        addr = dice.choice(self._ports)
        with contextlib.ExitStack() as held:
            for _ in range(CROWD):
                with contextlib.suppress(OSError):
                    connection = held.enter_context(self._connect_to(addr, CROWD_ADDRESS))
                    connection.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5))
                if self._stop.is_set():
                    return
            self._stop.wait(3)

    def hold_connections(self, dice: random.Random) -> None:
        with contextlib.ExitStack() as held:
            for _ in range(SILENT):
                with contextlib.suppress(OSError):
                    connection = held.enter_context(self._connect(dice))
                    connection.send(b"GET /api/v1/tables HTTP/1.1\r\nX: "[: dice.randrange(36)])
            self._stop.wait(3)

    def send_garbage(self, dice: random.Random) -> None:
        with self._connect(dice) as connection:
            start = dice.choice(
                [b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n"]
            )
            connection.sendall(start + dice.randbytes(dice.randrange(4096)))
            connection.settimeout(1)
            connection.recv(4096)

    def guess(self, dice: random.Random) -> None:
        token = dice.randbytes(16).hex()
        headers = {"Authorization": f"Bearer {token}"}
        if dice.random() < 0.5:
            headers["Origin"] = "http://evil.example"
        path = dice.choice(
            ["tables", "jobs", "changefeeds", "overview", "tables/of_bob.items", "../../etc/passwd"]
        )
        answer = httpx.get(f"{self._deployment.url}/api/v1/{path}", headers=headers, timeout=10)
        self._expect_refusal("guess", answer)

    def _open_flight(self, token: str) -> tuple[flight.FlightClient, flight.FlightCallOptions]:
        bearer = (b"authorization", f"Bearer {token}".encode())
        options = flight.FlightCallOptions(headers=[bearer], timeout=10)
        return flight.FlightClient(f"grpc://{self._deployment.part('capture-1').addr}"), options

    def call_flight(self, dice: random.Random) -> None:
        """Ask a capture for rows, with a guessed token or that of a tenant."""
        client, options = self._open_flight(dice.choice([TOKENS["ann"], dice.randbytes(16).hex()]))
        ticket = json.dumps({"table_id": dice.randrange(200), "from_ts": 0, "to_ts": 1 << 60, "side": "data"})
        with client:
            try:
                client.do_get(flight.Ticket(ticket.encode()), options).read_all()
            except flight.FlightUnauthenticatedError:
                self.refused["call_flight"] += 1
            else:
                self.accepted.append(f"Flight {ticket}")

    def misuse_flight(self, dice: random.Random) -> None:
        """With the right token, send tickets that are hard to parse, and read rows without taking them."""
        client, options = self._open_flight(self._flight_token)
        with client:
            message = dice.choice(MALFORMED_TICKETS)
            try:
                client.do_get(flight.Ticket(message), options).read_all()
            except pa.ArrowInvalid:
                self.refused["misuse_flight"] += 1
            else:
                self.accepted.append(f"Flight {message[:40]!r}")
            to_ts = self._deployment.cluster.timestamp()
            ticket = write_ticket(ReadRange(table_id=self._big_id, from_ts=0, to_ts=to_ts))
            rows = [client.do_get(flight.Ticket(ticket), options) for _ in range(20)]
            self._stop.wait(dice.random())
            del rows

    def call_pd(self, dice: random.Random) -> None:
        """Send the placement driver and the stores messages that are none."""
        store = self._deployment.part("store").addr
        assert store is not None
        with grpc.insecure_channel(store, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            for _ in range(10):
                call: Any = channel.unary_unary(f"/pdpb.PD/{dice.choice(PD_METHODS)}")
                try:
                    call(b"\xff" + dice.randbytes(dice.randrange(1, 4096)), timeout=5)
                except grpc.RpcError:
                    self.refused["call_pd"] += 1
            stream: Any = channel.stream_stream("/pdpb.PD/Tso")
            list(stream(iter([b"\xff" + dice.randbytes(64)]), timeout=5))

    def hook_one_table(self, dice: random.Random) -> None:
        """Register hooks that never answer, until there are hundreds on one table."""
        options = {"url": f"http://{self._world.hole.address}/many"}
        spec = {
            "trigger": {"job_type": "greedy"},
            "detail": {"consumer": {"consumer": "webhook", "options": options}},
        }
        first = dice.randrange(HOOKS)
        with self._deployment.connect("ann") as http:
            for number in range(first, first + 20):
                job = f"of_ann.items/many-{number % HOOKS}"
                http.post("/api/v1/jobs", json={"job": job, "spec": spec})
                if self._stop.is_set():
                    return

    def be_ann(self, dice: random.Random) -> None:
        """Register and remove webhooks and databases that never answer."""
        consumer, options = dice.choice(
            [
                ("webhook", {"url": f"http://{self._world.hole.address}/in"}),
                ("postgres", {"dsn": f"postgresql://ann@{self._world.hole.address}/lake"}),
            ]
        )
        job = f"of_ann.items/{consumer}-{dice.randrange(12)}"
        spec = {
            "trigger": {"job_type": "greedy"},
            "detail": {"consumer": {"consumer": consumer, "options": options}},
        }
        with self._deployment.connect("ann") as http:
            answer = http.post("/api/v1/jobs", json={"job": job, "spec": spec})
            assert answer.status_code in {201, 409} | BUSY, answer.text
            if dice.random() < 0.3:
                http.delete(f"/api/v1/jobs/{job}")

    def search(self, dice: random.Random) -> None:
        """Search with filters that would run for ever, or take all memory, if the engine got them."""
        body = {"words": "red", "filter": dice.choice(hostile_filters("name"))}
        with self._deployment.connect("ann") as http:
            answer = http.post("/api/v1/search/of_ann.items/index", json=body)
            assert "filter" in answer.text or answer.status_code in BUSY, "another check refused the search"
            self._expect_refusal("search", answer)

    def feed_hostile_folders(self, dice: random.Random) -> None:
        """Make a changefeed into a folder with hostile files, and remove it; also one without them."""
        name = f"feed-{dice.randrange(4)}"
        folder = self._deployment.folder / "ann" / name
        hostile = dice.randrange(5)
        place = folder / "metadata"
        folder.mkdir(parents=True, exist_ok=True)
        if hostile == 0:
            os.mkfifo(place)
        elif hostile == 1:
            place.symlink_to(self._deployment.folder / "bob/feed/metadata")
        elif hostile == 2:
            place.write_bytes(b"[" * 100_000)
        elif hostile == 3:
            place.touch()
            os.truncate(place, 1 << 40)
        sink = f"file://{folder}?protocol=canal-json&flush-interval=1s"
        feed = {"id": name, "sink_uri": sink, "tables": ["of_ann.items"], "start": "snapshot"}
        with self._deployment.connect("ann") as http:
            try:
                answer = http.post("/api/v1/changefeeds", json=feed)
                if hostile < 2:
                    self._expect_refusal("feed_hostile_folders", answer)
                self._stop.wait(3 * dice.random())
            finally:
                http.delete(f"/api/v1/changefeeds/{name}")
                shutil.rmtree(folder, ignore_errors=True)

    def spoil_copy(self, dice: random.Random) -> None:
        """Put hostile files into the target of a job that goes on all the time."""
        folder = self._deployment.folder / "ann/copy"
        options = {"uri": f"file://{folder}"}
        spec = {
            "trigger": {"job_type": "greedy"},
            "detail": {"consumer": {"consumer": "parquet", "options": options}},
        }
        with self._deployment.connect("ann") as http:
            http.post("/api/v1/jobs", json={"job": "of_ann.items/copy", "spec": spec})
            folder.mkdir(parents=True, exist_ok=True)
            place = folder / dice.choice(["_penstock.json", "data/part.parquet", "data/other"])
            place.parent.mkdir(exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                place.unlink()
            dice.choice([os.mkfifo, lambda path: path.write_bytes(dice.randbytes(4096))])(place)
            self._deployment.db.table("of_ann.items").update([{"id": 1, "name": f"red {dice.random()}"}])
            self._stop.wait(2 * dice.random())
            if dice.random() < 0.3:
                http.delete("/api/v1/jobs/of_ann.items/copy")
                shutil.rmtree(folder, ignore_errors=True)

    def name_bobs(self, dice: random.Random) -> None:
        method, path, body = dice.choice(
            [
                ("GET", "tables/of_bob.items", None),
                ("GET", "tables/of_bob.items/changes", None),
                ("GET", "jobs/of_bob.items/copy", None),
                ("DELETE", "jobs/of_bob.items/copy", None),
                ("POST", "jobs/of_bob.items/copy/pause", None),
                ("POST", "changefeeds/feed/pause", None),
                ("DELETE", "changefeeds/bob.feed", None),
                (
                    "POST",
                    "changefeeds",
                    {"id": "all", "sink_uri": f"file://{self._deployment.folder}/ann", "tables": ["*.*"]},
                ),
                (
                    "POST",
                    "changefeeds",
                    {"id": "b", "sink_uri": f"file://{self._deployment.folder}/bob", "tables": ["of_ann.*"]},
                ),
            ]
        )
        with self._deployment.connect("ann") as http:
            self._expect_refusal("name_bobs", http.request(method, f"/api/v1/{path}", json=body))

    def hang(self, dice: random.Random) -> None:
        """Ask for much, and take nothing of the answers, until all readers of ann are held."""
        host, _, port = self._deployment.url.rpartition("//")[2].rpartition(":")
        path = "/api/v1/tables/of_ann.big/changes"
        with contextlib.ExitStack() as held:
            for _ in range(READERS):
                connection = held.enter_context(socket.socket())
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                connection.settimeout(5)
                connection.connect((host, int(port)))
                connection.sendall(
                    f"GET {path}?from_ts=1 HTTP/1.1\r\nHost: {host}\r\n"
                    f"Authorization: Bearer {TOKENS['ann']}\r\n\r\n".encode()
                )
            self._stop.wait(dice.random() * 5)
            with self._deployment.connect("ann") as http:
                answer = http.get("/api/v1/tables/of_ann.items/changes", params={"from_ts": 1, "limit": 1000})
            if answer.status_code == 503 and "api.readers" in answer.text:
                self.refused["hang"] += 1

    def _expect_refusal(self, kind: str, answer: httpx.Response) -> None:
        if answer.status_code in REFUSALS:
            self.refused[kind] += 1
        elif answer.status_code in BUSY:
            self.busy += 1
        else:
            self.accepted.append(f"{answer.status_code} {answer.request.method} {answer.request.url.path}")


def quantile(lags: list[float], share: float) -> float:
    """The lag that this share of the looks did not exceed."""
    return sorted(lags)[min(len(lags) - 1, int(share * len(lags)))]


@dataclass(frozen=True)
class Held:
    """What a part of the deployment holds."""

    threads: int
    files: int
    resident: int

    @classmethod
    def by(cls, pid: int) -> Self:
        status = Path(f"/proc/{pid}/status").read_text().splitlines()
        fields = dict(line.split(":", 1) for line in status)
        files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        return cls(int(fields["Threads"]), files, int(fields["VmRSS"].split()[0]) << 10)

    def is_about(self, first: Self) -> bool:
        return (
            self.threads <= 2 * first.threads + LEAST_THREADS
            and self.files <= 2 * first.files + LEAST_FILES
            and self.resident <= 2 * first.resident + LEAST_BYTES
        )


def test_hostile_traffic_takes_nothing_from_a_tenant_that_does_no_harm(tmp_path: Path) -> None:
    calm: Lags = {"changefeed": [], "job": []}
    hostile: Lags = {"changefeed": [], "job": []}
    held: list[dict[str, Held]] = []
    raise_file_limit()
    with open_world(tmp_path) as world, Bob(world) as bob:
        bob.set_up()
        for number in range(ROUNDS):
            bob.catch_up()
            bob.work(CALM_S, calm)
            bob.asked = bob.answered = 0
            attack = Attack(world, seed=number)
            with attack.running():
                bob.work(HOSTILE_S / ROUNDS, hostile)
                bob.catch_up()
            assert attack.accepted == []
            assert attack.refused.total() > HOSTILE_S / ROUNDS
            assert bob.answered >= LEAST_ANSWERED * bob.asked, f"{bob.answered} of {bob.asked} answered"
            held.append({part.name: Held.by(part.pid) for part in world.deployment.parts if part.pid})
            told = {
                f"{share} of {name}": [round(quantile(lags[name], part), 2) for lags in (calm, hostile)]
                for name in calm
                for share, part in SHARES.items()
            }
            LOGGER.info(
                "round %d: refused %s, busy %d, lags %s, held %s",
                *(number, dict(attack.refused), attack.busy, told, held[-1]),
            )
        bob.catch_up()
        restarts = world.deployment.restarts()
        LOGGER.info("restarts %s", restarts)
        assert set(restarts.values()) == {0}, f"a part ended: {restarts}"
        for name, first in held[0].items():
            assert held[-1][name].is_about(first), f"{name} held {first} at first, {held[-1][name]} at last"
        assert bob.verify()["same"] is True
        replica = Replica(open_storage(f"file://{tmp_path}/bob/feed"))
        replica.catch_up()
        replica.check()
        found = {row["id"]: row["name"] for row in replica.tables["of_bob.items"].values()}
        assert found == world.rows
        if HOSTILE_S >= WHOLE_S:
            for name in calm:
                for share, part in SHARES.items():
                    lag_s, own_s = quantile(hostile[name], part), quantile(calm[name], part)
                    limit_s = TIMES_OWN * max(own_s, LEAST_LAG_S)
                    assert lag_s <= limit_s, f"{share} of {name}: {lag_s} s beside {own_s} s"
