"""Settings of traces: a change from its commit to its targets."""

from pydantic import Field

from penstock.settings.frozen import Frozen


class TracingSettings(Frozen):
    """OpenTelemetry traces; none without an endpoint."""

    endpoint: str | None = Field(None, pattern=r"^https?://\S+$")
    """Where spans go, by OTLP over HTTP, as in http://127.0.0.1:4318/v1/traces."""
    headers: dict[str, str] = Field({}, repr=False)
    """Headers of those requests, such as Authorization; take secrets from the environment with ${NAME}."""
    sample: float = Field(0.01, ge=0, le=1)
    """Share of transactions that are traced; every part chooses the same ones, by their timestamps."""
