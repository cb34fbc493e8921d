"""Nobody else on the machine sees the secrets of a Spark session, connects to it, or reads its blocks."""

import json
import os
import socket
import stat
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.doctor.findings import CheckResult
from penstock.cli.doctor.machine import check_spark_secret
from penstock.errors import Invalid
from penstock.settings import SparkSettings
from penstock.spark import jvm
from penstock.spark.jvm import parse_master
from penstock.spark.session import require_secret, security_conf, session_conf
from support.spark import SHORT_LIVED
from support.sparkcluster import SparkCluster

KEY, OPTION, AUTH = "hadoop-key-0123456789", "java-option 0123456789", "cluster-secret-0123456789"
RPC_REQUEST = 3
JAVA_OBJECT = bytes.fromhex("aced0005740005") + b"hello"
ODD = 'a = b: "c"  \\d # é 漢\t!'

SESSION = """
import json, sys
from pathlib import Path
from penstock.settings import Settings, SparkSettings
from penstock.spark.session import build_session

given = json.loads(sys.stdin.readline())
spark = build_session(Settings(spark=SparkSettings(**given)))
context = spark.sparkContext
jvm = context._jvm
conf = context.getConf()
rows = spark.range(1000).repartition(2).mapInArrow(lambda batches: batches, "id long").count()
print(json.dumps({
    "rows": rows,
    "hadoop": context._jsc.hadoopConfiguration().get("fs.s3a.secret.key"),
    "option": jvm.java.lang.System.getProperty("penstock.attack"),
    "odd": conf.get("spark.odd"),
    "odd_at_start": jvm.java.lang.System.getProperty("spark.odd"),
    "pid": int(jvm.java.lang.ProcessHandle.current().pid()),
    "conf": dict(conf.getAll()),
}), flush=True)
sys.stdin.readline()
"""


