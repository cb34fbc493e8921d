"""What stands before every route: tokens, names, origins, how often, how much, and how many at a time."""

import logging
from collections.abc import Iterator

import pytest

from penstock.api.errors import ProblemError
from penstock.api.middleware import Readers
from support.apiworld import TOKENS, ApiWorld


def test_whoever_has_no_token_is_told_so(shared: ApiWorld) -> None:
    for headers in (
        {},
        {"Authorization": "Bearer wrong-token-0123456789"},
        {"Authorization": f"Basic {TOKENS['ann']}"},
        {"Authorization": f"Bearer {TOKENS['ann']}x"},
        {"Authorization": "Bearer"},
        {"Authorization": b"Bearer \xff\xfe"},
    ):
        for path in ("/api/v1/me", "/api/v1/tables", "/api/v1/overview", "/api/v1/changefeeds/x", "/metrics"):
            refused = shared.client().get(path, headers=headers)  # type: ignore[arg-type] # bytes too
            assert refused.status_code == 401
            assert refused.headers["www-authenticate"] == "Bearer"
            assert refused.headers["content-type"] == "application/problem+json"
    assert shared.client().post("/api/v1/jobs", json={"nonsense": 1}).status_code == 401


def test_probes_and_pages_need_no_token_and_say_nothing_of_tenants(shared: ApiWorld) -> None:
    client = shared.client()
    assert client.get("/health").json() == {"status": "ok"}
    assert client.get("/ready").json() == {"ready": True, "reasons": []}
    assert client.get("/").status_code == 200
    assert "of_ann" not in client.get("/openapi.json").text


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8300", "127.0.0.1.evil.example", "", "["])
def test_a_foreign_name_is_refused(shared: ApiWorld, host: str) -> None:
    """A page may let its own name lead to 127.0.0.1: the browser then sends that name."""
    for path in ("/api/v1/tables", "/", "/health"):
        refused = shared.client("root").get(path, headers={"Host": host})
        assert refused.status_code in {400, 421}, "400 is h11's for what is no name at all"


def test_names_of_the_settings_and_of_loopback_are_known(shared: ApiWorld) -> None:
    with shared.beside(hosts=["penstock.example"]) as url:
        client = shared.client("root", url)
        for host in ("penstock.example", "PENSTOCK.example:443", "localhost:1", "[::1]:8300", "127.0.0.1"):
            assert client.get("/health", headers={"Host": host}).status_code == 200


def test_a_page_of_another_origin_changes_nothing(shared: ApiWorld) -> None:
    client = shared.client("root")
    for headers in (
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ):
        refused = client.post("/api/v1/changefeeds/x/pause", headers=headers)
        assert refused.status_code == 403
    own = client.post("/api/v1/changefeeds/x/pause", headers={"Origin": shared.url})
    assert own.status_code == 404, "our own pages may"


def test_every_answer_tells_browsers_what_not_to_do(shared: ApiWorld) -> None:
    client = shared.client("root")
    for answer in (
        client.get("/"),
        client.get("/api/v1/me"),
        client.get("/nothing"),
        shared.client().get("/metrics"),
    ):
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'self'")
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert "server" not in answer.headers
        assert "access-control-allow-origin" not in answer.headers
    assert client.get("/api/v1/me").headers["cache-control"] == "no-store"


def test_whoever_asks_too_often_waits_and_nobody_else_does(shared: ApiWorld) -> None:
    with shared.beside(requests_per_s=0.01, requests_burst=3) as url:
        ann, bob, nobody = (shared.client(account, url) for account in ("ann", "bob", None))
        assert [ann.get("/api/v1/me").status_code for _ in range(4)] == [200, 200, 200, 429]
        waits = ann.get("/api/v1/me")
        assert 50 < int(waits.headers["retry-after"]) <= 100
        assert waits.json()["status"] == 429
        assert bob.get("/api/v1/me").status_code == 200
        assert [nobody.get("/api/v1/me").status_code for _ in range(4)] == [401, 401, 401, 429], "guesses too"
        assert all(nobody.get("/health").status_code == 200 for _ in range(10)), "probes are free"


def chunks(nbytes: int) -> Iterator[bytes]:
    for _ in range(nbytes // 1024):
        yield b" " * 1024


def test_a_body_is_no_larger_than_it_may_be(shared: ApiWorld) -> None:
    with shared.beside(body_bytes=4096) as url:
        client = shared.client("root", url)
        large = client.post("/api/v1/changefeeds", content=b" " * 5000)
        assert (large.status_code, large.json()["status"]) == (413, 413)
        unsaid = client.post(
            "/api/v1/changefeeds", content=chunks(64 * 1024), headers={"Content-Type": "application/json"}
        )
        assert unsaid.status_code == 413, "also where nobody said beforehand how long it is"
        assert client.post("/api/v1/changefeeds", content=chunks(2048)).status_code == 400


def test_so_many_read_at_a_time_and_no_more() -> None:
    readers = Readers(2)
    with readers.reading("ann"), readers.reading("ann"):
        with pytest.raises(ProblemError) as refused, readers.reading("ann"):
            pass
        assert (refused.value.status_code, refused.value.headers) == (503, {"Retry-After": "1"})
    with readers.reading("ann"), readers.reading("ann"):
        pass


def test_no_account_keeps_the_others_from_reading() -> None:
    readers = Readers(3, accounts=2)
    with readers.reading("ann"), readers.reading("ann"):
        with pytest.raises(ProblemError), readers.reading("ann"):
            pass
        with readers.reading("bob"), pytest.raises(ProblemError), readers.reading("bob"):
            pass
    with readers.reading("bob"), readers.reading("bob"):
        pass
    with Readers(1, accounts=2).reading("ann"):
        pass


def test_a_stream_that_nobody_takes_holds_its_place_until_it_is_given_up(shared: ApiWorld) -> None:
    rows = [{"id": number, "name": "x" * 60} for number in range(1000, 4000)]
    ts = shared.run(shared.world.insert("shop.items", *rows))
    shared.run(shared.world.readable("shop.items", ts))
    path = "/api/v1/tables/shop.items/changes"
    with shared.beside(readers=1) as url:
        client = shared.client("root", url)
        for _ in range(3):
            with client.stream("GET", path, params={"format": "arrow"}) as streamed:
                next(streamed.iter_bytes(64))
            shared.until(
                lambda: client.get(path, params={"limit": 1}).status_code == 200, "its place stays taken"
            )


def test_what_nobody_can_read_is_told_by_its_place_not_by_its_value(shared: ApiWorld) -> None:
    client = shared.client("root")
    secret = "s3://lake/x?secret-access-key=hunter2"
    wrong = client.post("/api/v1/changefeeds", json={"id": "a b", "sink_uri": secret, "tables": 7})
    assert wrong.status_code == 400
    assert "hunter2" not in wrong.text
    assert "body." in wrong.json()["detail"]
    assert (
        client.post(
            "/api/v1/changefeeds", content=b"{", headers={"Content-Type": "application/json"}
        ).status_code
        == 400
    )
    assert client.get("/api/v1/tables/none").status_code == 400
    assert client.put("/api/v1/me").status_code == 405


def test_the_log_has_no_token_no_query_and_no_body(
    shared: ApiWorld, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    logging.getLogger("penstock").propagate = True
    client = shared.client("ann")
    client.get("/api/v1/search/of_ann.items/none", params={"q": "private-words"})
    client.get("/api/v1/tables/x%0Aforged.line")
    client.post("/api/v1/changefeeds", json={"id": "x", "sink_uri": "file:///private-place?protocol=csv"})
    lines = [record for record in caplog.records if record.name == "penstock.api.middleware"]
    assert {"of_ann", "search"} <= {
        part for line in lines for part in vars(line)["path"].replace(".", "/").split("/")
    }
    assert all(vars(line)["account"] == "ann" for line in lines)
    whole = "\n".join(str(vars(record)) for record in caplog.records if record.name.startswith("penstock"))
    assert "private" not in whole
    assert not any(token in whole for token in TOKENS.values())
    assert not any("\n" in vars(line)["path"] for line in lines)


def test_requests_are_counted_by_route_and_not_by_name(shared: ApiWorld) -> None:
    shared.client("root").get("/api/v1/tables/some.table")
    shared.client("root").request("BREW", "/coffee")
    shown = shared.client("root").get("/metrics").text
    assert 'route="/api/v1/tables/{table}",status="404"' in shown
    assert 'method="other",route="none"' in shown
    assert "coffee" not in shown
