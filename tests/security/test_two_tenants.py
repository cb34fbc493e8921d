"""Two tenants of one deployment: each sends the other's names in every form, and none of it is accepted.

The deployment is `penstock up`. Its changefeeds and jobs do not run: nothing but a request moves them.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.client import HTTPConnection
from typing import Any

import pytest
from pyarrow import flight

from support.apiworld import TOKENS
from support.upworld import UpWorld, up_world

COLUMNS = [("id", "bigint primary key"), ("name", "varchar(64)")]
PAIRS = [("ann", "bob"), ("bob", "ann")]
REQUESTS_MIN = 100
NO_ROUTE = "there is nothing at this path"
"""The answer to a path that is no operation's: nobody's right was looked at."""
FLIGHT_TOKEN = "token-of-the-deployment-0123456789"


def secret(account: str) -> str:
    """A value in a row of an account's table."""
    return f"known-to-{account}-alone"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpWorld]:
    """Each tenant has a table with a row, a changefeed and a job."""
    folder = tmp_path_factory.mktemp("api")
    accounts: dict[str, Any] = {"root": {"token": TOKENS["root"], "admin": True}} | {
        account: {"token": TOKENS[account], "targets": [f"file://{folder}/{account}"]}
        for account in ("ann", "bob")
    }
    with up_world(
        folder,
        api={"accounts": accounts, "requests_burst": 100_000},
        capture={"flight_token": FLIGHT_TOKEN},
        up={"changefeeds": False, "jobs": False},
    ) as made:
        for account in ("ann", "bob"):
            made.db.create_account(account)
            made.db.create_database(f"of_{account}", account=account)
            made.db.create_table(f"of_{account}.items", COLUMNS)
            made.db.table(f"of_{account}.items").insert([{"id": 1, "name": secret(account)}])
            client = made.client(account)
            assert client.post("/api/v1/changefeeds", json=feed(made, account)).status_code == 201
            assert client.post("/api/v1/jobs", json=job(made, account)).status_code == 201
        for account in ("ann", "bob"):
            made.until(lambda account=account: secret(account) in rows_of(made, account), "a row is not read")
        yield made
        assert set(made.restarts().values()) == {0}, made.up.log[-4000:]
        assert made.traceback() == ""


def feed(world: UpWorld, account: str, **more: Any) -> dict[str, Any]:
    uri = f"file://{world.folder}/{account}/feed?protocol=canal-json"
    return {"id": f"feed-of-{account}", "sink_uri": uri, "tables": [f"of_{account}.*"], **more}


def job(world: UpWorld, account: str, name: str = "words", **options: Any) -> dict[str, Any]:
    given = {"uri": f"file://{world.folder}/{account}/{name}", "text_columns": "name", **options}
    consumer = {"consumer": "fulltext", "options": given}
    return {"job": f"of_{account}.items/{name}", "spec": {"detail": {"consumer": consumer}}}


@dataclass(frozen=True)
class Request:
    """One request as bytes on the wire: the path is sent as it is written here."""

    method: str
    path: str
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)

    def send(self, world: UpWorld, account: str) -> tuple[int, str]:
        """Return the status and the text of the answer."""
        connection = HTTPConnection(world.url.rpartition("//")[2], timeout=60)
        body = None if self.body is None else json.dumps(self.body)
        headers = {
            "Authorization": f"Bearer {TOKENS[account]}",
            "Content-Type": "application/json",
            **self.headers,
        }
        try:
            connection.request(self.method, self.path, body, headers)  # libraries would tidy the path
            answer = connection.getresponse()
            return answer.status, answer.read().decode(errors="replace")
        finally:
            connection.close()


def spellings(name: str, own: str) -> list[str]:
    """A name of the other one, as parsers may read it in two ways."""
    dotted = name.replace(".", "%2E")
    return [
        name,
        name.upper(),
        dotted,
        dotted.replace("%", "%25"),
        name.replace("o", "%6F"),
        f"{own}/../{name}",
        f"{own}%2F..%2F{name}",
        f"{own}/%2e%2e/{name}",
        f"./{name}",
        f"/{name}",
        f"{name}%00",
        f"%20{name}",
        f"{name}%20",
        f"{own},{name}",
        f"{own}%0A{name}",
        f"%60{name}%60",
        name.replace("o", "%EF%BD%8F"),
        f"{own}?table={name}",
        f"{own}%3F{name}",
        f"{own}#{name}",
    ]


