"""The consumer: an iteration is a sequence of signed requests, the last of which is marked as such.

Each request has

    Idempotency-Key     owner:from_ts:to_ts:sequence-digest: the same when the same body is sent again
    Penstock-Job        the owner: account/table/job name/job id
    Penstock-Source     database.table, percent-encoded
    Penstock-Kind       snapshot: all rows, in place of whatever there is; tail: what has changed
    Penstock-From-Ts    the changes begin after it
    Penstock-To-Ts      and end with it
    Penstock-Sequence   0, 1, 2, … within the iteration
    Penstock-Last       true in the last one
    Penstock-Signature  t=1780000000,v1=<hex of HMAC-SHA256>, if a secret is given

A server that wants each change exactly once keeps what comes until the last request, applies it together with
`to_ts`, answers 409 when `from_ts` is not the `to_ts` that it has, and returns that one at `watermark_url`.

An iteration that is sent again begins with sequence 0, and may be divided at other places: what was kept of
it before does not count then. So the key has a digest of the body: the first 16 digits of its SHA-256 in hex.

The signature covers the time, then the values of the headers of SIGNED (empty if one is missing), each
followed by a line break, then the body.
"""

import hashlib
import hmac
import json
import re
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import count
from typing import ClassVar, Literal
from urllib.parse import quote

from pydantic import Field, SecretStr

import penstock
from penstock.consumers.options import ByteSize, ConsumerOptions, Properties, Seconds, reveal_secrets
from penstock.consumers.webhook.bodies import Body, iter_bodies
from penstock.consumers.webhook.sender import Address, Resolve, Sender
from penstock.errors import Invalid
from penstock.jobs.consumer import Consumer, DataRetriever, DataType, JobContext
from penstock.jobs.spec import ConsumerInfo
from penstock.targets import Target

_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VALUE = re.compile(r"[\x20-\x7e]*")
_RESERVED = re.compile(
    r"penstock-.*|idempotency-key|host|content-(length|type)|transfer-encoding|connection", re.IGNORECASE
)


class WebhookOptions(ConsumerOptions):
    """Where changes are sent, and how."""

    places: ClassVar[tuple[str, ...]] = ("ca_path",)

    url: SecretStr
    """Where changes are posted. Only the server's name is shown, because the rest may be a secret."""
    format: Literal["json", "arrow"] = "json"
    """Lines of JSON, or a stream of Arrow with `_commit_ts` and `_deleted`."""
    secret: SecretStr | None = None
    """The secret that requests are signed with."""
    watermark_url: SecretStr | None = None
    """Where the server returns the last to_ts that it has applied, as {"to_ts": "…"}, or 404 for none."""
    request_bytes: ByteSize = Field(1 << 20, ge=1024, le=256 << 20)
    """The greatest size of a body; a larger change is sent alone."""
    timeout: Seconds = Field(30.0, gt=0, le=3600)
    """How long one request may take."""
    attempts: int = Field(5, ge=1, le=100)
    """How often a request is sent before the iteration is repeated later."""
    ca_path: str | None = None
    """Certificates that are trusted instead of the system's."""
    headers: Properties = Field(default_factory=dict, repr=False)
    """More headers, such as headers.Authorization."""


