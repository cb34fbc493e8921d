"""A whole deployment: `python bench/endtoend.py [--tables 8] [--rate 140] [--seconds 40]`.

Runs `penstock up` with a store, a capture and changefeeds as processes of their own, writes at a steady rate
for a while, and reads the changefeed's checkpoint from its `metadata` file, as a consumer does. Prints the
lag of the checkpoint, and the processor time and the memory of each process. Then it writes a backlog while
the changefeed is paused, and measures how long the changefeed takes for it (`--backlog 0` leaves that out).
"""

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock import Catalog, Client
from penstock.clock import physical_ms

TICK_S = 0.1
WARM_S = 15.0
WAIT_S = 240.0
BATCH_ROWS = 20_000
COLUMNS = [("id", "bigint primary key"), ("n", "bigint"), ("price", "decimal(10,2)"), ("note", "varchar(64)")]
PENSTOCK = str(Path(sys.executable).with_name("penstock"))
CPU_TICK = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    args = _arguments()
    with tempfile.TemporaryDirectory() as kept, _running(Path(kept), args) as (up, client):
        bench = Bench(Path(kept), up, client, args)
        bench.fill()
        found = bench.trickle()
        if args.backlog:
            found |= bench.backlog()
    print(json.dumps(found, indent=2) if args.json else "\n".join(f"{key:32} {found[key]}" for key in found))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=8)
    parser.add_argument("--rate", type=float, default=140.0, help="rows a second, over all tables")
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--flush-interval", default="2s")
    parser.add_argument("--protocol", default="canal-json")
    parser.add_argument("--backlog", type=int, default=400_000, help="rows, over at most four tables")
    parser.add_argument("--engine", choices=("spark", "local"), default="spark")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


