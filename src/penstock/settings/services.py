"""Settings of the HTTP API and its pages.

Settings of `penstock up`: a whole deployment on one machine.

Settings of traces: a change from its commit to its targets.
"""

from pathlib import Path

from pydantic import Field, SecretStr, field_validator, model_validator

from penstock.settings.frozen import Frozen
from penstock.settings.network import ServerTlsSettings, check_token, read_token


class AccountSettings(Frozen):
    """Who may use the API: the account of the catalog that has the section's name."""

    token: SecretStr | None = None
    """Bearer token; take it from the environment with ${NAME}."""
    token_path: Path | None = None
    """File that holds the token instead; white space around it does not count."""
    admin: bool = False
    """Whether it sees and touches everything, not its own databases only."""
    targets: tuple[str, ...] = ()
    """Prefixes of the URLs that its changefeeds and jobs may write to, as in s3://lake/shop/. Admins: any."""

    @field_validator("token")
    @classmethod
    def _token_fits_a_header(cls, token: SecretStr | None) -> SecretStr | None:
        return check_token(token)

    @model_validator(mode="after")
    def _token_has_one_source(self) -> "AccountSettings":
        if (self.token is None) == (self.token_path is None):
            raise ValueError("an account has either token or token_path")
        return self

    def read_token(self, name: str) -> SecretStr:
        """Return the token of either source; raise Invalid when its file cannot be used."""
        found = read_token(self.token, self.token_path, key=f"api.accounts.{name}.token_path")
        assert found is not None, "one of both is given"
        return found


class ApiSettings(Frozen):
    """The HTTP API, with the pages."""

    addr: str = "127.0.0.1:8300"
    """Address to listen on; port 0 takes a free one. Any but loopback needs TLS and accounts."""
    tls: ServerTlsSettings | None = None
    """Certificate of the service, and the authority of its clients; keys as in store.tls."""
    accounts: dict[str, AccountSettings] = Field({})
    """Who may use it; none: whoever reaches it, as an admin, which loopback alone allows."""
    hosts: tuple[str, ...] = ()
    """Names under which it is asked, beside that of addr; others are refused, so no foreign page can ask."""
    requests_per_s: float = Field(50, gt=0)
    """Requests that each account, or each address without one, may make in a second, in the long run."""
    requests_burst: int = Field(200, ge=1)
    """Requests that it may make at once."""
    body_bytes: int = Field(1 << 20, ge=1024)
    """Largest body of a request."""
    rows_max: int = Field(100_000, ge=1)
    """Rows that one answer may have; more are asked for with another request."""
    readers: int = Field(4, ge=1, le=64)
    """Reads of changes, searches and comparisons at the same time, not all of one account; more must wait."""


class UpSettings(Frozen):
    """What `penstock up` runs, and how it looks after it.

    The embedded store runs when its address, store.pd_addr, is among pd_addrs. One with port 0 does when
    pd_addrs name no other cluster; the other parts are told the port that it got.
    """

    data: Path = Path("penstock-data/up")
    """Directory where it says what runs; `penstock status` and the pages look there."""
    captures: int = Field(1, ge=1, le=64)
    """Captures that share the tables; of several, each has its own folder in capture.data and a free port."""
    changefeeds: bool = True
    """Whether changefeeds run."""
    jobs: bool = True
    """Whether jobs run."""
    api: bool = True
    """Whether the API and the pages run."""
    backoff_s: float = Field(1.0, gt=0)
    """Wait before a part that ended is started again; it doubles each time, up to backoff_max_s."""
    backoff_max_s: float = Field(30, gt=0)
    """Longest such wait."""
    steady_s: float = Field(60, gt=0)
    """How long a part has to run for the wait to be backoff_s again."""
    stop_s: float = Field(60, gt=0)
    """How long a part may take to end before it is killed."""


class TracingSettings(Frozen):
    """OpenTelemetry traces; none without an endpoint."""

    endpoint: str | None = Field(None, pattern=r"^https?://\S+$")
    """Where spans go, by OTLP over HTTP, as in http://127.0.0.1:4318/v1/traces."""
    headers: dict[str, str] = Field({}, repr=False)
    """Headers of those requests, such as Authorization; take secrets from the environment with ${NAME}."""
    sample: float = Field(0.01, ge=0, le=1)
    """Share of transactions that are traced; every part chooses the same ones, by their timestamps."""
