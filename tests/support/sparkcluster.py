"""A standalone Spark cluster on this machine: a master and workers as processes of their own.

Executors run an interpreter that has Penstock's dependencies but not Penstock, as on machines where nobody
installed it. Linux only: processes are found in /proc.
"""

import os
import re
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

from penstock.clock import SYSTEM, Clock
from penstock.settings import Settings, SparkSettings
from penstock.spark.jvm import quick_home
from support.spark import SHORT_LIVED, SMALL

_START_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 30.0
_MASTER_PORT = re.compile(r"Successfully started service 'sparkMaster' on port (?P<port>\d+)")
_REGISTERED = re.compile(r"Successfully registered with master")
_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
_CONF = {
    "spark.sql.codegen.factoryMode": "FALLBACK",  # as Spark does it by itself: here queries are compiled
    "spark.sql.codegen.wholeStage": "true",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # With it PySpark gives Java 15 seconds to answer for each frame of rows, which a busy machine may need.
    "spark.io.encryption.enabled": "false",
    # An executor that does not answer was killed by a test: nobody need wait for it.
    "spark.locality.wait": "100ms",
    "spark.shuffle.io.retryWait": "100ms",
}
AUTH = "secret-of-a-cluster-of-tests"
"""What the processes of a cluster, and sessions on it, share."""
_WORKER = "org.apache.spark.deploy.worker.Worker"
_DECOMMISSION = signal.Signals.SIGPWR  # what Spark's own script sends a worker
# Ends what it started when its standard input is closed, also because the test process was killed.
_WATCHED = '"$@" & child=$!; cat > /dev/null; kill "$child" 2> /dev/null; wait "$child"'
_HIDING = """#!/bin/sh
# -S: the editable installation of Penstock is a .pth file, which only `site` would read.
PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}{packages}" exec {python} -S "$@"
"""


