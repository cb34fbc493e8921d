"""What all settings are: frozen values, checked when they are made."""

from typing import Any

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """A section of the settings."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


def as_text(value: Any) -> Any:
    """YAML's numbers and booleans, the way Spark and sink URIs write them."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value
