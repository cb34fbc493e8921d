"""MySQL's packed points in time, and durations in nanoseconds.

A packed time has year*13+month, day, hour, minute, second and microsecond in one integer, so integers compare
like times. MySQL has dates that no calendar has (month or day 0, 31 February): they have no Python value and
unpack as None.
"""

from datetime import UTC, date, datetime, timedelta

from penstock.errors import Invalid

MONTHS = 13  # MySQL counts month 0 too
DURATION_MAX = timedelta(hours=838, minutes=59, seconds=59)
_US = timedelta(microseconds=1)


def pack(year: int, month: int, day: int, clock: tuple[int, int, int, int] = (0, 0, 0, 0)) -> int:
    """Pack a date and (hour, minute, second, microsecond)."""
    hour, minute, second, micros = clock
    ymd = (year * MONTHS + month) << 5 | day
    return (ymd << 17 | hour << 12 | minute << 6 | second) << 24 | micros


def unpack(packed: int) -> tuple[int, int, int, int, int, int, int]:
    """Return year, month, day, hour, minute, second, microsecond."""
    micros, rest = packed & 0xFFFFFF, packed >> 24
    hms, ymd = rest & 0x1FFFF, rest >> 17
    year, month = divmod(ymd >> 5, MONTHS)
    return year, month, ymd & 0x1F, hms >> 12, hms >> 6 & 0x3F, hms & 0x3F, micros


def pack_date(day: date) -> int:
    """Pack a date; a datetime loses its time of day."""
    return pack(day.year, day.month, day.day)


def pack_datetime(moment: datetime, fsp: int) -> int:
    """Pack a naive datetime, rounded half up to `fsp` digits of a second."""
    if moment.tzinfo is not None:
        raise Invalid("a DATETIME column has no time zone; pass a datetime without tzinfo")
    return _pack_rounded(moment, fsp)


def pack_timestamp(moment: datetime, fsp: int) -> int:
    """Pack a datetime in UTC, rounded half up to `fsp` digits of a second. A naive one counts as UTC."""
    return _pack_rounded(moment.astimezone(UTC) if moment.tzinfo else moment, fsp)


def unpack_date(packed: int) -> date | None:
    """Return the date, or None for one that no calendar has."""
    moment = unpack_datetime(packed)
    return moment and moment.date()


def unpack_datetime(packed: int) -> datetime | None:
    """Return the naive datetime, or None for one that no calendar has."""
    try:
        return datetime(*unpack(packed))
    except ValueError:
        return None


def unpack_timestamp(packed: int) -> datetime | None:
    """Return the datetime in UTC, or None for one that no calendar has."""
    moment = unpack_datetime(packed)
    return moment and moment.replace(tzinfo=UTC)


def duration_nanos(span: timedelta, fsp: int) -> int:
    """Return a TIME value in nanoseconds, rounded half away from zero; raise Invalid beyond 838:59:59."""
    micros = _round(span // _US, 10 ** (6 - fsp))
    if abs(micros) > DURATION_MAX // _US:
        raise Invalid("a TIME column holds -838:59:59 to 838:59:59; pass a shorter timedelta")
    return micros * 1000


def duration_span(nanos: int) -> timedelta:
    """Return the TIME value of a number of nanoseconds, truncated to microseconds."""
    return timedelta(microseconds=(abs(nanos) // 1000) * (1 if nanos >= 0 else -1))


def duration_text(nanos: int) -> str:
    """Return a TIME value as MySQL prints it, with six digits of a second."""
    seconds, micros = divmod(abs(nanos) // 1000, 1_000_000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{'-' if nanos < 0 else ''}{hours:02}:{minutes:02}:{seconds:02}.{micros:06}"


def _pack_rounded(moment: datetime, fsp: int) -> int:
    micros = _round(moment.microsecond, 10 ** (6 - fsp))
    try:
        moment = moment.replace(microsecond=0) + timedelta(microseconds=micros)
    except OverflowError as error:
        raise Invalid("a time rounds beyond the year 9999; pass an earlier one") from error
    clock = (moment.hour, moment.minute, moment.second, moment.microsecond)
    return pack(moment.year, moment.month, moment.day, clock)


def _round(micros: int, unit: int) -> int:
    rounded = (abs(micros) + unit // 2) // unit * unit if unit > 1 else abs(micros)
    return rounded if micros >= 0 else -rounded
