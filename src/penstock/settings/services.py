"""Settings of the HTTP API and its pages, of `penstock up`, and of traces."""

from ipaddress import ip_network
from pathlib import Path

from pydantic import Field, SecretStr, field_validator, model_validator

from penstock.settings.frozen import Frozen
from penstock.settings.network import ServerTlsSettings, check_token, read_token


class AccountSettings(Frozen):
    """A user of the API: the account of the catalog with the same name as the section."""

    token: SecretStr | None = None
    """Bearer token. Take it from the environment with ${NAME}."""
    token_path: Path | None = None
    """File with the token, in place of token. White space around the token is ignored."""
    admin: bool = False
    """Give the account access to all databases, not only to its own."""
    targets: tuple[str, ...] = ()
    """URL prefixes that its changefeeds and jobs may write to, such as s3://lake/shop/. Admins: any."""
    jobs_max: int = Field(1000, ge=0)
    """Most jobs that it may have registered at a time. Admins: any number."""
    changefeeds_max: int = Field(100, ge=0)
    """Most changefeeds that it may have at a time. Admins: any number."""
    bytes_held_max: int = Field(64 << 30, ge=0)
    """Bytes of history that its jobs may hold back in the event store, and its changefeeds as many; 0: any.
    Beyond it, the history of those that hold most is collected: jobs fill their targets anew, and changefeeds
    fail. Admins: any."""
    spool_bytes_max: int = Field(16 << 30, ge=0)
    """Disk for copies of batches that slow consumers of its jobs use together, and its changefeeds as much;
    0: any. Beyond it the largest copy is given up, and changefeeds read no further. Admins: any."""
    networks: tuple[str, ...] = ()
    """Networks that are not public in which hosts of these targets may be, such as 10.20.0.0/16."""

    @field_validator("token")
    @classmethod
    def _token_fits_a_header(cls, token: SecretStr | None) -> SecretStr | None:
        return check_token(token)

    @field_validator("networks")
    @classmethod
    def _networks_are_networks(cls, networks: tuple[str, ...]) -> tuple[str, ...]:
        for network in networks:
            ip_network(network)
        return networks

    @model_validator(mode="after")
    def _token_has_one_source(self) -> "AccountSettings":
        if (self.token is None) == (self.token_path is None):
            raise ValueError("an account needs either token or token_path; set one of them")
        return self

    def read_token(self, name: str) -> SecretStr:
        """Return the token from the settings or from its file; raise Invalid when the file cannot be used."""
        token = read_token(self.token, self.token_path, key=f"api.accounts.{name}.token_path")
        assert token is not None, "an account has a token or a path, as checked above"
        return token


class ApiSettings(Frozen):
    """The HTTP API and its pages."""

    addr: str = "127.0.0.1:8300"
    """Address to listen on; port 0 takes a free port. All but loopback need TLS and accounts."""
    tls: ServerTlsSettings | None = None
    """Certificate of the API, and the authority of its clients; keys as in store.tls."""
    accounts: dict[str, AccountSettings] = Field({})
    """Accounts that may use the API. Without any, loopback has an admin with the token in secrets_dir."""
    hosts: tuple[str, ...] = ()
    """Host names to accept besides that of addr, also for metrics; a foreign page may have any other."""
    requests_per_s: float = Field(50, gt=0)
    """Average requests per second of each account, or of each address without an account."""
    requests_burst: int = Field(200, ge=1)
    """Requests that it may make at once."""
    requests_at_once: int = Field(40, ge=1, le=1000)
    """Requests to work on at the same time. An account that has none gets one more."""
    account_requests: int | None = Field(None, ge=1, le=1000)
    """Most of these of one account while others have some. By default three quarters of all."""
    connections: int = Field(512, ge=1)
    """Most connections. A new one takes the place of the one that has waited longest for its client."""
    connections_per_address: int = Field(256, ge=1)
    """Most connections from one address. A proxy in front is one address."""
    client_timeout_s: float = Field(20, gt=0)
    """Seconds for a client to send a request's head, to send its body, and to take more of the answer."""
    body_bytes: int = Field(1 << 20, ge=1024)
    """Largest body of a request."""
    rows_max: int = Field(100_000, ge=1)
    """Most rows of one response. Further requests get the rest."""
    audit_path: Path | None = None
    """File for the audit log of API, captures and commands; without one, services log the entries."""
    readers: int = Field(4, ge=1, le=64)
    """Reads, searches, comparisons and checks of sinks at once. An account that runs none gets one more."""
    reader_stall_s: float = Field(30, gt=0)
    """Seconds after which a read is cut off whose client takes nothing of it."""
    search_s: float = Field(30, gt=0, le=3600)
    """Seconds after which a search is ended."""
    search_bytes: int = Field(2 << 30, ge=64 << 20)
    """Memory that one search may use, on Linux. A search that needs more is ended."""

    @property
    def spool_limits(self) -> dict[str, int]:
        """The accounts whose jobs, or changefeeds, may have so many bytes in spools and no more."""
        return {
            name: account.spool_bytes_max
            for name, account in self.accounts.items()
            if account.spool_bytes_max and not account.admin
        }


class UpSettings(Frozen):
    """The parts that `penstock up` runs and restarts.

    It runs the embedded store when the store's address, store.pd_addr, is among pd_addrs. With port 0 it runs
    the store unless pd_addrs name another cluster, and passes the port to the other parts.
    """

    data: Path = Path("penstock-data/up")
    """Directory for the list of running parts. `penstock status` and the pages read it."""
    captures: int = Field(1, ge=1, le=64)
    """Captures that share the tables. If several, each gets a folder in capture.data and a free port."""
    changefeeds: bool = True
    """Run changefeeds."""
    jobs: bool = True
    """Run jobs."""
    api: bool = True
    """Run the API and its pages."""
    backoff_s: float = Field(1.0, gt=0)
    """Seconds before a part that ended is restarted. They double each time, up to backoff_max_s."""
    backoff_max_s: float = Field(30, gt=0)
    """Longest wait in seconds before a restart."""
    steady_s: float = Field(60, gt=0)
    """Seconds that a part must run before the wait is backoff_s again."""
    stop_s: float = Field(60, gt=0)
    """Seconds that a part may take to stop before it is killed."""


class TracingSettings(Frozen):
    """OpenTelemetry traces of changes from their commit to their targets. No endpoint, no traces."""

    endpoint: str | None = Field(None, pattern=r"^https?://\S+$")
    """URL to send spans to, by OTLP over HTTP, such as http://127.0.0.1:4318/v1/traces."""
    headers: dict[str, str] = Field({}, repr=False)
    """Headers of these requests, such as Authorization. Take secrets from the environment with ${NAME}."""
    sample: float = Field(0.01, ge=0, le=1)
    """Share of transactions to trace. All parts choose the same transactions, by their timestamps."""