class Webhook(Consumer):
    """Posts changes to a server at least once, with what the server needs to drop repetitions."""

    options_type = WebhookOptions

    @classmethod
    def targets(cls, info: ConsumerInfo) -> tuple[Target, ...]:
        """Return the servers of both URLs, and the paths there."""
        options = WebhookOptions.parse(info)
        given = {"url": options.url, "watermark_url": options.watermark_url}
        return tuple(
            Address.parse(name, url.get_secret_value()).target(name) for name, url in given.items() if url
        )

    def __init__(self, job: JobContext) -> None:
        super().__init__(job)
        self._options = WebhookOptions.parse(job.info)
        self._more_headers = _check_headers(reveal_secrets(self._options.headers))
        self._target = self._sender("url", self._options.url)
        watermark_url = self._options.watermark_url
        self._watermark = None if watermark_url is None else self._sender("watermark_url", watermark_url)

    def _sender(self, option: str, url: SecretStr) -> Sender:
        options = self._options
        return Sender(
            Address.parse(option, url.get_secret_value()),
            timeout_s=options.timeout,
            attempts=options.attempts,
            ca_path=options.ca_path,
            resolve=self._resolver(option, Address.parse(option, url.get_secret_value())),
            clock=self.job.clock,
        )

    def _resolver(self, option: str, address: Address) -> Resolve | None:
        """Return what finds the addresses of a tenant's server; None: the connection looks them up."""
        tenant = self.job.tenant
        return None if tenant is None else partial(tenant.resolve, address.target(option))

    def committed_ts(self) -> int | None:
        """Return what the server answers at `watermark_url`; None without that option."""
        if self._watermark is None:
            return None
        headers = {"Penstock-Job": self.job.owner, "Accept": "application/json"}
        text = self._watermark.send("GET", partial(self._sign, headers, b""), None, missing=b'{"to_ts": 0}')
        try:
            found = int(json.loads(text)["to_ts"])
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
            found = -1
        if found < 0:
            raise Invalid('the server at watermark_url does not answer {"to_ts": "…"}; fix the server')
        return found

    def consume(self, data: DataRetriever) -> None:
        """Post all changes; return when the server has accepted the last request."""
        changes = iter_bodies(data, self._options.format, self._options.request_bytes)
        for sequence, body, last in _mark_last(changes):
            headers = {
                "Idempotency-Key": f"{self.job.owner}:{data.from_ts}:{data.to_ts}:{sequence}-{body.digest}",
                "Penstock-Job": self.job.owner,
                "Penstock-Source": quote(data.schema.name),
                "Penstock-Kind": "snapshot" if data.data_type is DataType.SNAPSHOT else "tail",
                "Penstock-From-Ts": str(data.from_ts),
                "Penstock-To-Ts": str(data.to_ts),
                "Penstock-Sequence": str(sequence),
                "Penstock-Last": "true" if last else "false",
                "Content-Type": body.content_type,
            }
            self._target.send("POST", partial(self._sign, headers, body.content), body.content)
            self.job.progressed()

    def _sign(self, headers: dict[str, str], body: bytes) -> dict[str, str]:
        found = {**headers, "User-Agent": f"penstock/{penstock.__version__}", **self._more_headers}
        secret = self._options.secret
        if secret is not None:
            at_s = self.job.clock.wall_ms() // 1000
            found[HEADER] = signature(secret.get_secret_value(), headers, body, at_s=at_s)
        return found

    def interrupt(self) -> None:
        """End the request that is being made."""
        self._target.interrupt()
        if self._watermark is not None:
            self._watermark.interrupt()

    def close(self) -> None:
        """Close the connections."""
        self._target.close()
        if self._watermark is not None:
            self._watermark.close()


def _mark_last(bodies: Iterator[Body]) -> Iterator[tuple[int, Body, bool]]:
    """Yield bodies with their numbers, and whether each is the last."""
    numbers = count()
    previous = next(bodies)
    for body in bodies:
        yield next(numbers), previous, False
        previous = body
    yield next(numbers), previous, True


def _check_headers(headers: dict[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        if not _NAME.fullmatch(name) or _RESERVED.fullmatch(name):
            raise Invalid(
                f"option headers.{name} of consumer webhook: this header cannot be set; leave it out"
            )
        if not _VALUE.fullmatch(value):
            raise Invalid(
                f"option headers.{name} of consumer webhook has characters that headers cannot have"
            )
    return headers


HEADER = "Penstock-Signature"
SIGNED = (
    *("Idempotency-Key", "Penstock-Job", "Penstock-Source", "Penstock-Kind", "Penstock-From-Ts"),
    *("Penstock-To-Ts", "Penstock-Sequence", "Penstock-Last", "Content-Type"),
)

_FORM = re.compile(r"t=(\d{1,20}),v1=([0-9a-f]{64})")


def signature(secret: str, headers: Mapping[str, str], body: bytes, *, at_s: int) -> str:
    """Return the value of the signature header."""
    return f"t={at_s},v1={_digest(secret, headers, body, str(at_s))}"


def is_signed(
    secret: str, headers: Mapping[str, str], body: bytes, *, now_s: float, tolerance_s: float = 300
) -> bool:
    """Return whether a request was signed with this secret, and not long ago; for receivers of requests."""
    found = _FORM.fullmatch(headers.get(HEADER, ""))
    if found is None or abs(now_s - int(found[1])) > tolerance_s:
        return False
    return hmac.compare_digest(found[2], _digest(secret, headers, body, found[1]))


def _digest(secret: str, headers: Mapping[str, str], body: bytes, at: str) -> str:
    head = "".join(f"{value}\n" for value in (at, *(headers.get(name, "") for name in SIGNED)))
    return hmac.new(secret.encode(), head.encode() + body, hashlib.sha256).hexdigest()
