"""Points in time as people write them in options, and as timestamps."""

from datetime import UTC, datetime, timedelta

from penstock.clock import LOGICAL_MAX, TS_MAX, compose_ts
from penstock.errors import Invalid

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def parse_version(option: str, text: str) -> int:
    """A commit timestamp given as an integer; raise Invalid when it is none."""
    try:
        version = int(text)
    except ValueError:
        version = -1
    if not 0 <= version <= TS_MAX:
        instead = option.replace("Version", "Timestamp").replace("version", "timestamp")
        raise Invalid(
            f"option {option} = {text!r} is no commit timestamp; give a whole number of 0 or more,"
            f" or a date and time with {instead}"
        )
    return version


def parse_first_ts(option: str, text: str) -> int:
    """The first timestamp of the millisecond that a text names; raise Invalid when it names none."""
    return compose_ts(_milliseconds(option, text))


def parse_last_ts(option: str, text: str) -> int:
    """The last timestamp of the millisecond that a text names: what was committed until then counts."""
    return compose_ts(_milliseconds(option, text), LOGICAL_MAX)


def _milliseconds(option: str, text: str) -> int:
    """ISO 8601; without an offset it is UTC, whatever the session's time zone: workers do not know that."""
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        moment = _EPOCH - _MILLISECOND
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    if moment < _EPOCH:
        raise Invalid(
            f"option {option} = {text!r} is no date and time since 1970; write it as 2026-01-31,"
            " 2026-01-31 09:30:00 or 2026-01-31T09:30:00.250+02:00 (UTC without an offset)"
        )
    return (moment - _EPOCH) // _MILLISECOND