def hostile(world: UpWorld, mine: str, other: str) -> Iterator[Request]:
    """Everything that one tenant sends to reach what is the other's."""
    table, own_table = f"of_{other}.items", f"of_{mine}.nothing"
    for spelling in spellings(table, own_table):
        yield Request("GET", f"/api/v1/tables/{spelling}")
        yield Request("GET", f"/api/v1/tables/{spelling}/changes")
        yield Request("GET", f"/api/v1/jobs/{spelling}/words")
        yield Request("GET", f"/api/v1/search/{spelling}/words?q={secret(other)}")
        yield Request("DELETE", f"/api/v1/jobs/{spelling}/words")
    for name in (f"feed-of-{other}", f"{other}.feed-of-{other}"):
        for spelling in spellings(name, "feed-of-nobody"):
            yield Request("GET", f"/api/v1/changefeeds/{spelling}")
            yield Request("DELETE", f"/api/v1/changefeeds/{spelling}")
        for act in ("pause", "resume"):
            yield Request("POST", f"/api/v1/changefeeds/{name}/{act}")
        yield Request("PATCH", f"/api/v1/changefeeds/{name}", {"target_ts": 1})
    words = f"/api/v1/jobs/{table}/words"
    for act in ("pause", "resume", "verify", "repair"):
        yield Request("POST", f"{words}/{act}", {"rebuild": True} if act == "repair" else None)
    yield Request("PATCH", words, {"spec": {"trigger": {"paused": True}}})
    yield Request("POST", f"/api/v1/search/{table}/words", {"vector": [1.0]})
    for method in ("PUT", "TRACE", "PROPFIND", "delete", "MKCOL"):
        yield Request(method, words)
    for headers in foreign_headers(other):
        yield Request("GET", words, headers=headers)
        yield Request("POST", f"{words}/pause", headers=headers)
    yield from creations(world, mine, other)


def creations(world: UpWorld, mine: str, other: str) -> Iterator[Request]:
    """What would read the other's rows, or write to the other's place."""
    yield Request("POST", "/api/v1/jobs", job(world, other, "theft"))
    yield Request("POST", "/api/v1/jobs", {**job(world, mine, "theft"), "job": f"of_{other}.items/theft"})
    for table in (
        f"of_{other}.stolen",
        f"OF_{other.upper()}.stolen",
        f"`of_{other}`.stolen",
        f" of_{other}.stolen",
        f"of_{other}.of_{mine}.stolen",
        f"of_{mine}.stolen,of_{other}.stolen",
        "stolen",
        ".stolen",
        "penstock.iscp_log",
        "mysql.user",
    ):
        copy = {"spec": {"detail": {"consumer": {"consumer": "kv", "options": {"table": table}}}}}
        yield Request("POST", "/api/v1/jobs", {"job": f"of_{mine}.items/theft", **copy})
        yield Request("PATCH", f"/api/v1/jobs/of_{mine}.items/words", copy)
    for tables in (
        [f"of_{other}.*"],
        ["*.*"],
        [f"of_{mine}.*", f"of_{other}.items"],
        ["of_*.*"],
        [f"!of_{mine}.*"],
    ):
        yield Request("POST", "/api/v1/changefeeds", feed(world, mine, id="theft", tables=tables))
        yield Request("PATCH", f"/api/v1/changefeeds/feed-of-{mine}", {"tables": tables})
    for place in (
        f"file://{world.folder}/{other}/feed",
        f"file://{world.folder}/{mine}/../{other}/feed",
        f"file://{world.folder}/{mine}/%2e%2e/{other}/feed",
        f"file://{world.folder}/{mine}%2f..%2f{other}/feed",
        f"file://{world.folder}/{mine}x/feed",
        f"file:{world.folder}/{other}/feed",
        f"FILE://{world.folder}/{other}/feed",
        f"file://localhost{world.folder}/{other}/feed",
        f"{world.folder}/{other}/feed",
    ):
        sink = f"{place}?protocol=csv"
        yield Request("POST", "/api/v1/changefeeds", feed(world, mine, id="theft", sink_uri=sink))
        yield Request("POST", "/api/v1/jobs", job(world, mine, "theft", uri=place))
        moved = {"spec": {"detail": {"consumer": {"options": {"uri": place}}}}}
        yield Request("PATCH", f"/api/v1/jobs/of_{mine}.items/words", moved)


