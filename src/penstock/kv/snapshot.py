"""A consistent view of the store at one timestamp."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

from penstock.clock import TS_MAX
from penstock.errors import Invalid
from penstock.kv.details import measure_command
from penstock.kv.membuffer import check_key
from penstock.kv.reading import ReadView
from penstock.kv.scanning import Cursor, Page, PageSource, Scanner, ScanRows
from penstock.kv.scope import Session

_CACHE_BYTES_MAX = 16 * 1024 * 1024
_ENTRY_BYTES = 100  # what a cached key costs besides its bytes


def check_bounds(lower: object, upper: object, limit: object) -> None:
    """Raise Invalid for bounds that are no bytes or a limit that is no count."""
    for bound in (lower, upper):
        if type(bound) is not bytes:
            raise Invalid(f"a bound of a scan must be bytes, not {type(bound).__name__}")
    if limit is not None and (type(limit) is not int or limit < 0):
        raise Invalid("the limit of a scan must be a number of rows, 0 or more, or None")


class ValueCache:
    """Values read at one timestamp, up to a number of bytes; the oldest are forgotten first."""

    def __init__(self, bytes_max: int = _CACHE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._values: dict[bytes, bytes | None] = {}

    def __contains__(self, key: bytes) -> bool:
        return key in self._values

    def __getitem__(self, key: bytes) -> bytes | None:
        return self._values[key]

    def save(self, key: bytes, value: bytes | None) -> None:
        """Remember a value, or that there is none."""
        if key in self._values:
            return
        self._values[key] = value
        self._bytes += _cost(key, value)
        while self._bytes > self._bytes_max:
            oldest = next(iter(self._values))
            self._bytes -= _cost(oldest, self._values.pop(oldest))


def _cost(key: bytes, value: bytes | None) -> int:
    return _ENTRY_BYTES + len(key) + len(value or b"")


class AsyncSnapshot:
    """Reads at one timestamp: repeatable, without locking anything.

    Every read may raise Unavailable when the store cannot be reached in time, or when a running
    transaction holds a lock for longer than a read waits.
    """

    def __init__(self, session: Session, ts: int) -> None:
        self._session = session
        self._shared_view = ReadView(session, ts)
        # The newest value of a key is not the same from one read to the next.
        self._cache = ValueCache() if ts != TS_MAX else ValueCache(bytes_max=0)

    @property
    def ts(self) -> int:
        """The timestamp read at."""
        return self._shared_view.ts

    @property
    def _view(self) -> ReadView:
        """The view for one read. A read of the newest values has its own: it remembers no transactions."""
        return self._shared_view if self.ts != TS_MAX else ReadView(self._session, TS_MAX)

    async def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, None when it has none."""
        check_key(key)
        if key in self._cache:
            return self._cache[key]
        with measure_command(self._session.clock, "get"):
            value = await self._view.get(key)
        self._cache.save(key, value)
        return value

    async def batch_get(self, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        """Return the values of those keys that have one, read from all their regions at once."""
        wanted = sorted({check_key(key) for key in keys})
        found = {
            key: value for key in wanted if key in self._cache and (value := self._cache[key]) is not None
        }
        missing = [key for key in wanted if key not in self._cache]
        if not missing:
            return found
        with measure_command(self._session.clock, "batch_get"):
            fresh = await self._view.batch_get(missing)
        for key in missing:
            self._cache.save(key, fresh.get(key))
        return found | fresh

    def iter(
        self, lower: bytes = b"", upper: bytes = b"", *, limit: int | None = None, key_only: bool = False
    ) -> ScanRows:
        """Return the rows of [lower, upper) in ascending order; an empty `upper` is the end of all keys.

        With `key_only` the values are empty.
        """
        check_bounds(lower, upper, limit)
        return ScanRows(self._opener(lower, upper, reverse=False, limit=limit, key_only=key_only))

    def iter_reverse(
        self, lower: bytes = b"", upper: bytes = b"", *, limit: int | None = None, key_only: bool = False
    ) -> ScanRows:
        """Return the rows of [lower, upper) in descending order."""
        check_bounds(lower, upper, limit)
        return ScanRows(self._opener(lower, upper, reverse=True, limit=limit, key_only=key_only))

    def scan_pages(
        self, lower: bytes = b"", upper: bytes = b"", *, key_only: bool = False
    ) -> AsyncIterator[Page]:
        """Return the rows of [lower, upper) in lists, as they come from the store."""
        return self.iter(lower, upper, key_only=key_only).pages()

    def _opener(
        self, lower: bytes, upper: bytes, *, reverse: bool, limit: int | None, key_only: bool
    ) -> Callable[[], Awaitable[PageSource]]:
        async def open_scanner() -> PageSource:
            return self.scanner(lower, upper, reverse=reverse, limit=limit, key_only=key_only)

        return open_scanner

    def scanner(
        self, lower: bytes, upper: bytes, *, reverse: bool, limit: int | None = None, key_only: bool = False
    ) -> Scanner:
        """Return the pages of a range, for readers that work on whole pages."""
        cursor = Cursor(lower, upper, reverse, self._session.settings.scan_page_rows, limit)
        return Scanner(self._view, cursor, key_only=key_only)
