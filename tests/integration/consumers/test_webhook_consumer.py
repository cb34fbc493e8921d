"""The webhook consumer against a real server that misbehaves."""

import hashlib
import json
import random  # noqa: TID251 - seeded
import ssl
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.clock import SystemClock
from penstock.consumers.webhook import Webhook, is_signed
from penstock.errors import Fenced, Invalid, Unavailable
from penstock.tables.define import define_table
from penstock.testing.consumers import SourceModel, job_context
from support.certificates import issue
from support.webhookreceiver import WebhookReceiver

ITEMS = replace(
    define_table("items", [("id", "int primary key"), ("name", "varchar(200)"), ("n", "int")]), id=1
)


class Patient(SystemClock):
    """Does not really wait, and remembers how long it should have."""

    def __init__(self) -> None:
        super().__init__()
        self.paused: list[float] = []

    def pause(self, seconds: float) -> None:
        self.paused.append(seconds)


@pytest.fixture
def server() -> Iterator[WebhookReceiver]:
    with WebhookReceiver() as receiver:
        yield receiver


@pytest.fixture
def clock() -> Patient:
    return Patient()


class Job:
    def __init__(self, folder: Path, server: WebhookReceiver, clock: Patient, **options: str) -> None:
        given = {"url": server.url, "timeout": "10s", **options}
        self.context = replace(job_context(folder, "webhook", given), clock=clock)

    def consume(self, data: Any) -> None:
        consumer = Webhook(self.context)
        try:
            consumer.consume(data)
        finally:
            consumer.close()

    def committed_ts(self) -> int | None:
        consumer = Webhook(self.context)
        try:
            return consumer.committed_ts()
        finally:
            consumer.close()


@pytest.fixture
def job(tmp_path: Path, server: WebhookReceiver, clock: Patient) -> Job:
    return Job(tmp_path, server, clock)


def item(number: int, name: str | None = "a") -> dict[str, Any]:
    return {"id": number, "name": name, "n": number}


def names(server: WebhookReceiver) -> dict[int, Any]:
    return {key: row["name"] for (key,), row in sorted(server.rows.items())}


@pytest.mark.parametrize("form", ["json", "arrow"])
def test_changes_arrive_in_order_and_the_last_request_says_so(
    tmp_path: Path, server: WebhookReceiver, clock: Patient, form: str
) -> None:
    job = Job(tmp_path, server, clock, format=form)
    source = SourceModel(ITEMS)
    first = source.commit(item(1), item(2, None), item(3))
    job.consume(source.retriever(0, first))
    source.commit(item(1, "b"), delete=[(2,)])
    source.commit(item(2, "again"), delete=[(3,)])
    source.commit(item(2, "once more"))
    job.consume(source.retriever(first, source.ts, ends_of_updates=True))
    assert names(server) == {1: "b", 2: "once more"}
    assert server.to_ts == source.ts
    tail = server.seen[-1].headers
    digest = hashlib.sha256(server.seen[-1].body).hexdigest()[:16]
    assert tail["Idempotency-Key"] == f"0/1/job/1:{first}:{source.ts}:0-{digest}"
    assert [tail[f"Penstock-{name}"] for name in ("Kind", "Last", "Source")] == ["tail", "true", "shop.items"]
    assert [request.headers["Penstock-Kind"] for request in server.seen] == ["snapshot", "tail"]


def test_lines_say_what_happened(job: Job, server: WebhookReceiver) -> None:
    source = SourceModel(ITEMS)
    first = source.commit(item(1))
    job.consume(source.retriever(0, first))
    source.commit(item(2, 'a "quoted"\nline'), delete=[(1,)])
    job.consume(source.retriever(first, source.ts))
    lines = [json.loads(line) for line in server.seen[-1].body.splitlines()]
    assert lines == [
        {"op": "delete", "commit_ts": str(source.ts), "key": {"id": 1}},
        {"op": "upsert", "commit_ts": str(source.ts), "row": {"id": 2, "name": 'a "quoted"\nline', "n": 2}},
    ]


