"""One trace, told by several processes that never speak of it with each other."""

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from monitoring.declared import metrics_by_sample
from penstock.api.routes.status import federate_metrics
from penstock.cli.up.parts import move_folders
from penstock.cli.up.supervisor import run_deployment
from penstock.control.deployment import open_deployment
from penstock.jobs.job import JobId
from penstock.jobs.spec import JobSpec
from penstock.settings import Settings
from support.jobdoubles import until
from support.tracereceiver import TraceReceiver

COLUMNS = [("id", "bigint primary key"), ("name", "varchar(64)")]


def test_processes_tell_of_the_same_trace_without_a_word_between_them(tmp_path: Path) -> None:
    with TraceReceiver() as receiver:
        settings = move_folders(
            Settings(
                store={"pd_addr": "127.0.0.1:0", "resolved_ts_interval_ms": 50},
                capture={"flight_addr": "127.0.0.1:0", "flush_interval_s": 0.5},
                jobs={"interval_s": 0.3},
                up={"changefeeds": False, "api": False},
                engine="local",  # what executors count for traces has tests of its own
                tracing={"endpoint": receiver.endpoint, "sample": 1.0},
            ),
            tmp_path,
        )
        with (
            run_deployment(settings, log_level="WARNING") as supervisor,
            open_deployment(supervisor.settings) as deployment,
        ):
            catalog = deployment.catalog
            catalog.create_database("shop")
            catalog.create_table("shop.items", COLUMNS)
            catalog.table("shop.items").insert([{"id": 1, "name": "first"}])
            job = JobId.parse("shop.items/copy")
            options = {"uri": f"file://{tmp_path}/copy"}
            spec = JobSpec.parse(
                {
                    "trigger": {"job_type": "greedy"},
                    "detail": {"consumer": {"consumer": "parquet", "options": options}},
                }
            )
            with deployment.blocking_client.begin() as txn:
                deployment.jobs().register_job(txn, job, spec)
            until(lambda: deployment.jobs().get_job(job).watermark > 0)
            with catalog.begin() as txn:
                catalog.table("shop.items").insert([{"id": 2, "name": "second"}], txn=txn)
            trace = receiver.wait_for(txn.commit_ts, "commit", "capture", "flush", "job")
            page = federate_metrics(b"", supervisor.states.parts).decode()
    services = {span.name: span.service for span in trace}
    assert services["commit"] == services["capture"] == services["flush"] == "penstock-capture"
    assert services["job"] == "penstock-jobs"
    assert len({span.trace_id for span in trace}) == 1
    assert {span.attributes["penstock.rows"] for span in trace if span.name != "commit"} == {1}
    shown = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    up = {sample.labels["part"]: sample.value for sample in shown if sample.name == "penstock_part_up"}
    assert up == {"api": 1, "store": 1, "capture-1": 1, "jobs": 1}
    known = metrics_by_sample()
    assert {
        sample.name for sample in shown if sample.name.startswith("penstock_") and sample.name not in known
    } <= {f"{name.removesuffix('_total').removesuffix('_bucket')}_created" for name in known}
    sent = {s.labels["part"]: s.value for s in shown if s.name == "penstock_tracing_spans_total"}
    assert sent["capture-1"] > 0 < sent["jobs"]
