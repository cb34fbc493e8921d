"""Every check of the doctor, made to fail for real."""

import datetime as dt
import os
import socket
import threading
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from penstock.cli.doctor import machine, network, storage, tls
from penstock.cli.doctor import network as clusterchecks
from penstock.cli.doctor import storage as storages
from penstock.cli.doctor import tls as secretfiles
from penstock.cli.doctor.command import examine
from penstock.cli.doctor.findings import CheckResult, Finding
from penstock.cli.service import MetricServer
from penstock.clock import SYSTEM
from penstock.eventstore.capture.lease import PREFIX, CaptureLease
from penstock.kv import Client
from penstock.kv.lease import LeaseRecord
from penstock.object_storage import ObjectStorage, StorageRef, open_storage
from penstock.settings import Settings, parse
from support.certificates import Identity, issue
from support.warmstore import WarmStore

OK, WARN, BAD = CheckResult.OK, CheckResult.WARN, CheckResult.BAD


def closed_port() -> str:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{held.getsockname()[1]}"


def named(findings: list[Finding], name: str) -> Finding:
    (found,) = [each for each in findings if each.name == name]
    return found


# The machine.


def test_a_java_that_is_too_old_is_told_with_the_remedy(tmp_path: Path) -> None:
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    java.chmod(0o755)
    found = machine.check_java({"PATH": str(tmp_path)})
    assert (found.verdict, "version 11" in found.what) == (BAD, True)
    assert "install Java 17" in found.remedy


def test_a_machine_without_java_is_told(tmp_path: Path) -> None:
    assert machine.check_java({"PATH": str(tmp_path)}).verdict is BAD


def test_packages_that_are_missing_or_end_the_process_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deadly.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = machine.check_packages(("json", "no_such_package", "deadly"))
    assert found.verdict is BAD
    assert "no_such_package (ModuleNotFoundError), deadly (ends the process)" in found.what
    assert machine.check_packages(("json", "numpy")).verdict is OK


# Folders.