def test_an_iteration_without_changes_tells_its_end(job: Job, server: WebhookReceiver) -> None:
    source = SourceModel(ITEMS)
    job.consume(source.retriever(0, source.commit(item(1))))
    before = source.ts
    source.ts += 10
    job.consume(source.retriever(before, source.ts))
    assert (server.seen[-1].body, server.to_ts) == (b"", source.ts)


@pytest.mark.parametrize("form", ["json", "arrow"])
def test_bodies_are_of_limited_size(
    tmp_path: Path, server: WebhookReceiver, clock: Patient, form: str
) -> None:
    job = Job(tmp_path, server, clock, format=form, request_bytes="2KiB")
    source = SourceModel(ITEMS)
    source.commit(*(item(number, "x" * (number % 50)) for number in range(300)))
    source.commit(item(1000, "y" * 200 * 20))
    job.consume(source.retriever(0, source.ts, batch_rows=64))
    assert len(server.rows) == 301
    sizes = [len(request.body) for request in server.seen]
    assert len(sizes) > 5
    assert [size for size in sizes if size > 2048] == [size for size in sizes if size > 4000]
    assert sum(size > 2048 for size in sizes) == 1
    assert [request.headers["Penstock-Last"] for request in server.seen] == ["false"] * (len(sizes) - 1) + [
        "true"
    ]
    assert [int(request.headers["Penstock-Sequence"]) for request in server.seen] == list(range(len(sizes)))


@pytest.mark.parametrize("fault", ["500", "503:1", "429", "408", "drop", "forget", "garbage", "cut"])
def test_what_passes_is_tried_again(job: Job, server: WebhookReceiver, clock: Patient, fault: str) -> None:
    server.plan.extend([fault, fault])
    source = SourceModel(ITEMS)
    job.consume(source.retriever(0, source.commit(item(1))))
    assert names(server) == {1: "a"}
    assert len(clock.paused) == 2
    if fault == "503:1":
        assert clock.paused == [1.0, 1.0]
    elif fault == "forget":
        assert server.repeated == 2
    else:
        assert clock.paused[0] < clock.paused[1] <= 1.0


def test_what_does_not_pass_is_left_to_the_next_iteration(
    job: Job, server: WebhookReceiver, clock: Patient
) -> None:
    server.plan.extend(["500"] * 5)
    source = SourceModel(ITEMS)
    data = source.retriever(0, source.commit(item(1)))
    with pytest.raises(
        Unavailable, match=r"http://127\.0\.0\.1:\d+ answers 500; the changes are sent again later"
    ) as caught:
        job.consume(data)
    assert "hush" not in str(caught.value)
    assert len(clock.paused) == 4
    job.consume(data.again())
    assert names(server) == {1: "a"}


def test_one_idempotency_key_never_stands_for_two_bodies(
    tmp_path: Path, server: WebhookReceiver, clock: Patient
) -> None:
    """Options that are changed while an iteration is repeated cut it in other places."""
    source = SourceModel(ITEMS)
    data = source.retriever(0, source.commit(*(item(number, "x" * 50) for number in range(100))))
    for form, size in (("json", "1KiB"), ("json", "1KiB"), ("json", "3KiB"), ("arrow", "3KiB")):
        server.plan.extend(["", "", *["500"] * 5])  # it is broken off after two requests
        with pytest.raises(Unavailable):
            Job(tmp_path, server, clock, format=form, request_bytes=size).consume(data.again())
    Job(tmp_path, server, clock, request_bytes="2KiB").consume(data.again())
    bodies = {(request.headers["Idempotency-Key"], request.body) for request in server.seen}
    assert len({key for key, _ in bodies}) == len(bodies)
    first, again = (request.headers["Idempotency-Key"] for request in (server.seen[0], server.seen[2]))
    assert first == again
    assert len(server.rows) == 100


def test_a_server_that_wants_to_be_left_alone_for_long_is(
    job: Job, server: WebhookReceiver, clock: Patient
) -> None:
    server.plan.append("503:3600")
    source = SourceModel(ITEMS)
    with pytest.raises(Unavailable, match="answers 503"):
        job.consume(source.retriever(0, source.commit(item(1))))
    assert clock.paused == []