def foreign_headers(other: str) -> list[dict[str, str]]:
    """Headers by which proxies say who asks, or for what."""
    return [
        {"X-Account": other, "X-Forwarded-User": other, "Remote-User": other},
        {"X-HTTP-Method-Override": "DELETE", "X-Method-Override": "DELETE"},
        {"X-Original-URL": f"/api/v1/tables/of_{other}.items", "X-Rewrite-URL": "/metrics"},
        {"Cookie": f"token={other}; account={other}"},
        {"Forwarded": f"for=127.0.0.1;host={other}", "X-Forwarded-Prefix": f"/{other}"},
    ]


def rows_of(world: UpWorld, account: str) -> str:
    """The rows of an account's table, as its changes."""
    return world.client(account).get(f"/api/v1/tables/of_{account}.items/changes").text


def picture(world: UpWorld, account: str) -> list[Any]:
    """What an account has, as it and an admin see it, without what moves by itself."""
    client, root = world.client(account), world.client("root")
    shown = client.get(f"/api/v1/changefeeds/feed-of-{account}").json()
    listed = [
        sorted(row["id"] for row in client.get("/api/v1/changefeeds").json()),
        sorted(row["job"] for row in client.get("/api/v1/jobs").json()),
        sorted(row["table"] for row in client.get("/api/v1/tables").json()),
    ]
    state = client.get(f"/api/v1/jobs/of_{account}.items/words").json()
    all_names = [
        sorted(row["id"] for row in root.get("/api/v1/changefeeds").json()),
        sorted(row["job"] for row in root.get("/api/v1/jobs").json()),
        sorted(row["table"] for row in root.get("/api/v1/tables").json()),
        sorted(str(path) for path in world.folder.glob(f"{account}/**/*")),
    ]
    kept = {name: state[name] for name in ("state", "spec", "paused", "account", "created", "job_id")}
    return [
        *listed,
        *all_names,
        shown["state"],
        shown["settings"],
        kept,
        secret(account) in rows_of(world, account),
    ]


@pytest.mark.parametrize(("mine", "other"), PAIRS)
def test_none_of_a_hundred_requests_for_what_is_anothers_is_accepted(
    world: UpWorld, mine: str, other: str
) -> None:
    before = [picture(world, account) for account in (mine, other)]
    requests = list(hostile(world, mine, other))
    assert len(requests) >= REQUESTS_MIN
    assert Request("GET", f"/api/v1/tables/of_{mine}.items").send(world, mine)[0] == 200, "its own it reaches"
    judged = 0
    for request in requests:
        status, text = request.send(world, mine)
        assert 400 <= status < 500, (request, status, text)
        assert secret(other) not in text, request
        judged += status != 405 and NO_ROUTE not in text
    assert judged >= REQUESTS_MIN, "what leads to no operation was not decided on"
    assert [picture(world, account) for account in (mine, other)] == before


@pytest.mark.parametrize(("mine", "other"), PAIRS)
def test_lists_have_nothing_of_another_whatever_is_asked(world: UpWorld, mine: str, other: str) -> None:
    for path in ("tables", "changefeeds", "jobs", "overview", "me"):
        for query in (
            "",
            f"?account={other}",
            f"?account={other}&account={mine}",
            f"?tenant={other}&admin=true",
        ):
            for headers in ({}, *foreign_headers(other)):
                status, text = Request("GET", f"/api/v1/{path}{query}", headers=headers).send(world, mine)
                assert status in {200, 400, 422}, text
                for word in (secret(other), f"of_{other}", f"feed-of-{other}", f"/{other}/"):
                    assert word not in text, (path, query, headers)


def test_a_tenants_token_opens_no_flight(world: UpWorld) -> None:
    """Rows of all tenants are there: it is for the deployment's own processes, which have a token."""
    addr = world.part("capture-1").addr
    for account in ("ann", "bob"):
        with flight.FlightClient(f"grpc://{addr}") as client:
            options = flight.FlightCallOptions(
                headers=[(b"authorization", f"Bearer {TOKENS[account]}".encode())], timeout=20
            )
            for table_id in range(100, 150):
                ticket = json.dumps({"table_id": table_id, "from_ts": 0, "to_ts": 1 << 60, "side": "data"})
                with pytest.raises(flight.FlightUnauthenticatedError):
                    client.do_get(flight.Ticket(ticket.encode()), options).read_all()
            with pytest.raises(flight.FlightUnauthenticatedError):
                list(client.list_flights(b"", options))