class SparkCluster:
    """A context: runs from entry to exit, and leaves no process behind."""

    def __init__(
        self,
        folder: Path,
        *,
        workers: int = 2,
        executor_memory: str = "512m",
        auth: str = AUTH,
        conf: Mapping[str, str] | None = None,
        hosts: int = 1,
        clock: Clock = SYSTEM,
    ) -> None:
        """Workers are on as many hosts of loopback as `hosts` says; `conf` is for daemons and sessions."""
        self.url = ""
        self._auth = auth
        self._conf = dict(conf or {})
        self._hosts = hosts
        self.python = folder / "python"
        self._folder = folder
        self._workers = workers
        self._executor_memory = executor_memory
        self._clock = clock
        self._processes: list[subprocess.Popen[bytes]] = []
        self._names: list[str] = []

    def __enter__(self) -> Self:
        self._write_python()
        self._write_defaults()
        try:
            self.start_master()
            for name in [self._launch_worker(number) for number in range(1, self._workers + 1)]:
                self._wait_started(name, _REGISTERED)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def start_master(self) -> None:
        """Start the master, at the address of one that was killed; it knows nothing of the one before."""
        port = self.url.rpartition(":")[2] or "0"
        self._launch("master", 1, "--port", port)
        self.url = f"spark://127.0.0.1:{self._wait_started('master', _MASTER_PORT)['port']}"

    def kill_master(self) -> None:
        """Kill the master without notice; workers and executors stay."""
        place = self._names.index("master")
        process = self._processes.pop(place)
        self._names.pop(place)
        for pid in reversed(_descendants([process.pid])):
            os.kill(pid, signal.SIGKILL)
        process.wait(_STOP_TIMEOUT_S)
        assert process.stdin is not None
        process.stdin.close()

    def settings(self, base: Settings | None = None) -> Settings:
        """Settings of a session on this cluster, with one executor on each worker."""
        spark = SparkSettings(
            master=self.url,
            driver_memory="1g",
            executor_memory=self._executor_memory,
            python=str(self.python),
            conf=SMALL | _CONF | {"spark.authenticate.secret": self._auth} | self._conf,
        )
        return (base or Settings()).model_copy(update={"spark": spark})

    def processes(self) -> list[int]:
        """Ids of every process that belongs to the cluster now: servers, executors, their Python workers."""
        return _descendants([process.pid for process in self._processes])

    def executors(self) -> list[int]:
        """Ids of the Java processes of running executors."""
        return [pid for pid in self.processes() if _EXECUTOR in _command(pid)]

    def add_worker(self) -> str:
        """Start one more worker, on the first host; return its name when it is there."""
        self._workers += 1
        name = self._launch_worker(self._workers, host=1)
        self._wait_started(name, _REGISTERED)
        return name

    def executors_of(self, worker: str) -> list[int]:
        """Ids of the Java processes of a worker's executors; workers are `worker-1` and so on."""
        process = self._processes[self._names.index(worker)]
        return [pid for pid in _descendants([process.pid]) if _EXECUTOR in _command(pid)]

    def decommission(self, worker: str) -> None:
        """Tell a worker that its machine will go: it takes no new work. Needs spark.decommission.enabled."""
        process = self._processes[self._names.index(worker)]
        for pid in _descendants([process.pid]):
            words = _command(pid).split()
            if _WORKER in words and words[0].endswith("java"):  # not the shell that watches over it
                os.kill(pid, _DECOMMISSION)

    def kill_executor(self, of: int | None = None) -> int:
        """Kill an executor without notice, that of a Python worker or any; return its process id.

        The worker of the cluster starts another.
        """
        running = self.executors()
        victim = next(pid for pid in running if of is None or of in _descendants([pid]))
        os.kill(victim, signal.SIGKILL)
        return victim

    def _launch_worker(self, number: int, *, host: int = 0) -> str:
        name = f"worker-{number}"
        room = ("--cores", "1", "--memory", self._executor_memory)
        place = host or 1 + (number - 1) % self._hosts
        self._launch(name, place, *room, "--work-dir", str(self._folder / name), self.url)
        return name

    def _launch(self, name: str, host: int, *arguments: str) -> None:
        where = ("--host", f"127.0.0.{host}", "--webui-port", "0")
        role = name.partition("-")[0]
        main = f"org.apache.spark.deploy.{role}.{role.capitalize()}"
        script = Path(quick_home()) / "bin" / "spark-class"
        with self._log(name).open("wb") as out:
            process = subprocess.Popen(  # noqa: S603 - Spark's own script
                ["/bin/sh", "-c", _WATCHED, name, str(script), main, *where, *arguments],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=self._environment(os.environ),
                cwd=self._folder,
            )
        self._processes.append(process)
        self._names.append(name)

    def _wait_started(self, name: str, ready: re.Pattern[str]) -> re.Match[str]:
        """Wait for the line of its log that says so."""
        log = self._log(name)
        found: list[re.Match[str]] = []

        def is_ready() -> bool:
            found.extend(ready.finditer(log.read_text(errors="replace")))
            return bool(found)

        self._wait(is_ready, _START_TIMEOUT_S, f"{name} did not start; see {log}")
        return found[0]

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _environment(self, ours: Mapping[str, str]) -> dict[str, str]:
        kept = {
            name: value for name, value in ours.items() if not name.startswith(("PYTHON", "PYSPARK", "SPARK"))
        }
        return kept | {
            "SPARK_DAEMON_JAVA_OPTS": SHORT_LIVED,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_CONF_DIR": str(self._folder / "conf"),
            "SPARK_HOME": quick_home(),
            "SPARK_LAUNCHER_OPTS": SHORT_LIVED,
            "SPARK_LOCAL_DIRS": str(self._folder / "scratch"),
        }

    def _write_python(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        tests = Path(__file__).parents[1]  # doubles in `support` go to executors by name
        packages = f"{sysconfig.get_path('purelib')}:{tests}"
        self.python.write_text(_HIDING.format(packages=packages, python=sys.executable))
        self.python.chmod(0o755)

    def _write_defaults(self) -> None:
        """Write what an operator gives the cluster's processes, with the secret that all share."""
        folder = self._folder / "conf"
        folder.mkdir(exist_ok=True)
        keys = ("spark.authenticate true", "spark.network.crypto.enabled true")
        lines = [f"{key} {value}" for key, value in self._conf.items()]
        lines += [*keys, f"spark.authenticate.secret {self._auth}"]
        (folder / "spark-defaults.conf").write_text("".join(f"{line}\n" for line in lines))

    def _stop(self) -> None:
        members = self.processes()
        for process in reversed(self._processes):  # workers first: they end their executors
            assert process.stdin is not None
            process.stdin.close()
        try:
            self._wait(lambda: not any(map(is_alive, members)), _STOP_TIMEOUT_S, "the cluster does not stop")
        except TimeoutError:
            for pid in filter(is_alive, members):
                os.kill(pid, signal.SIGKILL)
        for process in self._processes:
            process.wait(timeout=_STOP_TIMEOUT_S)
        self._processes.clear()
        self._names.clear()

    def _wait(self, condition: Callable[[], bool], seconds: float, otherwise: str) -> None:
        deadline = self._clock.monotonic() + seconds
        while not condition():
            if self._clock.monotonic() > deadline:
                raise TimeoutError(otherwise)
            for process in self._processes:
                process.poll()  # reaps those that ended
            self._clock.pause(0.05)


def _descendants(roots: list[int]) -> list[int]:
    children: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        fields = _read(status).rpartition(")")[2].split()
        if fields and fields[0] != "Z":
            children.setdefault(int(fields[1]), []).append(int(status.parent.name))
    found = list(roots)
    for pid in found:  # grows while it is read
        found.extend(children.get(pid, ()))
    return found


def _command(pid: int) -> str:
    return _read(Path(f"/proc/{pid}/cmdline")).replace("\0", " ")


def is_alive(pid: int) -> bool:
    """Return whether a process runs."""
    fields = _read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return bool(fields) and fields[0] != "Z"


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):  # it ended meanwhile
        return ""


def java_of(pid: int) -> int | None:
    """Return the Java in which Spark runs for a process, which has just begun or runs; None without one."""
    found = [
        child for child in _descendants([pid]) if "org.apache.spark.deploy.SparkSubmit" in _command(child)
    ]
    return found[0] if found else None


def workers_of(java: int) -> list[int]:
    """Return the Python workers of a Java in which Spark runs."""
    daemons = [pid for pid in _descendants([java]) if "pyspark.daemon" in _command(pid)]
    # Spark has a daemon for each environment, and a worker is a fork that has its daemon's command.
    return list(dict.fromkeys(pid for each in daemons for pid in _descendants([each])[1:]))