@contextmanager
def _running(folder: Path, args: argparse.Namespace) -> Iterator[tuple[subprocess.Popen[bytes], Client]]:
    """Run the deployment; it is stopped at the end."""
    pd_addr = f"127.0.0.1:{_free_port()}"
    (folder / "penstock.yaml").write_text(
        f"""
pd_addrs: ['{pd_addr}']
engine: {args.engine}
store: {{data: {folder}/store, pd_addr: '{pd_addr}'}}
capture: {{data: {folder}/capture, storage: 'file://{folder}/events', flight_addr: '127.0.0.1:0'}}
up: {{data: {folder}/up, jobs: false, api: false}}
"""
    )
    command = [PENSTOCK, "up", "--config", str(folder / "penstock.yaml")]
    with (folder / "up.log").open("wb") as log:
        up = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=log)
    try:
        assert up.stdout is not None
        if not up.stdout.readline():  # one line when everything is ready
            sys.exit(f"the deployment has ended: {(folder / 'up.log').read_text()[-2000:]}")
        threading.Thread(target=up.stdout.read, daemon=True).start()
        with Client.connect([pd_addr]) as client:
            yield up, client
    finally:
        up.send_signal(signal.SIGTERM)
        up.wait(120)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class Bench:
    """The tables of a run, its changefeed, and what is measured."""

    def __init__(
        self, folder: Path, up: subprocess.Popen[bytes], client: Client, args: argparse.Namespace
    ) -> None:
        self._folder = folder
        self._up = up
        self._client = client
        self._args = args
        self._db = Catalog(client)
        self._names = [f"shop.t{number}" for number in range(args.tables)]
        self._next_id = 0

    def fill(self) -> None:
        """Create tables and changefeed, and wait until its first checkpoint has passed them."""
        self._db.create_database("shop")
        for name in self._names:
            self._db.create_table(name, COLUMNS)
        args = self._args
        uri = f"file://{self._folder}/sink?protocol={args.protocol}&flush-interval={args.flush_interval}"
        self._command("changefeed", "create", "feed", "--table", "shop.*", "--sink-uri", uri)
        began_at = time.monotonic()
        self._wait_for_checkpoint(self._client.timestamp())
        print(f"first checkpoint after {time.monotonic() - began_at:.1f} s", file=sys.stderr)

    def trickle(self) -> dict[str, object]:
        """Write at a steady rate; return the lag of the checkpoint and what the processes used."""
        ended = threading.Event()
        writer = threading.Thread(target=self._write_until, args=(ended,))
        writer.start()
        time.sleep(WARM_S)
        before, began_at, began_id = self._usage(), time.monotonic(), self._next_id
        lags = []
        while time.monotonic() - began_at < self._args.seconds:
            lags.append(time.time() - physical_ms(self._checkpoint_ts()) / 1000)
            time.sleep(TICK_S)
        after, took_s, rows = self._usage(), time.monotonic() - began_at, self._next_id - began_id
        ended.set()
        writer.join()
        found: dict[str, object] = {
            "tables": len(self._names),
            "rows/s written": round(rows / took_s, 1),
            "lag p50 s": round(statistics.median(lags), 2),
            "lag p99 s": round(statistics.quantiles(lags, n=100)[98], 2),
            "lag max s": round(max(lags), 2),
        }
        for name in sorted(after):
            cores = (after[name][0] - before.get(name, (0.0, 0))[0]) / took_s
            found[f"{name}: cores, MB"] = f"{cores:.2f}, {after[name][1] / 1e6:.0f}"
        return found

    def backlog(self) -> dict[str, object]:
        """Write a backlog while the changefeed is paused; return how fast the changefeed has taken it."""
        self._command("changefeed", "pause", "feed")
        names = self._names[:4]
        for number in range(0, self._args.backlog, BATCH_ROWS):
            name = names[number // BATCH_ROWS % len(names)]
            self._db.table(name).insert([self._row() for _ in range(BATCH_ROWS)])
        end_ts = self._client.timestamp()
        self._command("changefeed", "resume", "feed")
        began_at = time.monotonic()
        self._wait_for_checkpoint(end_ts)
        took_s = time.monotonic() - began_at
        rate = self._args.backlog / took_s
        return {f"backlog of {self._args.backlog:,}": f"{took_s:.1f} s, {rate:,.0f} changes/s"}

    def _write_until(self, ended: threading.Event) -> None:
        began_at = time.monotonic()
        written = 0
        while not ended.wait(TICK_S):
            due = int((time.monotonic() - began_at) * self._args.rate) - written
            by_table: dict[str, list[dict[str, object]]] = {}
            for _ in range(due):
                by_table.setdefault(self._names[self._next_id % len(self._names)], []).append(self._row())
            written += due
            if by_table:
                with self._client.begin() as txn:
                    for name, rows in by_table.items():
                        self._db.table(name).insert(rows, txn=txn)

    def _row(self) -> dict[str, object]:
        self._next_id += 1
        number = self._next_id
        return {
            "id": number,
            "n": number * 7,
            "price": f"{number % 1000}.50",
            "note": f"note number {number}",
        }

    def _command(self, *arguments: str) -> None:
        command = [PENSTOCK, *arguments, "--config", str(self._folder / "penstock.yaml")]
        subprocess.run(command, cwd=self._folder, check=True, stdout=subprocess.DEVNULL)

    def _checkpoint_ts(self) -> int:
        path = self._folder / "sink" / "metadata"
        try:
            return int(json.loads(path.read_text())["checkpoint-ts"])
        except (FileNotFoundError, ValueError):
            return 0

    def _wait_for_checkpoint(self, ts: int) -> None:
        deadline = time.monotonic() + WAIT_S
        while self._checkpoint_ts() < ts:
            if time.monotonic() > deadline:
                sys.exit(f"no checkpoint: {(self._folder / 'up.log').read_text()[-2000:]}")
            time.sleep(0.05)

    def _usage(self) -> dict[str, tuple[float, int]]:
        """Return the processor time and the memory of the deployment's processes, by what they are."""
        used: dict[str, tuple[float, int]] = {}
        for pid in _descendants(self._up.pid):
            try:
                command = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
                stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except FileNotFoundError:
                continue
            cpu_s = sum(map(int, stat[11:15])) / CPU_TICK  # with that of children that have ended
            name = _kind(command)
            seconds, nbytes = used.get(name, (0.0, 0))
            used[name] = seconds + cpu_s, nbytes + int(stat[21]) * PAGE
        return used


def _descendants(pid: int) -> list[int]:
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            found += map(int, task.read_text().split())
    return found


def _kind(command: list[str]) -> str:
    if command[0].endswith("java"):
        return "Spark: java"
    if any("pyspark" in word for word in command):
        return "Spark: python"
    words = [word for word in command if word in {"store", "capture", "changefeeds", "up"}]
    return words[0] if words else "other"


if __name__ == "__main__":
    main()
