"""`penstock store` as a person uses it."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock import __version__, eventloop
from penstock.errors import Invalid
from penstock.kv import Client
from penstock.testing.store import Admin
from support.warmstart import WarmStart
from support.warmstore import WarmStore

PENSTOCK = [sys.executable, "-m", "penstock.cli.main"]


Run = Callable[..., "subprocess.CompletedProcess[str]"]
Refused = Callable[..., str]


@pytest.fixture(scope="module")
def penstock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Runs a command to its end, in a process that need not import everything again."""
    log = tmp_path_factory.mktemp("commands") / "log"

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        with log.open("w") as errors:
            child = warm.fork(arguments, errors)
        with child.stdout:
            printed = child.stdout.read()
            code = child.wait(30)
        return subprocess.CompletedProcess(arguments, code, printed, log.read_text())

    with pytest.MonkeyPatch.context() as patched:
        for name, value in {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}.items():
            patched.setenv(name, value)
        with WarmStart("penstock.cli.main", "penstock.cli.services.store") as warm:
            yield run


@pytest.fixture(scope="module")
def refused(penstock: Run) -> Refused:
    """Runs a store that must not start; gives the one line it says."""

    def run(*arguments: str) -> str:
        done = penstock("store", *arguments)
        assert done.returncode == 2, done
        assert done.stdout == ""
        (line,) = done.stderr.splitlines()
        assert line.startswith("penstock: ")
        return line

    return run


