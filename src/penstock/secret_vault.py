"""Secrets of a Vault server: `${vault:MOUNT/PATH#FIELD}` is a field of a secret in its KV version 2 engine.

The process that uses the reference asks with its own `VAULT_ADDR`, `VAULT_TOKEN` or `VAULT_TOKEN_FILE` (which
an agent of Vault renews), `VAULT_NAMESPACE` and `VAULT_CACERT`: the names that Vault's own command reads. A
read is one request, so that no client library is needed. Redirects are not followed, and no proxy of the
environment is used: the token goes to the server that the operator named, and nowhere else.
"""

import json
import os
import ssl
from pathlib import Path
from urllib.parse import quote, urlsplit

import httpx

from penstock.secret_references import UnresolvedReference

__all__ = ["read_vault"]

_PORT = 8200
_TIMEOUT_S = 10.0
_ANSWER_BYTES_MAX = 1 << 20
_REASONS = {
    403: "the token may not read it, or has expired; renew the token, or give its policy the path",
    404: "there is no such secret; check the mount and the path, which are those of a KV version 2 engine",
    503: "the server is sealed; unseal it",
}


def read_vault(place: str) -> str:
    """Return a field of a secret, as it is now. Blocks for seconds when the server does not answer.

    Raises UnresolvedReference, without a value, when there is none, or the server cannot be asked.
    """
    reference = f"${{vault:{place}}}"
    path, _, field = place.partition("#")
    mount, _, name = path.strip("/").partition("/")
    if not (mount and name and field) or ".." in path.split("/"):
        raise UnresolvedReference(f"{reference} is incomplete; write ${{vault:MOUNT/PATH#FIELD}}")
    try:
        answer = _ask(f"/v1/{quote(mount)}/data/{quote(name)}", reference)
        value = json.loads(answer)["data"]["data"][field]
    except KeyError:
        raise UnresolvedReference(f"{reference} has no such field; check the name after #") from None
    except (TypeError, ValueError):
        raise UnresolvedReference(f"{reference} has no answer of a Vault server; check VAULT_ADDR") from None
    except (OSError, httpx.HTTPError, httpx.InvalidURL) as error:
        raise UnresolvedReference(
            f"{reference} cannot be read ({type(error).__name__}); check VAULT_ADDR, and that it answers"
        ) from None
    if not isinstance(value, str):
        raise UnresolvedReference(f"{reference} is no text; keep the secret as a text")
    return value


def _ask(path: str, reference: str) -> bytes:
    """Return the body of an answer with status 200."""
    address = urlsplit(os.environ.get("VAULT_ADDR", ""))
    if address.scheme not in {"http", "https"} or not address.hostname:
        raise UnresolvedReference(f"{reference} needs VAULT_ADDR; export it, as in https://vault:8200")
    headers = {"X-Vault-Token": _token(reference), "X-Vault-Request": "true"}
    if namespace := os.environ.get("VAULT_NAMESPACE"):
        headers["X-Vault-Namespace"] = namespace
    host = f"[{address.hostname}]" if ":" in address.hostname else address.hostname
    url = f"{address.scheme}://{host}:{address.port or _PORT}{address.path.rstrip('/')}{path}"
    verify = ssl.create_default_context(cafile=os.environ.get("VAULT_CACERT"))
    with (
        httpx.Client(verify=verify, timeout=_TIMEOUT_S, trust_env=False) as client,
        client.stream("GET", url, headers=headers) as answer,
    ):
        if answer.status_code != httpx.codes.OK:
            answered = f"the server answered {answer.status_code}; check VAULT_ADDR"
            reason = _REASONS.get(answer.status_code, answered)
            raise UnresolvedReference(f"{reference} cannot be read: {reason}")
        body = bytearray()
        for part in answer.iter_bytes():
            body += part
            if len(body) > _ANSWER_BYTES_MAX:
                raise ValueError("too long")
        return bytes(body)


def _token(reference: str) -> str:
    token = os.environ.get("VAULT_TOKEN", "")
    path = os.environ.get("VAULT_TOKEN_FILE")
    if not token and path:
        try:
            token = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            raise UnresolvedReference(f"{reference} needs a token; VAULT_TOKEN_FILE cannot be read") from None
    if not token.strip():
        raise UnresolvedReference(f"{reference} needs a token; export VAULT_TOKEN, or VAULT_TOKEN_FILE")
    return token.strip()