def test_a_file_in_the_place_of_a_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    found = storage.check_folder("store.data", tmp_path / "data" / "store")
    assert (found.verdict, str(tmp_path / "data") in found.what) == (BAD, True)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_the_right_to_write_is_told(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert storage.check_folder("store.data", tmp_path / "store").verdict is BAD


def test_looking_at_a_folder_that_is_not_there_does_not_make_it(tmp_path: Path) -> None:
    found = storage.check_folder("store.data", tmp_path / "a" / "b")
    assert found.verdict in {OK, WARN}
    assert list(tmp_path.iterdir()) == []


def test_folders_of_all_parts_and_local_sinks_are_looked_at() -> None:
    settings = parse({"changefeeds": {"lake": {"sink_uri": "file:///lake/a%20b?protocol=csv"}}})
    found = dict(storage.data_folders(settings))
    assert found["changefeeds.lake.sink_uri"] == Path("/lake/a b")
    assert {"store.data", "capture.data", "jobs.data", "up.data", "capture.storage"} < found.keys()


# Ports.


def port_of(settings: Settings, key: str) -> Finding:
    (wanted,) = [each for each in network.listen_addresses(settings) if each.key == key]
    return network.check_port(wanted, settings)


@pytest.mark.parametrize(
    ("key", "tree"),
    [
        ("store.pd_addr", lambda addr: {"pd_addrs": [addr], "store": {"pd_addr": addr}}),
        ("capture.flight_addr", lambda addr: {"capture": {"flight_addr": addr}}),
        ("api.addr", lambda addr: {"api": {"addr": addr}}),
        ("metrics_addr", lambda addr: {"metrics_addr": addr}),
    ],
)
def test_a_port_that_another_program_has_is_told(key: str, tree: object, tmp_path: Path) -> None:
    assert callable(tree)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen(0)
        addr = f"127.0.0.1:{other.getsockname()[1]}"
        settings = parse({**tree(addr), "up": {"data": str(tmp_path)}})
        other.close()
        assert port_of(settings, key).verdict is OK
        with socket.create_server(("127.0.0.1", int(addr.rpartition(":")[2]))) as taken:
            taken.settimeout(0.1)
            found = _answering_nonsense(taken, settings, key)
    assert (found.verdict, addr in found.what) == (BAD, True)
    assert key in found.remedy


def _answering_nonsense(taken: socket.socket, settings: Settings, key: str) -> Finding:
    """Ask while a server ends every connection at once, so that nobody waits for an answer."""
    stopped = threading.Event()

    def serve() -> None:
        while not stopped.is_set():
            try:
                taken.accept()[0].close()
            except TimeoutError:
                continue

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        return port_of(settings, key)
    finally:
        stopped.set()
        thread.join()


def test_a_port_that_our_own_metrics_have_is_well(tmp_path: Path) -> None:
    with MetricServer.start("127.0.0.1:0") as server:
        settings = parse({"metrics_addr": server.addr, "up": {"data": str(tmp_path)}})
        found = port_of(settings, "metrics_addr")
    assert (found.verdict, "Penstock's metrics" in found.what) == (OK, True)


def test_an_address_of_another_machine_cannot_be_listened_on() -> None:
    found = port_of(parse({"api": {"addr": "192.0.2.1:8300"}}), "api.addr")
    assert (found.verdict, "cannot be listened on" in found.what) == (BAD, True)


# The cluster.


def test_a_placement_driver_that_does_not_answer_is_told() -> None:
    addr = closed_port()
    (found,) = clusterchecks.check_cluster(parse({"pd_addrs": [addr]}))
    assert (found.verdict, addr in found.what) == (BAD, True)
    assert "pd_addrs" in found.remedy


def test_an_embedded_store_that_does_not_run_is_no_harm() -> None:
    addr = closed_port()
    (found,) = clusterchecks.check_cluster(parse({"pd_addrs": [addr], "store": {"pd_addr": addr}}))
    assert (found.verdict, "penstock up" in found.remedy) == (WARN, True)


class LateClock:
    """The machine's clock, an hour behind."""

    def wall_ms(self) -> int:
        return SYSTEM.wall_ms() - 3_600_000

    monotonic, sleep, pause = SYSTEM.monotonic, SYSTEM.sleep, SYSTEM.pause
    random, unique_id = SYSTEM.random, SYSTEM.unique_id


def test_a_cluster_is_found_with_its_clock_and_its_captures(tmp_path: Path) -> None:
    with WarmStore.start(tmp_path / "store", stores=1) as store:
        settings = parse(
            {
                "pd_addrs": [store.pd_addr],
                "store": {"pd_addr": store.pd_addr},
                "up": {"data": str(tmp_path / "up")},
            }
        )
        found = clusterchecks.check_cluster(settings)
        assert {each.name: each.verdict for each in found} == {"cluster": OK, "clock": OK, "captures": WARN}
        late = named(clusterchecks.check_cluster(settings, clock=LateClock()), "clock")
        assert (late.verdict, "3,600" in late.what) == (BAD, True)
        silent = closed_port()
        with Client.connect([store.pd_addr]) as client, client.begin() as txn:
            lease = CaptureLease("capture-9", silent, LeaseRecord("data", 1, SYSTEM.wall_ms() + 60_000))
            txn.put(PREFIX + b"capture-9", lease.write())
        deaf = named(clusterchecks.check_cluster(settings), "capture capture-9")
        assert (deaf.verdict, silent in deaf.what) == (BAD, True)
        mine = port_of(settings, "store.pd_addr")
        assert (mine.verdict, str(store.cluster_id) in mine.what) == (OK, True)


# Storage.


class Careless(ObjectStorage):
    """A storage that overwrites, whatever it is told."""

    def create(self, path: str, data: bytes) -> bool:
        self.write(path, data)
        return True


def test_a_storage_that_overwrites_what_it_should_create_is_told(tmp_path: Path) -> None:
    opened = open_storage(tmp_path.as_uri())
    found = storages.probe_storage("storage capture.storage", Careless(opened.url, opened._store))
    assert (found.verdict, "overwrites" in found.what) == (BAD, True)


def test_a_probe_leaves_nothing_behind(tmp_path: Path) -> None:
    found = storages.check_storage("capture.storage", StorageRef(tmp_path.as_uri()))
    assert found.verdict is OK
    assert list(tmp_path.iterdir()) == []


def test_a_local_storage_that_is_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "events").write_text("")
    found = storages.check_storage("capture.storage", StorageRef((tmp_path / "events").as_uri()))
    assert found.verdict is BAD


