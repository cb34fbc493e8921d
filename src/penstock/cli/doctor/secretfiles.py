"""Files with secrets: whether others can read them."""

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from penstock.changefeeds.sink_uri import is_secret, mask_uri
from penstock.cli.doctor.findings import Finding, bad, ok, refused, warn
from penstock.cli.doctor.tls import tls_sections
from penstock.errors import Invalid
from penstock.settings import Settings
from penstock.settings.network import read_token

__all__ = ["config_file", "judge_mode", "literal_secrets", "secret_files", "token_file"]

_OTHERS, _GROUP = stat.S_IRWXO, stat.S_IRWXG
_OPTION_TABLES = ("storage_options", "headers")


def secret_files(settings: Settings) -> list[Finding]:
    """A finding for every file of a key or token."""
    found = [
        _mode(f"{key}.key_path", section.key_path)
        for key, section in tls_sections(settings)
        if section.key_path is not None
    ]
    tokens = {"capture.flight_token_path": settings.capture.flight_token_path} | {
        f"api.accounts.{name}.token_path": account.token_path
        for name, account in settings.api.accounts.items()
    }
    return found + [token_file(key, path) for key, path in tokens.items() if path is not None]


def token_file(key: str, path: Path) -> Finding:
    """Whether a token can be read from its file, and who else can."""
    try:
        read_token(None, path, key=key)
    except Invalid as error:
        return refused(key, error)
    return _mode(key, path)


def config_file(path: Path) -> list[Finding]:
    """Who can read a settings file that has secrets in it."""
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
        mode = path.stat().st_mode
    except (OSError, ValueError, yaml.YAMLError):  # who loads the settings says so
        return []
    secrets = sorted(literal_secrets(tree))
    if not secrets or not mode & (_OTHERS | _GROUP):
        return []
    what = f"{path} has {secrets[0]} in it, and others can read it (mode {stat.S_IMODE(mode):03o})"
    return [warn("settings", what, f"chmod 600 {path}, or take it from the environment with ${{NAME}}")]


def literal_secrets(tree: Any, key: str = "") -> Iterator[str]:
    """The keys of a settings tree whose values are secrets, and are not taken from the environment."""
    if isinstance(tree, dict):
        for name, value in tree.items():
            inner = f"{key}.{name}" if key else str(name)
            of_options = key.rpartition(".")[2] in _OPTION_TABLES
            if isinstance(value, str):
                if _is_literal_secret(str(name), value, of_options=of_options):
                    yield inner
            else:
                yield from literal_secrets(value, inner)
    elif isinstance(tree, list):
        for number, value in enumerate(tree):
            yield from literal_secrets(value, f"{key}.{number}")


def _is_literal_secret(name: str, value: str, *, of_options: bool) -> bool:
    if "${" in value or name.endswith("_path"):
        return False
    if name == "sink_uri":
        return mask_uri(value) != mask_uri(value.partition("?")[0]) and "***" in mask_uri(value)
    return is_secret(name) if of_options else name in {"token", "flight_token"}


def _mode(key: str, path: Path) -> Finding:
    try:
        mode = path.stat().st_mode
    except OSError as error:
        return bad(key, f"{path} cannot be read ({error.strerror})", f"put the file there, or change {key}")
    return judge_mode(key, path, mode)


def judge_mode(key: str, path: Path, mode: int) -> Finding:
    """Who can read a file: its owner should, and nobody else."""
    what = f"{path} has mode {stat.S_IMODE(mode):03o}"
    if mode & _OTHERS:
        return bad(key, f"{what}: every user of the machine can read it", f"chmod 600 {path}")
    if mode & _GROUP:
        return warn(key, f"{what}: its group can read it", f"chmod 600 {path}, unless that is meant")
    return ok(key, what)
