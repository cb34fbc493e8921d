"""What is checked and decided before Java is started."""

import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from penstock.errors import Invalid, Unavailable
from penstock.settings import PoolSettings, Settings, SparkSettings, parse
from penstock.spark.jvm import major_version, parse_master, require_java, require_master
from penstock.spark.session import allocation_file, session_conf
from penstock.spark.supervised import SupervisedSession


def java(folder: Path, version: str) -> dict[str, str]:
    """An environment whose Java says that it has a version."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{version}' >&2\n")
    program.chmod(0o755)
    return {"JAVA_HOME": str(folder)}


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_311"', 8),
        ('openjdk version "25" 2025-09-16', 25),
        ('Picked up _JAVA_OPTIONS: -Dx\nopenjdk version "21-ea" 2023-09-19', 21),
        ("no such thing", None),
    ],
)
def test_the_version_of_java_is_read_from_what_it_says(text: str, version: int | None):
    assert major_version(text) == version


def test_java_17_will_do(tmp_path: Path):
    require_java(java(tmp_path, 'openjdk version "17.0.1" 2021-10-19'))


def test_an_old_java_is_refused_with_what_to_install(tmp_path: Path):
    with pytest.raises(Invalid, match=r"is version 11; install Java 17 or newer .* set JAVA_HOME to it"):
        require_java(java(tmp_path, 'openjdk version "11.0.2" 2019-01-15'))


def test_a_java_that_says_nothing_is_refused(tmp_path: Path):
    with pytest.raises(Invalid, match="does not say its version"):
        require_java(java(tmp_path, "hello"))


def test_a_missing_java_is_refused_with_what_to_install(tmp_path: Path):
    with pytest.raises(Invalid, match="none on the PATH; install Java 17 or newer"):
        require_java({"PATH": str(tmp_path)})


def test_a_wrong_java_home_is_named(tmp_path: Path):
    with pytest.raises(Invalid, match="has no bin/java; correct it or unset it"):
        require_java({"JAVA_HOME": str(tmp_path), "PATH": "/usr/bin"})


@pytest.mark.parametrize("url", ["local", "local[*]", "local[4]", "local[2, 3]"])
def test_a_local_master_is_in_this_process_and_needs_nothing(url: str):
    master = parse_master(url)
    assert master.in_process
    require_master(master)


@pytest.mark.parametrize(
    ("url", "addresses"),
    [
        ("spark://a:7077", (("a", 7077),)),
        ("spark://a:7077,b:7078", (("a", 7077), ("b", 7078))),
        ("k8s://https://api:6443", (("api", 6443),)),
        ("k8s://api", (("api", 443),)),
        ("k8s://http://api", (("api", 80),)),
    ],
)
def test_a_cluster_is_where_its_url_says(url: str, addresses: tuple[tuple[str, int], ...]):
    assert parse_master(url).addresses == addresses
    assert not parse_master(url).in_process


@pytest.mark.parametrize(
    "url", ["", "lokal", "local[0]", "spark://", "spark://a", "spark://a:x", "mesos://a:1"]
)
def test_what_is_no_master_is_refused_with_what_there_is(url: str):
    with pytest.raises(Invalid, match=r"use local\[\*\]"):
        parse_master(url)


@pytest.mark.parametrize("url", ["sc://host", "sc://host:15002/;token=x"])
def test_a_server_of_spark_connect_has_its_own_port(url: str):
    assert parse_master(url).addresses == (("host", 15002),)


def test_yarn_needs_its_configuration():
    with pytest.raises(Invalid, match="set HADOOP_CONF_DIR"):
        require_master(parse_master("yarn"), {})
    require_master(parse_master("yarn"), {"YARN_CONF_DIR": "/etc/hadoop"})


def test_a_master_that_does_not_answer_is_unavailable_at_once():
    with socket.socket() as bound:  # bound, but nobody listens
        bound.bind(("127.0.0.1", 0))
        url = f"spark://127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(Unavailable, match=r"does not answer .*; start it, or correct spark\.master"):
            require_master(parse_master(url))


def test_the_token_of_a_server_of_spark_connect_is_not_shown():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(Unavailable) as refused:
        require_master(parse_master(f"sc://127.0.0.1:{port}/;token=s3cret"))
    assert f"sc://127.0.0.1:{port}/ does not answer" in str(refused.value)
    assert "s3cret" not in str(refused.value)
    with pytest.raises(Invalid) as refused_too:
        parse_master("sd://host/;token=s3cret")
    assert "s3cret" not in str(refused_too.value)


def test_a_server_of_spark_connect_needs_no_java_here(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"sc://127.0.0.1:{server.getsockname()[1]}"
        SupervisedSession(Settings(spark=SparkSettings(master=url)), app_name="test").check()


class Java:
    """Is killed, or not."""

    killed = False

    def kill(self) -> None:
        self.killed = True


@pytest.mark.parametrize("lives", [True, False])
def test_java_is_killed_four_seconds_after_a_signal_and_at_once_while_it_starts(
    lives: bool, monkeypatch: pytest.MonkeyPatch
):
    timers: list[tuple[float, Callable[[], None]]] = []

    class Timer:
        def __init__(self, seconds: float, work: Callable[[], None]) -> None:
            timers.append((seconds, work))

        def start(self) -> None:
            pass

    monkeypatch.setattr("penstock.spark.supervised.threading.Timer", Timer)
    session = SupervisedSession(Settings(), app_name="test")
    session._java = java = Java()
    session._spark = SimpleNamespace(sparkContext=object()) if lives else None
    session.interrupt()
    assert java.killed is not lives
    ((seconds, kill),) = timers
    assert seconds == 4
    kill()
    assert java.killed
    session.interrupt()
    assert len(timers) == 1, "a second signal does not prolong it"


def test_one_of_several_masters_is_enough():
    with socket.socket() as bound, socket.create_server(("127.0.0.1", 0)) as listening:
        bound.bind(("127.0.0.1", 0))
        ports = [each.getsockname()[1] for each in (bound, listening)]
        require_master(parse_master(f"spark://127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}"))


def test_pools_become_sparks_allocation_file():
    root = ElementTree.fromstring(allocation_file({"a & b": PoolSettings(weight=3, min_share=2)}))
    (pool,) = root
    assert pool.attrib == {"name": "a & b"}
    assert {each.tag: each.text for each in pool} == {
        "schedulingMode": "FAIR",
        "weight": "3",
        "minShare": "2",
    }


def conf(**settings: object) -> dict[str, str]:
    wanted = SparkSettings.model_validate(settings)
    return session_conf(wanted, parse_master(wanted.master), app_name="x", allocations=Path("/p.xml"))


def test_web_pages_are_off_unless_they_have_a_port():
    assert conf()["spark.ui.enabled"] == "false"
    found = conf(ui_port=4041)
    assert (found["spark.ui.enabled"], found["spark.ui.port"]) == ("true", "4041")


def test_a_local_session_listens_on_loopback_only():
    assert conf()["spark.driver.bindAddress"] == "127.0.0.1"
    assert "spark.driver.bindAddress" not in conf(master="spark://a:7077")


def test_further_configuration_wins_but_keeps_the_console_quiet():
    own = {f"spark.{each}.extraJavaOptions": "-Dmine=1" for each in ("driver", "executor")}
    found = conf(conf={"spark.scheduler.mode": "FIFO", **own})
    assert found["spark.executor.extraJavaOptions"].endswith(" -Dmine=1")
    assert "-Darrow." in found["spark.executor.extraJavaOptions"]
    assert found["spark.scheduler.mode"] == "FIFO"
    assert found["spark.driver.extraJavaOptions"].endswith(" -Dmine=1")
    assert "-Dlog4j2.configurationFile=file:" in found["spark.driver.extraJavaOptions"]


def test_settings_take_yaml_numbers_and_refuse_what_is_not_sparks():
    tree = {"spark": {"conf": {"spark.executor.cores": 2, "spark.x": True}}}
    assert parse(tree).spark.conf == {"spark.executor.cores": "2", "spark.x": "true"}
    with pytest.raises(Invalid, match=r"'executor\.cores' is not a Spark key"):
        parse({"spark": {"conf": {"executor.cores": "2"}}})
    with pytest.raises(Invalid, match=r"spark\.driver_memory = '2 GB' is refused"):
        parse({"spark": {"driver_memory": "2 GB"}})