@pytest.mark.parametrize(
    ("status", "why"),
    [
        ("400", "answers 400$"),
        ("401", "answers 401; check the options headers"),
        ("413", "answers 413; lower the option request_bytes"),
        ("302", "answers 302; redirects are not followed"),
    ],
)
def test_what_is_refused_needs_somebody(
    job: Job, server: WebhookReceiver, clock: Patient, status: str, why: str
) -> None:
    server.plan.append(status)
    source = SourceModel(ITEMS)
    with pytest.raises(Invalid, match=why) as caught:
        job.consume(source.retriever(0, source.commit(item(1))))
    assert "hush" not in str(caught.value)
    assert clock.paused == []


@pytest.mark.parametrize("fault", ["hang", "trickle", "drip"])
def test_a_server_that_does_not_come_to_an_end_is_given_up(
    tmp_path: Path, server: WebhookReceiver, clock: Patient, fault: str
) -> None:
    server.plan.append(fault)
    source = SourceModel(ITEMS)
    with pytest.raises(Unavailable, match="took too long"):
        Job(tmp_path, server, clock, timeout="300ms", attempts="1").consume(
            source.retriever(0, source.commit(item(1)))
        )


def test_a_server_that_does_not_read_is_given_up(
    tmp_path: Path, server: WebhookReceiver, clock: Patient
) -> None:
    server.plan.append("deaf")
    source = SourceModel(ITEMS)
    source.commit(item(1, "x" * (32 << 20)))
    job = Job(tmp_path, server, clock, timeout="300ms", attempts="1", request_bytes="64MiB")
    with pytest.raises(Unavailable, match="took too long"):
        job.consume(source.retriever(0, source.ts))


def test_a_server_that_was_given_up_is_connected_anew(
    tmp_path: Path, server: WebhookReceiver, clock: Patient
) -> None:
    server.plan.extend(["hang", "drip", "trickle"])
    source = SourceModel(ITEMS)
    Job(tmp_path, server, clock, timeout="300ms").consume(source.retriever(0, source.commit(item(1))))
    assert names(server) == {1: "a"}


