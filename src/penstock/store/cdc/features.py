"""What a client can do: said by its version, and by the features it asks for."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["STREAM_MULTIPLEXING", "ClientFeatures", "asked_features", "unknown_features"]

STREAM_MULTIPLEXING = "stream-multiplexing"
_FEATURES_KEY = "features"
_KNOWN = {STREAM_MULTIPLEXING}

_RELEASED = 1  # after every pre-release of the same number
_Version = tuple[int, int, int, int]
_NO_VERSION: _Version = (0, 0, 0, _RELEASED)
_BATCHED_RESOLVED_TS_SINCE: _Version = (4, 0, 8, _RELEASED)
_CLUSTER_ID_SINCE: _Version = (5, 3, 0, _RELEASED)
_SEMVER = re.compile(r"(\d+)\.(\d+)\.(\d+)(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?")


@dataclass(frozen=True, slots=True)
class ClientFeatures:
    """How to talk to a client."""

    batched_resolved_ts: bool
    sends_cluster_id: bool

    @classmethod
    def of(cls, ticdc_version: str) -> "ClientFeatures":
        """Judge by a version such as "8.5.0-rc.1"; one that is missing or malformed is the oldest."""
        found = _SEMVER.fullmatch(ticdc_version)
        version = _NO_VERSION
        if found is not None:
            major, minor, patch, pre, _build = found.groups()
            version = (int(major), int(minor), int(patch), 0 if pre else _RELEASED)
        return cls(
            batched_resolved_ts=version >= _BATCHED_RESOLVED_TS_SINCE,
            sends_cluster_id=version >= _CLUSTER_ID_SINCE,
        )


def asked_features(metadata: Iterable[tuple[str, str | bytes]]) -> set[str]:
    """Return the features named in a call's metadata."""
    lists = [value for key, value in metadata if key == _FEATURES_KEY]
    texts = [value.decode(errors="replace") if isinstance(value, bytes) else value for value in lists]
    return {feature.strip() for text in texts for feature in text.split(",")}


def unknown_features(asked: set[str]) -> list[str]:
    """Return those that this server does not have."""
    return sorted(asked - _KNOWN)
