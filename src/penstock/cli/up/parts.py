"""The parts of a deployment, as its settings tell: which there are, and what each is told.

What a part is told when it starts: one line of JSON on its standard input, secrets and all.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pydantic import SecretStr

from penstock import settings as settings_
from penstock.cli.up.supervision import Rank
from penstock.control.part_states import PartKind
from penstock.errors import Invalid
from penstock.settings import Settings
from penstock.settings.network import joined, parted

__all__ = ["STOP", "Service", "ServiceConfig", "address_of", "anchored", "parts_of", "under"]


_FREE_ADDR = "127.0.0.1:0"
_DEFAULTS = Settings()
_ADDRESSES = {PartKind.STORE: "pd", PartKind.CAPTURE: "flight", PartKind.API: "api"}
"""Where the line that a part prints when it is ready has its address."""


@dataclass(frozen=True, slots=True)
class Service:
    """One process of a deployment."""

    name: str
    kind: PartKind
    settings: Settings
    """Its own: folders and ports that only it uses."""

    @property
    def rank(self) -> Rank:
        """Its place in the order of starting and stopping."""
        return {PartKind.STORE: Rank.STORE, PartKind.CAPTURE: Rank.CAPTURE}.get(self.kind, Rank.REST)


def parts_of(settings: Settings) -> tuple[Service, ...]:
    """Everything that `penstock up` runs, in the order of starting. Raises Invalid for a bad address."""
    up = settings.up
    measured = settings.model_copy(update={"metrics_addr": _FREE_ADDR})
    wanted = [
        (PartKind.STORE, _has_store(settings), measured),
        (PartKind.CHANGEFEEDS, up.changefeeds, measured),
        (PartKind.JOBS, up.jobs, measured),
        (PartKind.API, up.api, settings),  # it shows metrics itself
    ]
    parts = [Service(kind.value, kind, own) for kind, runs, own in wanted if runs]
    captures = [
        Service(f"capture-{number}", PartKind.CAPTURE, _capture(measured, number))
        for number in range(1, up.captures + 1)
    ]
    return tuple(sorted([*parts, *captures], key=lambda part: part.rank))


def address_of(kind: PartKind, ready: Mapping[str, Any]) -> str | None:
    """Where a part serves, as it said when it was ready; None for those that do not."""
    found = ready.get(_ADDRESSES.get(kind, ""))
    return found if isinstance(found, str) else None


def anchored(settings: Settings, kind: PartKind, addr: str) -> Settings:
    """Settings for the time after a part said where it serves: a port that was free is its own from now on.

    So it comes back there when it is started again, and the others find the store.
    """
    if kind is PartKind.STORE and parted(settings.store.pd_addr)[1] == 0:
        others = [each for each in settings.pd_addrs if each != settings.store.pd_addr]
        named = settings.store.pd_addr in settings.pd_addrs
        store = settings.store.model_copy(update={"pd_addr": addr})
        return settings.model_copy(update={"store": store, "pd_addrs": (addr, *others) if named else (addr,)})
    if kind is PartKind.API and parted(settings.api.addr)[1] == 0:
        _, _, host_port = addr.rpartition("/")
        host, _ = parted(settings.api.addr)
        api = settings.api.model_copy(update={"addr": joined(host, parted(host_port)[1])})
        return settings.model_copy(update={"api": api})
    return settings


def under(settings: Settings, folder: Path) -> Settings:
    """Settings whose folders are in another one than ./penstock-data; those that were chosen stay."""
    store, capture, jobs, up = settings.store, settings.capture, settings.jobs, settings.up
    if store.data == _DEFAULTS.store.data:
        store = store.model_copy(update={"data": folder / "store"})
    if capture.data == _DEFAULTS.capture.data:
        capture = capture.model_copy(update={"data": folder / "capture"})
    if capture.storage == _DEFAULTS.capture.storage:
        capture = capture.model_copy(update={"storage": f"file://{quote(str(folder / 'events'))}"})
    if jobs.data == _DEFAULTS.jobs.data:
        jobs = jobs.model_copy(update={"data": folder / "jobs"})
    if up.data == _DEFAULTS.up.data:
        up = up.model_copy(update={"data": folder / "up"})
    return settings.model_copy(update={"store": store, "capture": capture, "jobs": jobs, "up": up})


def _has_store(settings: Settings) -> bool:
    """Whether the embedded store is what pd_addrs name; one on a free port is, unless they name another."""
    host, port = parted(settings.store.pd_addr)
    if port == 0 and settings.pd_addrs == _DEFAULTS.pd_addrs:
        return True
    return (_plain(host), port) in {
        (_plain(host), port) for host, port in (parted(_bare(addr)) for addr in settings.pd_addrs)
    }


def _bare(addr: str) -> str:
    return addr.partition("://")[2].rstrip("/") if "://" in addr else addr


def _plain(host: str) -> str:
    return "127.0.0.1" if host == "localhost" else host


def _capture(settings: Settings, number: int) -> Settings:
    """The settings of one capture; of several, each has its own name, folder and port."""
    capture = settings.capture
    if settings.up.captures == 1:
        return settings
    own: dict[str, Any] = {
        "id": f"{capture.id}-{number}",
        "data": capture.data / f"capture-{number}",
        "flight_addr": joined(parted(capture.flight_addr)[0], 0),
    }
    if capture.flight_advertise_addr is not None:
        own["flight_advertise_addr"] = joined(parted(capture.flight_advertise_addr)[0], 0)
    return settings.model_copy(update={"capture": capture.model_copy(update=own)})


STOP = b"stop\n"
"""What a supervisor writes before it ends a part's input; without it, the supervisor is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceConfig:
    """What to run, and how to log. It holds secrets: a pipe may carry it, a disk or command line may not."""

    kind: PartKind
    settings: Settings
    log_format: str = "text"
    log_level: str = "INFO"

    def line(self) -> bytes:
        """As it goes over the pipe."""
        tree = {
            "kind": self.kind,
            "settings": _revealed(self.settings.model_dump(exclude_unset=True)),
            "log_format": self.log_format,
            "log_level": self.log_level,
        }
        return json.dumps(tree).encode() + b"\n"

    @classmethod
    def parse(cls, line: bytes) -> "ServiceConfig":
        """Read a line; raise Invalid for what is none, with nothing of what it says."""
        try:
            tree = json.loads(line)
            kind, settings = PartKind(tree["kind"]), tree["settings"]
            log_format, log_level = str(tree["log_format"]), str(tree["log_level"])
        except (ValueError, KeyError, TypeError):
            raise Invalid("standard input has no order; parts are started by `penstock up`") from None
        parsed = settings_.parse(settings, origin="the order of penstock up")
        return cls(kind=kind, settings=parsed, log_format=log_format, log_level=log_level)


def _revealed(value: Any) -> Any:
    """A tree of settings as JSON has it, with its secrets in clear."""
    if isinstance(value, dict):
        return {key: _revealed(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_revealed(each) for each in value]
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    return str(value) if isinstance(value, Path) else value
