"""Software of others that says whether Penstock is right: TiDB in one process, and TiCDC's storage consumer.

`make judges` builds both from their Go modules, of the versions in tests/judges/go/go.mod.
"""

import gzip
import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

from penstock.clock import SYSTEM, Clock
from penstock.errors import Invalid, Unavailable

__all__ = ["StorageConsumer", "TidbScript", "record"]

_PROGRAMS = Path(os.environ.get("PENSTOCK_JUDGES", Path(__file__).parents[2] / "build" / "judges"))
_RECORD_FILES = {"txn": "txns", "point": "points", "statement": "statements", "ddljob": "ddljobs"}
_IDLE = "no new dml files found since last round"
_COMPLAINTS = {
    "row changed event commit ts fallback, ignore": "ignored a row whose table had a later one",
    "Execute DDL failed, but error can be ignored": "met a statement whose effect was there already",
}
"""What the consumer only logs, and a directory in which everything comes once never causes."""
_STOP_S = 30.0
_POLL_S = 0.1


def _program(name: str) -> str:
    path = _PROGRAMS / name
    if not path.exists():
        raise Invalid(f"{path} is not built; run `make judges`, which needs Go")
    return str(path)


class TidbScript:
    """A script that TiDB runs; iterate over what TiDB did, in order. A context: TiDB ends with it.

    An item is a kind (`txn`, `point`, `statement` or `ddljob`) and its value, see tests/golden/README.md.
    With `step`, TiDB waits after each CHECKPOINT until `go_on` is called.
    """

    def __init__(self, script: Path, log: Path, *, step: bool = False) -> None:
        command = [_program("tidb-recorder"), "-script", str(script), *(["-step"] if step else [])]
        self._log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(  # noqa: S603 - built from the repository
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
            )

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            ((kind, value),) = json.loads(line).items()
            yield kind, value
        if self._process.wait(_STOP_S):
            raise Unavailable(f"TiDB failed: {self._log.read_text(errors='replace')[-1000:]}")

    def go_on(self) -> None:
        """Let TiDB leave the CHECKPOINT that it waits at."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        _end(self._process)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()


def record(script: Path, folder: Path) -> None:
    """Run a script through TiDB and keep what it did, as a folder like tests/golden/tidb-history."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "script.sql").write_bytes(script.read_bytes())
    with ExitStack() as stack:
        files = {
            kind: stack.enter_context(gzip.open(folder / f"{name}.jsonl.gz", "wt", encoding="utf-8"))
            for kind, name in _RECORD_FILES.items()
        }
        tidb = stack.enter_context(TidbScript(script, folder / "tidb.log"))
        for kind, value in tidb:
            print(json.dumps(value, ensure_ascii=False, separators=(",", ":")), file=files[kind])


class StorageConsumer:
    """TiCDC's storage consumer: it applies a directory of a changefeed to a database, again and again.

    A context: the consumer ends with it.
    """

    def __init__(
        self, upstream: str, downstream: str, log: Path, *, config: Path | None = None, clock: Clock = SYSTEM
    ) -> None:
        self._clock = clock
        self._log = log
        command = [_program("storage-consumer"), "-upstream-uri", upstream, "-downstream-uri", downstream]
        command += ["-config", str(config)] if config is not None else []
        command += ["-flush-interval", "1s", "-tz", "UTC"]
        with log.open("ab") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output)  # noqa: S603

    @property
    def log(self) -> str:
        """What the consumer wrote."""
        return self._log.read_text(errors="replace")

    def check(self) -> None:
        """Raise Unavailable with the consumer's words when it has ended or ignored something."""
        log = self.log
        if self._process.poll() is not None:
            raise Unavailable(f"TiCDC's consumer ended: {_complaint(log)}")
        for line in log.splitlines():
            for logged, meaning in _COMPLAINTS.items():
                if logged in line:
                    raise Unavailable(f"TiCDC's consumer {meaning}: {line[:1000]}")

    def catch_up(self, timeout_s: float) -> None:
        """Return when the consumer has applied every file that is there now."""
        # The round that is under way may have listed files before this moment: the second empty one has not.
        wanted = self.log.count(_IDLE) + 2
        deadline = self._clock.monotonic() + timeout_s
        while self.log.count(_IDLE) < wanted:
            self.check()
            if self._clock.monotonic() > deadline:
                raise Unavailable(
                    f"TiCDC's consumer is not done in {timeout_s:.0f} s: {_complaint(self.log)}"
                )
            self._clock.pause(_POLL_S)
        self.check()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        _end(self._process)


def _complaint(log: str) -> str:
    """The last errors and panics of a log of TiCDC, without their stacks."""
    found = [
        line for line in log.splitlines() if re.search(r"\[(ERROR|FATAL|PANIC)\]|^panic|with error", line)
    ]
    return "\n".join(re.split(r" \[(?:errorVerbose|stack)=", line)[0][:1500] for line in found[-3:])


def _end(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        process.kill()
    process.wait(_STOP_S)
