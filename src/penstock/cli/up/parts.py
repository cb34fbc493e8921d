"""The parts of a deployment by its settings, and the configuration that a part gets when it starts.

The configuration is one line of JSON on the part's standard input, with secrets.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pydantic import SecretStr

from penstock.cli.up.supervision import Rank
from penstock.control.part_states import PartKind
from penstock.errors import Invalid
from penstock.settings import Settings, parse
from penstock.settings.network import join_address, split_address

__all__ = ["STOP", "Service", "ServiceConfig", "address_of", "move_folders", "parts_of", "with_address"]


_FREE_ADDR = "127.0.0.1:0"
_DEFAULTS = Settings()
_ADDRESSES = {PartKind.STORE: "pd", PartKind.CAPTURE: "flight", PartKind.API: "api"}
"""The field with the address, in the line that a part prints once it is ready."""


@dataclass(frozen=True, slots=True)
class Service:
    """One process of a deployment."""

    name: str
    kind: PartKind
    settings: Settings
    """Its settings, with the folders and ports that only it uses."""

    @property
    def rank(self) -> Rank:
        """Its rank in the order of starting and stopping."""
        return {PartKind.STORE: Rank.STORE, PartKind.CAPTURE: Rank.CAPTURE}.get(self.kind, Rank.REST)


def parts_of(settings: Settings) -> tuple[Service, ...]:
    """Return the parts that `penstock up` runs, in start order. Raises Invalid for a malformed address."""
    up = settings.up
    measured = settings.model_copy(update={"metrics_addr": _FREE_ADDR})
    candidates = [
        (PartKind.STORE, _has_store(settings), measured),
        (PartKind.CHANGEFEEDS, up.changefeeds, measured),
        (PartKind.JOBS, up.jobs, measured),
        (PartKind.API, up.api, settings),  # it serves metrics itself
    ]
    parts = [Service(kind.value, kind, own) for kind, runs, own in candidates if runs]
    captures = [
        Service(f"capture-{number}", PartKind.CAPTURE, _capture_settings(measured, number))
        for number in range(1, up.captures + 1)
    ]
    return tuple(sorted([*parts, *captures], key=lambda part: part.rank))


def address_of(kind: PartKind, ready: Mapping[str, Any]) -> str | None:
    """Return the address of the line that a part printed when ready; None for parts without one."""
    addr = ready.get(_ADDRESSES.get(kind, ""))
    return addr if isinstance(addr, str) else None


def with_address(settings: Settings, kind: PartKind, addr: str) -> Settings:
    """Return the settings with the address of a part, when its port was 0 and it has chosen a free one.

    So the part gets the same port when it is restarted, and the others find the store.
    """
    if kind is PartKind.STORE and split_address(settings.store.pd_addr)[1] == 0:
        others = [pd_addr for pd_addr in settings.pd_addrs if pd_addr != settings.store.pd_addr]
        named = settings.store.pd_addr in settings.pd_addrs
        store = settings.store.model_copy(update={"pd_addr": addr})
        return settings.model_copy(update={"store": store, "pd_addrs": (addr, *others) if named else (addr,)})
    if kind is PartKind.API and split_address(settings.api.addr)[1] == 0:
        _, _, host_port = addr.rpartition("/")
        host, _ = split_address(settings.api.addr)
        api = settings.api.model_copy(update={"addr": join_address(host, split_address(host_port)[1])})
        return settings.model_copy(update={"api": api})
    return settings


def move_folders(settings: Settings, folder: Path) -> Settings:
    """Return the settings with the default folders moved from ./penstock-data to `folder`."""
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
    own = settings.secrets_dir == _DEFAULTS.secrets_dir
    secrets_dir = folder / "secrets" if own else settings.secrets_dir
    return settings.model_copy(
        update={"store": store, "capture": capture, "jobs": jobs, "up": up, "secrets_dir": secrets_dir}
    )


def _has_store(settings: Settings) -> bool:
    """Return whether pd_addrs name the embedded store; with port 0 they do unless they name another."""
    host, port = split_address(settings.store.pd_addr)
    if port == 0 and settings.pd_addrs == _DEFAULTS.pd_addrs:
        return True
    return (_normalize_host(host), port) in {
        (_normalize_host(host), port)
        for host, port in (split_address(_strip_scheme(addr)) for addr in settings.pd_addrs)
    }


def _strip_scheme(addr: str) -> str:
    return addr.partition("://")[2].rstrip("/") if "://" in addr else addr


def _normalize_host(host: str) -> str:
    return "127.0.0.1" if host == "localhost" else host


def _capture_settings(settings: Settings, number: int) -> Settings:
    """Return the settings of one capture; with several, each has its own id, folder and port."""
    capture = settings.capture
    if settings.up.captures == 1:
        return settings
    own: dict[str, Any] = {
        "id": f"{capture.id}-{number}",
        "data": capture.data / f"capture-{number}",
        "flight_addr": join_address(split_address(capture.flight_addr)[0], 0),
    }
    if capture.flight_advertise_addr is not None:
        own["flight_advertise_addr"] = join_address(split_address(capture.flight_advertise_addr)[0], 0)
    return settings.model_copy(update={"capture": capture.model_copy(update=own)})


STOP = b"stop\n"
"""What a supervisor writes before it closes a part's input. Without it, the supervisor was killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceConfig:
    """What a part runs, and how it logs. It has secrets: send it by a pipe, not by a file or an argument."""

    kind: PartKind
    settings: Settings
    log_format: str = "text"
    log_level: str = "INFO"

    def encode(self) -> bytes:
        """Return the line for the pipe."""
        tree = {
            "kind": self.kind,
            "settings": _reveal_secrets(self.settings.model_dump(exclude_unset=True)),
            "log_format": self.log_format,
            "log_level": self.log_level,
        }
        return json.dumps(tree).encode() + b"\n"

    @classmethod
    def parse(cls, line: bytes) -> "ServiceConfig":
        """Parse a line; raise Invalid for another one, without showing any of it."""
        try:
            tree = json.loads(line)
            kind, settings = PartKind(tree["kind"]), tree["settings"]
            log_format, log_level = str(tree["log_format"]), str(tree["log_level"])
        except (ValueError, KeyError, TypeError):
            raise Invalid("standard input has no configuration; start parts with `penstock up`") from None
        parsed = parse(settings, origin="the configuration from penstock up")
        return cls(kind=kind, settings=parsed, log_format=log_format, log_level=log_level)


def _reveal_secrets(value: Any) -> Any:
    """Return a tree of settings as JSON values, with its secrets in clear text."""
    if isinstance(value, dict):
        return {key: _reveal_secrets(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_reveal_secrets(item) for item in value]
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    return str(value) if isinstance(value, Path) else value
