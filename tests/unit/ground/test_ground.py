"""Errors, clock, logs, metrics, the shared loop and the message files."""

import asyncio
import io
import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.metrics import MetricWrapperBase

import penstock
from penstock import clock, errors, eventloop, metrics, process
from penstock.proto import services

SOURCE = Path(penstock.__file__).parent


def test_the_error_tree_is_the_one_in_its_docstring() -> None:
    doc = errors.__doc__
    assert doc is not None
    classes = [name for name in errors.__all__ if name[0].isupper()]
    assert errors.__all__ == sorted(errors.__all__)
    assert all(issubclass(getattr(errors, name), errors.PenstockError) for name in classes)
    assert all(name in doc for name in classes)


def test_a_shown_key_names_the_table_and_never_the_row() -> None:
    key = b"t" + bytes(8) + b"_r" + b"customer-4711"
    shown = errors.show_key(key)
    assert b"customer".hex() not in shown
    assert "24 bytes" in shown
    assert errors.show_key(b"ab") == "0x6162"


def test_a_timestamp_is_milliseconds_and_a_counter() -> None:
    ts = clock.compose_ts(1_700_000_000_000, 7)
    assert (clock.physical_ms(ts), clock.logical(ts)) == (1_700_000_000_000, 7)
    assert ts == (1_700_000_000_000 << 18) + 7


def test_a_seed_repeats_randomness_and_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_SEED", "42")
    one, two = clock.SystemClock(), clock.SystemClock()
    assert [one.random(), one.unique_id()] == [two.random(), two.unique_id()]
    monkeypatch.delenv("PENSTOCK_SEED")
    assert clock.SystemClock().unique_id() != clock.SystemClock().unique_id()


@pytest.fixture
def restored_logs():
    root = logging.getLogger("penstock")
    before = (root.handlers, root.level, root.propagate)
    yield
    root.handlers, root.level, root.propagate = before


def test_logs_are_one_json_object_a_line_with_their_facts(restored_logs) -> None:
    out = io.StringIO()
    process.configure_logs(style="json", stream=out)
    logging.getLogger("penstock.test").info("region split", extra={"region_id": 7})
    line = json.loads(out.getvalue())
    assert line["message"] == "region split"
    assert (line["region_id"], line["level"], line["logger"]) == (7, "info", "penstock.test")


def test_text_logs_show_the_facts_behind_the_message(restored_logs) -> None:
    out = io.StringIO()
    process.configure_logs(stream=out, level="WARNING")
    logging.getLogger("penstock.test").info("unseen")
    logging.getLogger("penstock.test").warning("slow store", extra={"store_id": 2})
    assert out.getvalue().endswith("penstock.test: slow store store_id=2\n")
    assert "unseen" not in out.getvalue()


def test_lines_of_json_say_of_which_part_they_are(restored_logs) -> None:
    out = io.StringIO()
    process.configure_logs(style="json", part="capture-1", stream=out)
    logging.getLogger("penstock.test").info("region split")
    assert json.loads(out.getvalue())["part"] == "capture-1"


def declared_metrics() -> dict[str, MetricWrapperBase]:
    return {name: value for name, value in vars(metrics).items() if isinstance(value, MetricWrapperBase)}


def test_every_metric_has_the_prefix_and_a_help_text() -> None:
    found = declared_metrics()
    assert found
    for metric in found.values():
        assert metric._name.startswith("penstock_")
        assert metric._documentation.endswith(".")


def test_every_declared_metric_is_observed_somewhere() -> None:
    text = "\n".join(
        path.read_text()
        for path in SOURCE.rglob("*.py")
        if path != SOURCE / "metrics.py" and "_pb2" not in path.name
    )
    unused = [name for name in declared_metrics() if f"metrics.{name}" not in text and f" {name}" not in text]
    assert unused == []


def test_the_shared_loop_runs_work_of_other_threads_and_raises_what_it_raises() -> None:
    async def answer() -> int:
        return 42

    async def fail() -> None:
        raise errors.Unavailable("no store")

    assert eventloop.run(answer()) == 42
    assert eventloop.shared_loop() is eventloop.shared_loop()
    with pytest.raises(errors.Unavailable, match="no store"):
        eventloop.run(fail())


async def test_async_tests_run_on_the_shared_loop() -> None:
    assert asyncio.get_running_loop() is eventloop.shared_loop()


def test_method_tables_come_from_the_descriptors() -> None:
    get = services.methods("tikvpb.Tikv")["KvGet"]
    assert get.path == "/tikvpb.Tikv/KvGet"
    assert get.arity == "unary_unary"
    assert services.methods("pdpb.PD")["Tso"].arity == "stream_stream"
    assert services.methods("cdcpb.ChangeData")["EventFeedV2"].arity == "stream_stream"


def test_generated_messages_are_those_of_the_proto_files(tmp_path: Path) -> None:
    root = SOURCE.parent
    protos = sorted(str(path.relative_to(root)) for path in (SOURCE / "proto").glob("*.proto"))
    command = [
        sys.executable,
        "-m",
        "grpc_tools.protoc",
        "-I.",
        f"--python_out={tmp_path}",
        f"--pyi_out={tmp_path}",
    ]
    subprocess.run([*command, *protos], cwd=root, check=True)
    for made in tmp_path.rglob("*_pb2.py*"):
        assert made.read_text() == (root / made.relative_to(tmp_path)).read_text(), (
            f"run 'make proto' ({made.name})"
        )
