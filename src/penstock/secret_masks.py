"""Messages without the secrets of a job, a changefeed or a storage.

A service may repeat in an error whatever it was given. `SecretMask` knows what that was: values of options
that hold secrets, what references lead to, and credentials inside URLs. It puts *** in their place, also
where the service has percent-encoded them or escaped them for JSON, XML or HTML. A part of a secret is not
recognised, so mask a message before you shorten it.
"""

import base64
import html
import json
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import parse_qsl, quote, quote_plus, unquote, urlsplit

from penstock.secret_references import has_reference, list_given_secrets, resolve_escapes

__all__ = ["MASK", "NO_SECRETS", "SecretMask", "is_secret"]

MASK = "***"
_SECRET_WORDS = ("key", "secret", "token", "password", "sas", "credential", "signature")
_CHARS_MIN = 6  # a shorter value is no secret, and masking it would hit parts of words
_WORD_CHARS_MIN = 8  # of a word of a secret, such as the token behind "Bearer"
_CAUSES_MAX = 20
_PASSWORD = re.compile(r"password\s*=\s*(?:'(?P<quoted>(?:[^'\\]|\\.)*)'|(?P<plain>[^\s&;]+))", re.IGNORECASE)


def is_secret(name: str) -> bool:
    """Return whether a parameter of this name may hold a secret."""
    return name != "sse-kms-key-id" and any(word in name.lower() for word in _SECRET_WORDS)


class SecretMask:
    """Puts *** in place of the secrets of `options`, of six characters and more. Cheap until it is called.

    `options` are as they were given, with references or without. Secrets are the values of options that are
    `hidden` or named like a secret, what references lead to, and credentials in URLs. A reference that this
    process has not resolved is a secret that it has given to nobody.
    """

    __slots__ = ("_hidden", "_options")

    def __init__(self, options: Mapping[str, str], hidden: Collection[str] = ()) -> None:
        self._options = dict(options)
        self._hidden = frozenset(hidden)

    def __call__(self, message: str) -> str:
        """Return a message without the secrets."""
        found = {
            secret
            for name, text in self._options.items()
            for secret in _secrets_of_option(name, text, hidden=name in self._hidden)
            if len(secret) >= _CHARS_MIN
        }
        shapes = {shape for secret in found for shape in _shapes(secret)}
        for shape in sorted(shapes, key=len, reverse=True):  # a secret may contain another one
            message = message.replace(shape, MASK)
        return message

    @contextmanager
    def in_errors(self) -> Iterator[None]:
        """Take the secrets from the messages of what is raised, and of what led to it."""
        try:
            yield
        except BaseException as error:
            cause: BaseException | None = error
            for _ in range(_CAUSES_MAX):
                if cause is None:
                    break
                cause.args = tuple(self(value) if isinstance(value, str) else value for value in cause.args)
                cause = cause.__cause__ or cause.__context__
            raise


def _secrets_of_option(name: str, text: str, *, hidden: bool) -> Iterator[str]:
    given = list_given_secrets(text)
    yield from given
    is_whole = is_secret(name) or (hidden and not name.endswith("region"))
    if has_reference(text):  # what stands beside a reference; the reference itself is named in messages
        values = given
        yield from (secret for secret in _secrets_of_url(text, hidden=hidden) if not has_reference(secret))
    else:
        values = [resolve_escapes(text)]
    for value in values:
        if is_whole and (is_secret(name) or "://" not in value):
            yield value
        if is_whole:
            yield from _words(value)
        yield from _secrets_of_url(value, hidden=hidden)


def _shapes(secret: str) -> set[str]:
    """Return a secret as services may repeat it."""
    return {
        secret,
        " ".join(secret.split()),
        quote(secret, safe=""),
        quote(secret),
        quote_plus(secret),
        html.escape(secret),
        json.dumps(secret)[1:-1],
        json.dumps(secret, ensure_ascii=False)[1:-1],
    }


def _words(value: str) -> Iterator[str]:
    """Yield the parts of a secret that are secrets themselves: a token, a line of a key, a password."""
    kind, _, rest = value.strip().partition(" ")
    if kind.lower() == "basic":
        try:
            pair = base64.b64decode(rest.strip(), validate=True).decode()
        except ValueError:
            pair = ""
        yield from (pair, pair.partition(":")[2])
    for found in _PASSWORD.finditer(value):
        yield found["plain"] or re.sub(r"\\(.)", r"\1", found["quoted"])
    if "=" not in value and "://" not in value:
        yield from (word for word in value.split() if len(word) >= _WORD_CHARS_MIN)


def _secrets_of_url(value: str, *, hidden: bool) -> Iterator[str]:
    """Yield the credentials in a URL; of a hidden one the path too, which may be the secret of a hook."""
    if "://" not in value:
        return
    try:
        parts = urlsplit(value.strip())
        pairs = parse_qsl(parts.query, keep_blank_values=True)
    except ValueError:
        yield value
        return
    user, _, host = parts.netloc.rpartition("@")
    name, _, password = user.partition(":")
    of_token = parts.scheme in {"http", "https"} and not password
    for secret in (password, name if of_token else ""):
        yield from (secret, unquote(secret))
    yield from (text for key, text in pairs if is_secret(key))
    if hidden and parts.scheme in {"http", "https"} and host:
        yield from (parts.path, f"{parts.path}?{parts.query}" if parts.query else "")
        yield from (
            text for part in parts.path.split("/") if len(text := unquote(part)) > 2 * _WORD_CHARS_MIN
        )
        yield from (text for _, text in pairs if len(text) >= _WORD_CHARS_MIN)


NO_SECRETS = SecretMask({})
"""The mask of what has no secrets."""