def test_the_version_is_shown() -> None:
    command = [*PENSTOCK, "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, f"penstock {__version__}")


def test_mistakes_are_answered_with_help(penstock: Run) -> None:
    command = penstock("stoer")
    assert command.returncode == 2
    assert "stoer" in command.stderr
    assert "store" in command.stderr
    option = penstock("store", "--dta", "x")
    assert option.returncode == 2
    assert "--dta" in option.stderr
    assert "--data" in option.stderr
    value = penstock("store", "--stores", "three")
    assert value.returncode == 2
    assert "--stores" in value.stderr
    listed = penstock("store", "--help")
    assert listed.returncode == 0
    for option_name in (
        "--pd-addr",
        "--data",
        "--stores",
        "--tls-ca",
        "--tls-cert",
        "--tls-key",
        "--enable-faults",
        "--config",
    ):
        assert option_name in listed.stdout


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_when_it_is_ready_and_stops_when_asked(tmp_path: Path, number: signal.Signals) -> None:
    command = [
        *PENSTOCK,
        "store",
        "--pd-addr",
        "127.0.0.1:0",
        "--data",
        str(tmp_path / "data"),
        "--stores",
        "3",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        ready = json.loads(child.stdout.readline())
        assert set(ready) == {"cluster_id", "pd", "stores"}
        assert len(ready["stores"]) == 3
        for address in (ready["pd"], *ready["stores"].values()):
            host, _, port = address.rpartition(":")
            with socket.create_connection((host, int(port)), timeout=5):
                pass
        child.send_signal(number)
        rest, errors = child.communicate(timeout=20)
    assert (child.returncode, rest) == (0, "")
    assert [line.split()[1] for line in errors.splitlines()] == ["INFO", "INFO"], errors


def test_logs_are_json_for_machines_when_asked(tmp_path: Path) -> None:
    command = [
        *PENSTOCK,
        "--log-format",
        "json",
        "store",
        "--pd-addr",
        "127.0.0.1:0",
        "--data",
        str(tmp_path),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        ready = json.loads(child.stdout.readline())
        child.send_signal(signal.SIGTERM)
        _, errors = child.communicate(timeout=30)
    lines = [json.loads(line) for line in errors.splitlines()]
    assert [line["message"] for line in lines] == ["store is ready", "store has stopped"]
    assert lines[0]["pd_addr"] == ready["pd"]


def test_a_busy_address_is_named(tmp_path: Path, refused: Refused) -> None:
    with socket.socket() as squatter:
        squatter.bind(("127.0.0.1", 0))
        squatter.listen(1)
        address = f"127.0.0.1:{squatter.getsockname()[1]}"
        line = refused("--pd-addr", address, "--data", str(tmp_path / "data"))
    assert f"address {address} cannot be bound (Address already in use)" in line


def test_a_bad_address_is_named(tmp_path: Path, refused: Refused) -> None:
    assert "'localhost' is not host:port" in refused(
        "--pd-addr", "localhost", "--data", str(tmp_path / "data")
    )
    assert "no-such-host.invalid:1 cannot be bound" in refused(
        "--pd-addr", "no-such-host.invalid:1", "--data", str(tmp_path / "data"), "--insecure"
    )


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "file").write_text("")
    line = refused("--pd-addr", "127.0.0.1:0", "--data", str(tmp_path / "file" / "data"))
    assert str(tmp_path / "file" / "data") in line


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


def test_a_directory_without_the_right_to_write_is_named(open_folder: Path) -> None:
    data = open_folder / "data"
    data.mkdir()
    data.chmod(0o555)
    script = (
        "import os, sys\nimport penstock.cli.services.store\nfrom penstock.cli.main import main\n"
        "os.geteuid() or os.setuid(65534)\nmain()\n"  # root may write everywhere
    )
    command = [sys.executable, "-c", script, "store", "--pd-addr", "127.0.0.1:0", "--data"]
    for place in (data, data / "below"):
        done = subprocess.run([*command, str(place)], capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 2, done
        (line,) = done.stderr.splitlines()
        assert str(place) in line


def test_a_directory_in_use_is_named(tmp_path: Path, refused: Refused) -> None:
    with WarmStore.start(tmp_path / "data", stores=1):
        line = refused("--pd-addr", "127.0.0.1:0", "--data", str(tmp_path / "data"))
    assert "in use by another process" in line


def test_a_damaged_directory_is_named_and_left_as_it_is(tmp_path: Path, refused: Refused) -> None:
    with WarmStore.start(tmp_path / "data", stores=1) as store:
        assert store.terminate() == 0
    manifest = next((tmp_path / "data").glob("MANIFEST-*"))
    manifest.write_bytes(b"\x00" * 64)
    line = refused("--pd-addr", "127.0.0.1:0", "--data", str(tmp_path / "data"))
    assert str(tmp_path / "data") in line
    assert "damaged" in line
    assert manifest.read_bytes() == b"\x00" * 64


def test_missing_tls_files_are_named(tmp_path: Path, refused: Refused) -> None:
    data = ("--pd-addr", "127.0.0.1:0", "--data", str(tmp_path / "data"))
    missing = str(tmp_path / "none.pem")
    line = refused(*data, "--tls-cert", missing, "--tls-key", missing)
    assert f"TLS file {missing} cannot be read" in line
    assert "--tls-cert and --tls-key" in refused(*data, "--tls-ca", missing)


def test_settings_come_from_a_file_and_the_command_line_goes_first(tmp_path: Path, refused: Refused) -> None:
    config = tmp_path / "penstock.yaml"
    config.write_text(f"store:\n  data: {tmp_path / 'data'}\n  pd_addr: 127.0.0.1:0\n  stores: 2\n")
    with WarmStore.start(tmp_path / "data", stores=3, config=config) as store:
        assert len(store.store_addrs) == 3
    config.write_text("store:\n  stores: 2\n  colour: red\n")
    assert "store.colour" in refused("--config", str(config))
    assert "store.stores" in refused("--stores", "0", "--data", str(tmp_path / "other"))
    assert "none.yaml cannot be read" in refused("--config", str(tmp_path / "none.yaml"))


def test_committed_data_survives_kill_nine(tmp_path: Path) -> None:
    with WarmStore.start(tmp_path / "data", stores=3) as store:
        with Client.connect([store.pd_addr]) as client:
            for i in range(20):
                with client.begin() as txn:
                    txn.put(b"key%02d" % i, b"%d" % i)
            before = client.timestamp()
        cluster_id, addrs = store.cluster_id, store.store_addrs
        store.kill()
        store.restart()
        assert (store.cluster_id, store.store_addrs) == (cluster_id, addrs)
        with Client.connect([store.pd_addr]) as client:
            assert client.timestamp() > before
            with client.begin() as txn:
                assert [txn.get(b"key%02d" % i) for i in range(20)] == [b"%d" % i for i in range(20)]


def test_a_crash_fault_ends_the_process_after_the_write(tmp_path: Path) -> None:
    with WarmStore.start(tmp_path / "data", stores=1) as store:
        admin = Admin(store.pd_addr)

        async def crash() -> None:
            await admin.set_faults([Admin.fault("CRASH", method="KvPrewrite")])
            async with asyncio.timeout(20):
                await asyncio.to_thread(_write_until_it_is_gone, store)

        eventloop.run(crash())
        eventloop.run(admin.close())
        assert store.wait() == -signal.SIGKILL
        store.restart()
        with Client.connect([store.pd_addr]) as client, client.begin() as txn:
            assert txn.get(b"before") is None
            assert txn.get(b"crashed") == b"1"


def _write_until_it_is_gone(store: WarmStore) -> None:
    command = [
        sys.executable,
        "-c",
        "import sys\nfrom penstock.kv import Client\nclient = Client.connect([sys.argv[1]])\n"
        "with client.begin() as txn:\n    txn.put(b'crashed', b'1')\n",
        store.pd_addr,
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as writer:
        store.wait()
        writer.kill()


def test_faults_are_off_unless_they_were_enabled(tmp_path: Path) -> None:
    with WarmStore.start(tmp_path / "data", stores=1, faults=False) as store:
        admin = Admin(store.pd_addr)
        with pytest.raises(Invalid, match="--enable-faults"):
            eventloop.run(admin.set_faults([Admin.fault("DROP")]))
        eventloop.run(admin.close())


def test_a_store_process_that_refuses_says_why(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="is not host:port"):
        WarmStore.start(tmp_path / "data", pd_addr="nonsense")