def test_requests_go_to_the_address_as_it_is_written_and_nowhere_else(
    tmp_path: Path,
    server: WebhookReceiver,
    clock: Patient,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    caplog.set_level("DEBUG")
    server.plan.extend(["500", "cut"])
    target = '/a%2Fb/../c?hush=%2B+%zz|{x}"y"'
    source = SourceModel(ITEMS)
    data = source.retriever(0, source.commit(item(1)))
    Job(tmp_path, server, clock, url=server.url.partition("/changes")[0] + target).consume(data)
    assert [request.target for request in server.seen] == [target]
    assert not any("hush" in record.getMessage() for record in caplog.records)


def test_an_iteration_that_begins_elsewhere_is_fenced(job: Job, server: WebhookReceiver) -> None:
    source = SourceModel(ITEMS)
    first = source.commit(item(1))
    second = source.commit(item(2))
    third = source.commit(item(3))
    for from_ts, to_ts in ((0, first), (first, second), (second, third)):
        job.consume(source.retriever(from_ts, to_ts))
    with pytest.raises(Fenced, match="409"):
        job.consume(source.retriever(first, second))
    assert names(server) == {1: "a", 2: "a", 3: "a"}


def test_the_server_tells_how_far_it_is(
    tmp_path: Path, server: WebhookReceiver, clock: Patient, job: Job
) -> None:
    assert job.committed_ts() is None
    asking = Job(tmp_path, server, clock, watermark_url=server.url)
    assert asking.committed_ts() == 0
    source = SourceModel(ITEMS)
    first = source.commit(item(1))
    asking.consume(source.retriever(0, first))
    assert asking.committed_ts() == first
    server.plan.extend(["500", "cut", "drop"])
    assert asking.committed_ts() == first
    server.plan.append("200")
    with pytest.raises(Invalid, match="does not answer"):
        asking.committed_ts()


def test_requests_are_signed(tmp_path: Path, server: WebhookReceiver, clock: Patient) -> None:
    server.secret = "hush"
    source = SourceModel(ITEMS)
    data = source.retriever(0, source.commit(item(1)))
    with pytest.raises(Invalid, match="answers 401"):
        Job(tmp_path, server, clock, secret="wrong").consume(data)
    Job(tmp_path, server, clock, secret="hush").consume(data.again())
    (request,) = server.seen
    now_s = clock.wall_ms() / 1000
    assert is_signed("hush", request.headers, request.body, now_s=now_s)
    assert not is_signed("hush", request.headers, request.body + b" ", now_s=now_s)
    assert not is_signed("hush", request.headers, request.body, now_s=now_s + 3600)
    for name in ("Penstock-To-Ts", "Penstock-Last", "Idempotency-Key"):
        assert not is_signed("hush", {**request.headers, name: "0"}, request.body, now_s=now_s)


def test_headers_of_ones_own_are_sent(tmp_path: Path, server: WebhookReceiver, clock: Patient) -> None:
    source = SourceModel(ITEMS)
    job = Job(tmp_path, server, clock, **{"headers.Authorization": "Bearer hush"})
    job.consume(source.retriever(0, source.commit(item(1))))
    assert server.seen[0].headers["Authorization"] == "Bearer hush"
    assert "hush" not in repr(Webhook(job.context)._options)


def test_a_server_that_is_away_is_temporary(tmp_path: Path, clock: Patient) -> None:
    context = job_context(tmp_path, "webhook", {"url": "http://127.0.0.1:1/hush", "attempts": "2"})
    source = SourceModel(ITEMS)
    with pytest.raises(Unavailable, match=r"http://127\.0\.0\.1:1 refused the connection") as caught:
        Webhook(replace(context, clock=clock)).consume(source.retriever(0, source.commit(item(1))))
    assert "hush" not in str(caught.value)


def test_certificates_are_verified(tmp_path: Path, clock: Patient) -> None:
    authority = issue(tmp_path, "authority")
    files = issue(tmp_path, "server", authority)
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    served.load_cert_chain(files.cert_path, files.key_path)
    source = SourceModel(ITEMS)
    data = source.retriever(0, source.commit(item(1)))
    with WebhookReceiver(certificate=served) as server:
        with pytest.raises(Invalid, match=r"certificate of https://127\.0\.0\.1:\d+ is not trusted"):
            Job(tmp_path, server, clock).consume(data)
        Job(tmp_path, server, clock, ca_path=str(authority.cert_path)).consume(data.again())
        assert names(server) == {1: "a"}


@pytest.mark.parametrize("form", ["json", "arrow"])
@pytest.mark.parametrize("seed", range(6))
def test_a_server_that_misbehaves_at_random_has_each_change_once(
    tmp_path: Path, server: WebhookReceiver, clock: Patient, seed: int, form: str
) -> None:
    mix = random.Random(seed)
    job = Job(
        tmp_path, server, clock, format=form, request_bytes="1KiB", attempts="3", watermark_url=server.url
    )
    source = SourceModel(ITEMS)
    from_ts = 0
    for _ in range(8):
        to_ts = source.churn(mix, commits=8)
        for _ in range(50):
            reached = job.committed_ts()
            assert reached in {from_ts, to_ts}
            if reached == to_ts:
                break
            server.plan.extend(
                mix.choices(["", "", "", "500", "drop", "forget", "garbage", "cut", "429:1"], k=6)
            )
            data = source.retriever(from_ts, to_ts, batch_rows=5, ends_of_updates=mix.random() < 0.5)
            try:
                job.consume(data)
            except Unavailable:
                server.plan.clear()
            server.plan.clear()
        assert server.to_ts == to_ts
        assert server.rows == source.at(to_ts)
        from_ts = to_ts


def test_an_arrow_body_can_be_read_alone(tmp_path: Path, server: WebhookReceiver, clock: Patient) -> None:
    source = SourceModel(ITEMS)
    first = source.commit(item(1))
    job = Job(tmp_path, server, clock, format="arrow")
    job.consume(source.retriever(0, first))
    source.commit(item(2), delete=[(1,)])
    job.consume(source.retriever(first, source.ts))
    table = pa.ipc.open_stream(server.seen[-1].body).read_all()
    assert table.to_pylist() == [
        {"id": 1, "name": None, "n": None, "_commit_ts": source.ts, "_deleted": True},
        {**item(2), "_commit_ts": source.ts, "_deleted": False},
    ]
