"""The headline attacks, one after the other, against one `penstock up`: its parts are processes that live on.

Strangers, web pages, tenants and those who have the token of Flight try something here. What each protection
decides in detail is tested beside it, in the modules of its name.
"""

import contextlib
import json
import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from pyarrow import flight
from pydantic import SecretStr

from penstock.api.app import describe_api
from penstock.clock import SYSTEM
from penstock.eventstore.read.flight_client import FlightReader
from penstock.jobs.log.job_rows import LOG_NAME
from penstock.process import raise_file_limit
from support.apiworld import TOKENS
from support.blackhole import BlackHole
from support.hostilerequests import GOOD_TICKET, MALFORMED_TICKETS, hostile_filters
from support.upworld import UpWorld, up_world
from support.webhookreceiver import WebhookReceiver

COLUMNS = [("id", "bigint primary key"), ("name", "varchar(64)")]
HOOKS = 12
"""More than there are workers."""
LAG_S = 10.0
"""How long a row of bob may take; alone it takes a fraction of a second."""
BEARER = "bearer-7f3a19c4d2"
"""What a webhook expects; in clear it would be nowhere but in the process that sends it."""
DSNS = (
    "postgresql://ann@db.example@THIEF/ann",
    "postgresql://ann@THIEF%2C@db.example/ann",
    "postgresql://ann:x@THIEF,db.example/ann",
    "postgresql://ann@db.example#@THIEF/ann",
    "postgresql://ann@db.example\\@THIEF/ann",
    "postgresql://ann@db.example/ann?host=127.0.0.1",
    "host=db.example hostaddr=127.0.0.1 dbname=ann user=ann",
    "dbname=postgresql://ann@THIEF/ann",
)
FOREIGN = (
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"},
    {"Sec-Fetch-Site": "same-site"},  # another port of the same machine: a notebook, a dashboard
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1:1"},
    {"Origin": "http://127.0.0.1"},
    {"Origin": "https://127.0.0.1:{port}"},
    {"Origin": "http://localhost:{port}"},
    {"Origin": "http://evil.example", "Sec-Fetch-Site": "same-origin"},
)