def session_facts(given: dict[str, Any], seen: set[str]) -> dict[str, Any]:
    """Run a session in a process of its own; add the command lines of all its processes to `seen`."""
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.1):
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    seen.add(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
                except OSError:  # it has ended
                    continue

    watching = threading.Thread(target=look)
    command = [sys.executable, "-c", SESSION]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        watching.start()
        try:
            assert child.stdin is not None
            assert child.stdout is not None
            print(json.dumps(given), file=child.stdin, flush=True)
            facts = json.loads(child.stdout.readline())
            facts["java"] = Path(f"/proc/{facts['pid']}/cmdline").read_text().split("\0")
            facts["listening"] = listening(facts["pid"])
            facts["stranger"] = call_as_stranger(facts["conf"])
            blocks = facts["conf"].get("spark.local.dir")
            facts["blocks"] = blocks and stat.S_IMODE(Path(blocks).stat().st_mode)
        finally:
            ended.set()
            watching.join()
            child.communicate("\n", timeout=60)
    return dict(facts)


def call_as_stranger(conf: dict[str, str]) -> str:
    """Send an object to the driver without any secret, as an executor would; return the answer."""
    address = conf["spark.driver.bindAddress"], int(conf["spark.driver.port"])
    body = b"\x00\x00\x00" + JAVA_OBJECT
    message = struct.pack(">BQI", RPC_REQUEST, 1, len(body)) + body
    with socket.create_connection(address, 10) as connection:
        connection.sendall(struct.pack(">Q", 8 + len(message)) + message)
        connection.settimeout(10)
        return connection.recv(1 << 16).decode(errors="replace")


def listening(pid: int) -> set[str]:
    """The addresses, in hexadecimal, at which a process listens."""
    inodes = set()
    for handle in Path(f"/proc/{pid}/fd").iterdir():
        try:
            inodes.add(str(handle.readlink()))
        except FileNotFoundError:
            continue
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                found.add(fields[1].partition(":")[0])
    return found


def test_a_local_session_shows_no_secret_and_lets_nobody_in() -> None:
    conf = {
        "spark.hadoop.fs.s3a.secret.key": KEY,
        "spark.driver.extraJavaOptions": f"{SHORT_LIVED} '-Dpenstock.attack={OPTION}'",
        "spark.odd": ODD,
        "spark.sql.shuffle.partitions": "2",
    }
    seen: set[str] = set()
    facts = session_facts({"master": "local[2]", "driver_memory": "1g", "conf": conf}, seen)
    assert facts["rows"] == 1000
    assert (facts["hadoop"], facts["option"]) == (KEY, OPTION)
    assert (facts["odd"], facts["odd_at_start"]) == (ODD, ODD)
    assert " ".join(facts["java"]).strip() in {line.strip() for line in seen}
    assert not [line for line in seen if KEY in line or OPTION in line]
    (properties,) = (word for word in facts["java"] if word.endswith("spark.properties"))
    assert not Path(properties).exists()
    assert "Expected SaslMessage" in facts["stranger"], "nothing is read before authentication"
    assert facts["blocks"] == 0o700
    loopback = {"0100007F", "0000000000000000FFFF00000100007F"}
    assert facts["listening"]
    assert facts["listening"] <= loopback


def test_what_is_written_for_java_is_private_under_any_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        path = jvm._write_conf({"spark.a": KEY, jvm.DRIVER_JAVA_OPTIONS: "-Da=b"}, tmp_path)
    finally:
        os.umask(before)
    assert {stat.S_IMODE(made.stat().st_mode) for made in tmp_path.iterdir()} == {0o600}
    assert f"spark.a={KEY}\n" in path.read_text()


@pytest.mark.parametrize(
    ("master", "conf", "secured"),
    [
        ("local[2]", {}, True),
        ("spark://a:7077", {"spark.authenticate.secret": AUTH}, True),
        ("spark://a:7077", {}, False),  # `require_secret` refuses it
        ("yarn", {}, False),
    ],
)
def test_spark_authenticates_where_both_sides_can_know_the_secret(
    master: str, conf: dict[str, str], secured: bool
) -> None:
    found = security_conf(SparkSettings(conf=conf), parse_master(master))
    assert set(found.values()) == ({"true"} if secured else set())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"master": "spark://10.0.0.5:7077"}, "has no secret"),
        ({"master": "spark://127.0.0.1:7077,spark.internal:7077"}, "has no secret"),
        (
            {
                "master": "spark://a:7077",
                "conf": {"spark.authenticate.secret": AUTH, "spark.authenticate": "false"},
            },
            "spark.authenticate off",
        ),
        ({"master": "spark://a:7077", "insecure": True}, ""),
        ({"master": "spark://a:7077", "conf": {"spark.authenticate.secret": AUTH}}, ""),
        ({"master": "spark://127.0.0.1:7077,localhost:7078"}, "has no secret"),
        ({"master": "spark://localhost:7077", "insecure": True}, ""),
        ({"master": "yarn"}, ""),
        ({"master": "local[2]"}, ""),
    ],
)
def test_a_standalone_master_is_not_used_without_a_secret_by_mistake(
    settings: dict[str, Any], words: str, tmp_path: Path
) -> None:
    wanted = SparkSettings(**settings)
    finding = check_spark_secret(wanted, {"SPARK_CONF_DIR": str(tmp_path)})
    if not words:
        require_secret(wanted, parse_master(wanted.master))
        assert finding.verdict is (CheckResult.WARN if wanted.insecure else CheckResult.OK)
        return
    with pytest.raises(Invalid, match=words) as refused:
        require_secret(wanted, parse_master(wanted.master))
    assert AUTH not in str(refused.value)
    assert finding.verdict is CheckResult.BAD
    assert "spark.insecure: true" in finding.remedy


def test_the_users_own_values_win() -> None:
    conf = {"spark.network.crypto.enabled": "false", "spark.local.dir": "/mine"}
    wanted, master = SparkSettings(conf=conf), parse_master("local")
    assert security_conf(wanted, master) == {
        "spark.authenticate": "true",
        "spark.network.crypto.enabled": "false",
    }
    assert session_conf(wanted, master, app_name="a", allocations=Path("/a"))["spark.local.dir"] == "/mine"


def test_a_standalone_cluster_with_a_secret_is_talked_to_in_secret(tmp_path: Path) -> None:
    with SparkCluster(tmp_path, workers=1, auth=AUTH) as cluster:
        spark = cluster.settings().spark
        conf = {**spark.conf, "spark.hadoop.fs.s3a.secret.key": KEY, "spark.io.encryption.enabled": "true"}
        given = {**spark.model_dump(exclude={"pools"}), "conf": conf}
        seen: set[str] = set()
        facts = session_facts(given, seen)
    assert facts["rows"] == 1000
    assert "Expected SaslMessage" in facts["stranger"], "nothing is read before authentication"
    assert any("CoarseGrainedExecutorBackend" in line for line in seen)
    assert not [line for line in seen if KEY in line or AUTH in line]