def test_a_storage_that_does_not_answer_is_told_without_its_secrets() -> None:
    options = {
        "endpoint": f"http://{closed_port()}",
        "allow_http": "true",
        "region": "eu",
        "access_key_id": "AKIAVERYSECRET",
        "secret_access_key": "moresecretthanthat",
    }
    found = storages.check_storage("capture.storage", StorageRef("s3://bucket/prefix", options))
    assert found.verdict is BAD
    assert not any(value in f"{found}" for value in ("AKIAVERYSECRET", "moresecretthanthat"))


def test_a_sink_that_is_refused_is_told(tmp_path: Path) -> None:
    uri = "s3://bucket/prefix?protocol=nonsense&secret-access-key=hidden"
    settings = parse({"changefeeds": {"lake": {"sink_uri": uri}}})
    refs = dict(storages.storage_refs(settings))
    found = storages.check_storage("changefeeds.lake.sink_uri", refs["changefeeds.lake.sink_uri"])
    assert found.verdict is BAD
    assert "hidden" not in f"{found}"


# Certificates and secrets.


def expired(folder: Path, authority: Identity) -> Identity:
    """A certificate of an authority that has run out."""
    made = issue(folder, "expired", authority)
    begin = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(made.certificate.subject)
        .issuer_name(authority.certificate.subject)
        .public_key(made.key.public_key())
        .serial_number(5)
        .not_valid_before(begin)
        .not_valid_after(begin + dt.timedelta(days=365))
        .sign(authority.key, hashes.SHA256())
    )
    made.cert_path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return made


def test_certificates_are_looked_at_one_by_one(tmp_path: Path) -> None:
    authority = issue(tmp_path, "authority")
    server, old = issue(tmp_path, "server", authority), expired(tmp_path, authority)
    tree = {
        "tls": {"ca_path": str(authority.cert_path)},
        "store": {"tls": {"cert_path": str(old.cert_path), "key_path": str(old.key_path)}},
        "capture": {"flight_tls": {"cert_path": str(server.cert_path), "key_path": str(old.key_path)}},
        "api": {"tls": {"cert_path": str(tmp_path / "none.pem"), "key_path": str(server.key_path)}},
    }
    settings = parse(tree)
    found = {
        each.name: each
        for key, section in tls.tls_sections(settings)
        for each in tls.check_certificates(key, section)
    }
    assert {name: each.verdict for name, each in found.items()} == {
        "tls.ca_path": OK,
        "store.tls.cert_path": BAD,
        "capture.flight_tls.cert_path": OK,
        "capture.flight_tls.key_path": BAD,
        "api.tls.cert_path": BAD,
    }
    assert "expired at 2020-12-31" in found["store.tls.cert_path"].what


def test_secrets_that_others_can_read_are_told(tmp_path: Path) -> None:
    token, short = tmp_path / "token", tmp_path / "short"
    token.write_text("abcdefghijklmnop-secret")
    short.write_text("short")
    token.chmod(0o644)
    settings = parse(
        {
            "capture": {"flight_token_path": str(token)},
            "api": {"accounts": {"shop": {"token_path": str(short)}, "ops": {"token_path": "/no/such"}}},
        }
    )
    found = secretfiles.check_secret_files(settings)
    assert [each.verdict for each in found] == [BAD, BAD, BAD]
    assert not any("abcdefgh" in f"{each}" for each in found)
    token.chmod(0o600)
    assert named(secretfiles.check_secret_files(settings), "capture.flight_token_path").verdict is OK


def test_a_settings_file_with_a_secret_that_others_can_read_is_told(tmp_path: Path) -> None:
    config = tmp_path / "penstock.yaml"
    config.write_text("capture: {flight_token: abcdefghijklmnop}\n")
    config.chmod(0o644)
    (found,) = secretfiles.check_config_file(config)
    assert (found.verdict, "capture.flight_token" in found.what) == (WARN, True)
    assert "abcdefghijklmnop" not in f"{found}"
    config.chmod(0o600)
    assert secretfiles.check_config_file(config) == []


def test_settings_that_are_refused_leave_the_machine_to_be_looked_at(tmp_path: Path) -> None:
    config = tmp_path / "penstock.yaml"
    config.write_text("pd_adrs: []\n")
    found = examine(config)
    assert named(found, "settings").verdict is BAD
    assert {"python", "java", "packages", "open files"} < {each.name for each in found}
