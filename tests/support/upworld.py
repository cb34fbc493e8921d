"""A deployment as users run it: `penstock up` in a directory, its parts as processes, without Spark.

What an attack ends is then a process of the deployment, never the one that runs the tests.

with up_world(tmp_path, {"accounts": {"ann": {"token": TOKENS["ann"]}}}) as world:
    world.client("ann").get("/api/v1/tables")
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml

from penstock.clock import SYSTEM
from penstock.control.part_states import PartStatus, UpStates
from penstock.kv import Client
from penstock.tables import Catalog
from support.apiworld import TOKENS
from support.command import ServiceProcess

__all__ = ["UpWorld", "up_world"]

_WAIT_S = 120.0
_LOOK_S = 0.1
_QUICK: dict[str, dict[str, Any]] = {
    "store": {"pd_addr": "127.0.0.1:0", "sync": False},
    "capture": {"flight_addr": "127.0.0.1:0"},
    "jobs": {"greedy_interval_s": 0.2, "interval_s": 0.5},
    "api": {"addr": "127.0.0.1:0"},
}


@dataclass
class UpWorld:
    """A deployment in a directory, and a client of its store; all calls block."""

    folder: Path
    up: ServiceProcess
    cluster: Client
    db: Catalog
    closing: ExitStack
    _clients: dict[str | None, httpx.Client] = field(default_factory=dict)

    @property
    def parts(self) -> tuple[PartStatus, ...]:
        """The state of each part."""
        states = UpStates.read(self.folder / "penstock-data/up")
        assert states is not None
        return states.parts

    def part(self, name: str) -> PartStatus:
        """The state of one part."""
        return next(part for part in self.parts if part.name == name)

    @property
    def url(self) -> str:
        """Where the API answers."""
        addr = self.part("api").addr or ""
        return addr if "//" in addr else f"http://{addr}"

    def client(self, account: str | None = None) -> httpx.Client:
        """The client of the API with the token of an account, or without; it is closed with the world."""
        if account not in self._clients:
            self._clients[account] = self.closing.enter_context(self.connect(account))
        return self._clients[account]

    def connect(self, account: str | None = None) -> httpx.Client:
        """A new client of the API, for the caller to close."""
        headers = {} if account is None else {"Authorization": f"Bearer {TOKENS[account]}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=60)

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until something holds; fail with the end of the log when that takes too long."""
        deadline = SYSTEM.monotonic() + _WAIT_S
        while not holds():
            assert SYSTEM.monotonic() < deadline, f"{what}\n{self.up.log[-4000:]}"
            SYSTEM.pause(_LOOK_S)

    def restarts(self) -> dict[str, int]:
        """How often each part has ended and was started again."""
        return {part.name: part.restarts for part in self.parts}

    def traceback(self) -> str:
        """The first error in the log that nobody handled; empty without one."""
        log = self.up.log
        return log[max(0, log.find("Traceback") - 500) :][:3000] if "Traceback" in log else ""


@contextmanager
def up_world(folder: Path, **sections: Mapping[str, Any]) -> Iterator[UpWorld]:
    """Run a deployment in `folder` with sections of its settings; fail when a part does not end well."""
    tree: dict[str, Any] = {"engine": "local", **_QUICK}
    for name, section in sections.items():
        tree[name] = {**_QUICK.get(name, {}), **section}
    (folder / "penstock.yaml").write_text(yaml.safe_dump(tree))
    up = ServiceProcess(folder / "up.log", "up", "--config", "penstock.yaml", cwd=folder)
    with up, Client.connect(up.ready["pd"]) as client:
        with ExitStack() as closing:
            yield UpWorld(folder, up, client, Catalog(client), closing)
        assert up.terminate() == 0, up.log[-4000:]