@dataclass
class World:
    """A deployment of two tenants, and the servers that ann names."""

    up: UpWorld
    hole: BlackHole
    thief: BlackHole

    @property
    def flight(self) -> str:
        return f"grpc://{self.up.part('capture-1').addr}"

    @property
    def flight_token(self) -> str:
        return (self.up.folder / "penstock-data/secrets/flight.token").read_text().strip()

    def register(self, account: str, job: str, consumer: str, **options: str) -> httpx.Response:
        spec = {
            "trigger": {"job_type": "greedy"},
            "detail": {"consumer": {"consumer": consumer, "options": options}},
        }
        return self.up.client(account).post("/api/v1/jobs", json={"job": job, "spec": spec})

    def reaches(self, account: str, job: str, ts: int) -> bool:
        found = self.up.client(account).get(f"/api/v1/jobs/{job}").json()
        return int(found.get("watermark") or 0) >= ts

    def insert(self, table: str, *rows: dict[str, Any]) -> int:
        self.up.db.table(table).insert(list(rows))
        return self.up.cluster.timestamp()

    def count(self, metric: str) -> float:
        lines = self.up.client("root").get("/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(metric))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("deployment")
    raise_file_limit()
    with BlackHole() as hole, BlackHole() as thief:
        accounts = {
            "root": {"token": TOKENS["root"], "admin": True},
            "ann": {
                "token": TOKENS["ann"],
                "targets": [f"http://{hole.address}/", "postgresql://db.example/ann"],
            },
            "bob": {"token": TOKENS["bob"], "targets": [f"file://{folder}/bob"]},
        }
        api = {"accounts": accounts, "requests_burst": 100_000, "audit_path": str(folder / "audit.log")}
        with up_world(folder, api=api) as up:
            for account, tables in (("ann", HOOKS), ("bob", 1)):
                up.db.create_account(account)
                up.db.create_database(f"of_{account}", account=account)
                for number in range(tables):
                    up.db.create_table(f"of_{account}.t{number}", COLUMNS)
                    up.db.table(f"of_{account}.t{number}").insert([{"id": 0, "name": account}])
            yield World(up, hole, thief)
            assert set(up.restarts().values()) == {0}, "a part ended"
            assert up.traceback() == ""


def test_webhooks_that_never_answer_do_not_delay_the_jobs_of_another_account(world: World) -> None:
    http = world.up.client("ann")
    for number in range(HOOKS):
        made = world.register(
            "ann",
            f"of_ann.t{number}/hook",
            "webhook",
            url=f"http://{world.hole.address}/in",
            timeout="1h",
            attempts="100",
        )
        assert made.status_code == 201, made.text
    running = "penstock_jobs_running_iterations"
    world.up.until(lambda: world.count(running) >= 10, "the hostile jobs do not hold the workers")
    job = "of_bob.t0/copy"
    assert world.register("bob", job, "parquet", uri=f"file://{world.up.folder}/bob/copy").status_code == 201
    world.up.until(lambda: world.reaches("bob", job, 1), "bob's job does not begin")
    for number in range(1, 6):
        ts = world.insert("of_bob.t0", {"id": number, "name": "new"})
        deadline = SYSTEM.monotonic() + LAG_S
        while not world.reaches("bob", job, ts):
            assert SYSTEM.monotonic() < deadline, "a row of bob is late while webhooks of ann hang"
            SYSTEM.pause(0.05)
    assert world.count(running) >= 10
    for number in range(HOOKS):
        assert http.delete(f"/api/v1/jobs/of_ann.t{number}/hook").status_code == 204
    world.up.until(lambda: world.count(running) == 0, "removed jobs hold their workers")
    assert world.count("penstock_jobs_abandoned_consumers") == 0


def test_a_thousand_silent_connections_shut_nobody_out_of_the_api(world: World) -> None:
    address = httpx.URL(world.up.url)
    with contextlib.ExitStack() as held:
        connect = partial(socket.create_connection, (address.host, address.port or 0), timeout=20)
        silent = [held.enter_context(connect()) for _ in range(1005)]
        silent[0].settimeout(5)
        assert silent[0].recv(1) == b"", "newer ones have taken its place"
        for _ in range(5):
            with world.up.connect("bob") as http:
                assert http.get("/api/v1/tables").status_code == 200


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
def test_no_route_of_the_description_answers_a_page_of_another_origin(
    world: World, headers: dict[str, str]
) -> None:
    """Also reads: a search or a listing costs the deployment something, whoever sees the answer."""
    client = world.up.client("root")
    named = {name: value.format(port=httpx.URL(world.up.url).port) for name, value in headers.items()}
    open_to_all = {"/health", "/ready"}
    paths = {
        (method.upper(), path.replace("{", "").replace("}", ""))
        for path, methods in describe_api()["paths"].items()
        for method in methods
        if path not in open_to_all
    }
    assert len(paths) > 20
    for method, path in sorted(paths | {("GET", "/openapi.json"), ("GET", "/api/nothing"), ("HEAD", "/api")}):
        refused = client.request(method, path, headers=named)
        assert refused.status_code == 403, f"{method} {path}"
        if method != "HEAD":
            assert "another origin" in refused.json()["detail"]


def test_links_of_other_sites_open_the_pages_and_our_own_pages_and_programs_get_answers(world: World) -> None:
    client, port = world.up.client("root"), httpx.URL(world.up.url).port
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert client.get("/", headers=link).status_code == 200
    assert client.head("/", headers=link).status_code == 200
    assert client.get("/health", headers=link).status_code == 200
    assert client.post("/health", headers=link).status_code == 403, "but a form of another site posts nothing"
    own: tuple[dict[str, str], ...] = (
        {},
        {"Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "same-origin", "Origin": f"http://127.0.0.1:{port}"},
        {"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"},  # typed into the address bar
        {"Origin": f"http://127.0.0.1:{port}"},
    )
    for headers in own:
        assert client.get("/api/v1/me", headers=headers).status_code == 200
        assert client.post("/api/v1/me", headers=headers).status_code == 405


def test_a_default_changefeed_and_capture_have_nothing_of_the_job_log(world: World) -> None:
    """Nothing of the deployment has a secret of a job in clear, on any disk."""
    up = world.up
    sink = up.folder / "all"
    with WebhookReceiver() as receiver:
        options = {"url": receiver.url, "headers.Authorization": f"Bearer {BEARER}"}
        made = world.register("root", "of_bob.t0/secret", "webhook", **options)
        assert made.status_code == 201, made.text
        up.until(lambda: bool(receiver.seen), "the webhook is not called")
        assert any(BEARER in value for value in receiver.seen[0].headers.values())
        uri = f"file://{sink}?protocol=canal-json&flush-interval=1s"
        feed = {"id": "all", "sink_uri": uri, "start": "snapshot"}
        assert up.client("root").post("/api/v1/changefeeds", json=feed).status_code == 201
        ts = world.insert("of_bob.t0", {"id": 100, "name": "new"})
        up.until(
            lambda: up.client("root").get("/api/v1/changefeeds/all").json()["checkpoint_ts"] >= ts,
            "the changefeed does not catch up",
        )
        log_id = up.db.table_info(LOG_NAME).id
        with FlightReader(world.flight.partition("//")[2], token=SecretStr(world.flight_token)) as reader:
            captured = [table.table_id for table in reader.tables()]
        assert captured
        assert log_id not in captured
        assert up.client("root").delete("/api/v1/changefeeds/all").status_code == 204
        assert up.client("root").delete("/api/v1/jobs/of_bob.t0/secret").status_code == 204
    assert (sink / "of_bob").is_dir()
    assert not (sink / "penstock").exists()
    files = [path for path in up.folder.rglob("*") if path.is_file()]
    assert [str(path) for path in files if BEARER.encode() in path.read_bytes()] == []


def test_the_api_answers_after_every_hostile_search_and_after_the_death_of_its_process(world: World) -> None:
    up, client, path = world.up, world.up.client("bob"), "/api/v1/search/of_bob.t0/words"
    options = {"uri": f"file://{up.folder}/bob/index", "text_columns": "name"}
    assert world.register("bob", "of_bob.t0/words", "fulltext", **options).status_code == 201
    asked = {"q": "new", "filter": "id = 1"}
    up.until(lambda: client.get(path, params=asked).status_code == 200, "the index is not built")
    for condition in hostile_filters("name"):
        answer = client.post(path, json={"words": "new", "filter": condition})
        assert answer.status_code == 400, answer.text
        assert "\n" not in answer.json()["detail"]
    api = up.part("api").pid
    (pid,) = children(api)
    os.kill(pid, signal.SIGSTOP)  # so that the search is certainly in the middle
    with ThreadPoolExecutor(1) as threads:
        hit = threads.submit(client.get, path, params={"q": "new"})
        up.until(lambda: world.count("penstock_api_searches_running") == 1, "the search has not begun")
        os.kill(pid, signal.SIGKILL)
        answer = hit.result(60)
    assert (answer.status_code, answer.json()["status"]) == (503, 503)
    assert "process of the search ended" in answer.json()["detail"]
    assert client.get(path, params=asked).status_code == 200
    assert (up.part("api").pid, up.restarts()["api"]) == (api, 0), "the API is the same process"


def children(parent_pid: int | None) -> list[int]:
    """Return the processes of searches that a process has started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue
        if b"penstock.worker_processes" in command and int(parent) == parent_pid:
            found.append(int(folder.name))
    return found


@pytest.mark.parametrize("dsn", DSNS)
def test_no_dsn_of_a_tenant_leads_elsewhere(world: World, dsn: str) -> None:
    """urlsplit and libpq read some texts differently."""
    hostile = dsn.replace("THIEF", world.thief.address)
    answer = world.register("ann", "of_ann.t0/stolen", "postgres", dsn=hostile)
    assert answer.status_code in {400, 403, 422}, answer.text
    assert world.up.client("ann").get("/api/v1/jobs/of_ann.t0/stolen").status_code == 404
    assert not world.thief.accept_one()


def test_flight_without_the_token_is_refused_and_noted(world: World) -> None:
    ticket = flight.Ticket(json.dumps(GOOD_TICKET).encode())
    for shown in (None, TOKENS["ann"], "guessed-0123456789"):
        headers = [] if shown is None else [(b"authorization", f"Bearer {shown}".encode())]
        with flight.FlightClient(world.flight) as client, pytest.raises(flight.FlightUnauthenticatedError):
            client.do_get(ticket, flight.FlightCallOptions(headers=headers, timeout=30)).read_all()
    audit = world.up.folder / "audit.log"

    def noted() -> list[dict[str, Any]]:
        told = map(json.loads, audit.read_text().splitlines())
        return [each for each in told if each["part"] == "capture"]

    world.up.until(lambda: len(noted()) >= 3, "refused calls are not in the audit log")
    facts = {(each["action"], each["outcome"], each["account"], each["client"]) for each in noted()}
    assert facts == {("flight DoGet", "refused", None, "127.0.0.1")}
    assert "guessed" not in audit.read_text()


def test_malformed_tickets_with_the_token_are_invalid_arguments(world: World) -> None:
    bearer = (b"authorization", f"Bearer {world.flight_token}".encode())
    options = flight.FlightCallOptions(headers=[bearer], timeout=30)
    with flight.FlightClient(world.flight) as client:
        for message in MALFORMED_TICKETS:
            with pytest.raises(pa.ArrowInvalid, match=r"ticket|side"):
                client.do_get(flight.Ticket(message), options).read_all()
            with pytest.raises(pa.ArrowInvalid, match=r"ticket|side"):
                client.get_flight_info(flight.FlightDescriptor.for_command(message), options)
            if message.startswith(b"{") and b'"table_id": 1,' in message:
                continue
            for action in ("resolved_ts", "plan_merge", "commit_merge"):
                with pytest.raises(pa.ArrowInvalid, match="needs"):
                    list(client.do_action(flight.Action(action, message), options))
