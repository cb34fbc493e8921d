"""References to secrets in texts of operators: kept as they are, resolved in the process that uses them.

    ${NAME}             the environment variable NAME of that process
    ${NAME:-default}    the default when NAME is not set
    ${file:/run/token}  the content of a file, without the end of its last line
    ${vault:kv/db#user} a field of a secret of a Vault server
    ${aws:db#user}      a secret of AWS Secrets Manager, or a field of it
    $${                 the characters ${ themselves

`PROVIDERS`, and the entry points of installed packages in `GROUP`, are what may stand before the colon: a
function from the place after it to the secret. A value is resolved once: what it contains is never looked
at again. A message names the reference, never a value. Tenants may not write references: they would read
what is the operator's.
"""

import os
import re
import stat
import threading
from collections import deque
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from penstock.errors import Invalid, Unavailable

__all__ = [
    "GROUP",
    "PROVIDERS",
    "UnresolvedReference",
    "escape_references",
    "has_reference",
    "list_given_secrets",
    "resolve_escapes",
    "resolve_references",
    "resolve_values",
]

_REFERENCE = re.compile(
    r"\$\$\{"
    r"|\$\{(?:(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?"
    r"|(?P<provider>[a-z]+):(?P<place>[^}-][^}]*))\}"
)
_GIVEN_MAX = 4
_GIVEN_REFERENCES_MAX = 10_000
_GIVEN: dict[str, deque[str]] = {}  # the last values of references, which may be replaced meanwhile
_giving = threading.Lock()
_FILE_BYTES_MAX = 1 << 20  # a secret is small; a log or a device would fill the memory


class UnresolvedReference(Unavailable):
    """A reference leads to no secret in this process now; it may once the operator has put it there."""


def resolve_references(text: str) -> str:
    """Return a text with every reference replaced. Blocks while a provider answers.

    Raises UnresolvedReference when there is no such secret, Invalid when there is no such provider.
    """
    return _REFERENCE.sub(_resolve, text)


def resolve_values(texts: Mapping[str, str]) -> dict[str, str]:
    """Return a mapping with the references in its values replaced. Blocks while a provider answers.

    Raises UnresolvedReference when there is no such secret, Invalid when there is no such provider.
    """
    return {name: resolve_references(text) for name, text in texts.items()}


def has_reference(text: str) -> bool:
    """Return whether a text has a reference, to any provider."""
    return any(found.group() != "$${" for found in _REFERENCE.finditer(text))


def list_given_secrets(text: str) -> list[str]:
    """Return what the references in a text led to in this process, also before they were replaced."""
    with _giving:
        return [secret for found in _REFERENCE.finditer(text) for secret in _GIVEN.get(found.group(), ())]


def resolve_escapes(text: str) -> str:
    """Return a text with ${ for each $${; references stay as they are."""
    return _REFERENCE.sub(lambda found: "${" if found.group() == "$${" else found.group(), text)


def escape_references(text: str) -> str:
    """Return the text that resolves to `text`, whatever that contains."""
    return text.replace("${", "$${")


def _resolve(found: re.Match[str]) -> str:
    if found.group() == "$${":
        return "${"
    secret = _read_secret(found)
    with _giving:
        given = _GIVEN.pop(found.group(), None) or deque(maxlen=_GIVEN_MAX)
        if secret not in given:
            given.append(secret)
        _GIVEN[found.group()] = given
        if len(_GIVEN) > _GIVEN_REFERENCES_MAX:
            del _GIVEN[next(iter(_GIVEN))]
    return secret


def _read_secret(found: re.Match[str]) -> str:
    provider = found["provider"]
    if provider is None:
        return _read_variable(found["name"], found["default"])
    if provider in PROVIDERS:
        return PROVIDERS[provider](found["place"])
    offered = {**_OURS, **{point.name: point for point in entry_points(group=GROUP)}}
    if provider not in offered:
        known = ", ".join(f"${{{name}:...}}" for name in sorted({*PROVIDERS, *offered}))
        raise Invalid(
            f"{found.group()} names no provider of secrets; use ${{NAME}}, {known}, or $${{ for ${{"
        )
    return _ask_provider(offered[provider], found.group(), found["place"])


def _ask_provider(point: EntryPoint, reference: str, place: str) -> str:
    """Ask a provider of another package. Its own errors may show a value, so that only their type is told."""
    try:
        secret = point.load()(place)
        if isinstance(secret, str):
            return secret
        why = f"it returned a {type(secret).__name__}, not a text"
    except UnresolvedReference:
        raise
    except Exception as error:  # noqa: BLE001 - the provider is foreign code and may raise anything
        why = type(error).__name__
    raise UnresolvedReference(f"{reference} has no answer of its provider {point.value} ({why}); check both")


def _read_variable(name: str, default: str | None) -> str:
    value = os.environ.get(name, default)
    if value is None:
        raise UnresolvedReference(
            f"${{{name}}} is not set; export {name} where this process starts, or write ${{{name}:-default}}"
        )
    return value


def _read_file(place: str) -> str:
    path = Path(place)
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise UnresolvedReference(f"${{file:{place}}} is no regular file; name the file of one secret")
        with path.open("rb") as file:
            data = file.read(_FILE_BYTES_MAX + 1)
        if len(data) > _FILE_BYTES_MAX:
            raise UnresolvedReference(
                f"${{file:{place}}} is larger than a secret; name the file of one secret"
            )
        return data.decode().rstrip("\r\n")
    except OSError as error:
        raise UnresolvedReference(
            f"${{file:{place}}} cannot be read ({error.strerror}); let this process read it, or name another"
        ) from error
    except UnicodeDecodeError:
        raise UnresolvedReference(
            f"${{file:{place}}} is no text in UTF-8; write the secret as text"
        ) from None


GROUP = "penstock.secrets"
"""The group of entry points in which packages offer providers by name, such as one for a vault."""
_OURS = {
    "aws": EntryPoint("aws", "penstock.secret_aws:read_aws", GROUP),
    "vault": EntryPoint("vault", "penstock.secret_vault:read_vault", GROUP),
}
"""Providers of our own that a package may replace, loaded when a reference names them."""
PROVIDERS: dict[str, Callable[[str], str]] = {"file": _read_file}
"""By name, what returns the secret at a place. It raises UnresolvedReference, without a value, when there is
none."""
