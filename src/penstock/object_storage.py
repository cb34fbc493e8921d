"""Object storage behind one narrow seam: file://, s3://, gs://, az:// and memory:// through obstore.

Every call blocks (and releases the GIL), so it belongs on a worker thread. A call raises Unavailable when a
retry may help; a write that raised it may or may not have happened. A call raises Denied when storage refuses
the credentials. `open_storage` raises Invalid for a wrong URL or option.
"""

import errno
import fcntl
import io
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, cast
from urllib.parse import unquote, urlsplit

import obstore
import pyarrow as pa
from obstore import exceptions
from obstore.store import LocalStore, ObjectStore, from_url

from penstock.clock import SYSTEM, Clock
from penstock.durable_files import (
    PRIVATE_FOLDER,
    is_content,
    is_inside,
    make_data_directory,
    make_folder,
    make_private_folder,
    open_plain,
    sync_data,
    sync_folder,
)
from penstock.errors import Corrupt, Denied, Invalid, Unavailable
from penstock.secret_masks import NO_SECRETS, SecretMask, is_secret

if TYPE_CHECKING:
    from obstore import GetResult, ObjectMeta, UpdateVersion

STAGING = "staging/"
"""Folder of a local directory for files that are being written. Object storage needs no such folder."""

STAGING_LOCK = f"{STAGING}lock"
"""File that a process locks while it replaces an object of a local directory. It is never removed."""

_SCHEMES = ("file", "s3", "gs", "az", "memory")
_REASON_CHARS_MAX = 400  # an address with its path, the status, and the beginning of what the service says
_CLOUDS = ("AWS_", "AZURE_", "GOOGLE_")
_RETRIES: dict[str, Any] = {"max_retries": 5, "retry_timeout": timedelta(seconds=10)}
REQUEST_S = 30.0
"""After so many seconds a request is given up: obstore's own value."""
_QUICK_BYTES = 8 * 1024 * 1024  # one request may write so much in that time
_SLOWEST_BYTES_PER_S = 2 * 1024 * 1024  # of what is more
_CLIENT_VARIABLES = ("AWS_CONNECT_TIMEOUT", "AWS_PROXY_URL", "AWS_PROXY_CA_CERTIFICATE", "AWS_TIMEOUT")
_CONFLICT_RETRIES, _CONFLICT_PAUSE_S = 5, 0.05
_UPLOAD_PART_BYTES = 8 * 1024 * 1024
_LOCK_WAIT_S, _LOCK_LOOK_S = 10.0, 0.005
ADVANCED_BYTES_MAX = 64 * 1024
"""What an object that advances may have: it names a file or a checkpoint."""
_ADVANCES_MAX = 100  # processes that may come between one `advance` and its object
_SYNCED_FOLDERS_MAX = 10_000
_BY_UMASK = 0o777


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object in a listing. `modified_ms` is wall time by the clock of the storage."""

    path: str
    size_bytes: int
    modified_ms: int


def put_timeout_s(nbytes: int) -> float:
    """Return after how many seconds the request that writes so many bytes is given up."""
    more = _round_up(nbytes) - _QUICK_BYTES
    return REQUEST_S + max(0, more) / _SLOWEST_BYTES_PER_S


def _round_up(nbytes: int) -> int:
    """Return the next size for which there are connections of their own: a power of two."""
    return 1 << max(nbytes - 1, 0).bit_length()


class ObjectStorage:
    """Objects under one URL. When a write returns, its object is durable, complete and visible to all.

    A request is given up after `REQUEST_S`, one that writes much after `put_timeout_s`: `open_slow` returns a
    store with such a timeout. A service may repeat its credentials in an answer: `mask` takes them from every
    error.
    """

    def __init__(
        self,
        url: str,
        store: ObjectStore,
        clock: Clock = SYSTEM,
        *,
        mask: SecretMask = NO_SECRETS,
        open_slow: Callable[[float], ObjectStore] | None = None,
    ) -> None:
        self.url = url
        self._store = store
        self._clock = clock
        self._mask = mask
        self._open_slow = open_slow
        self._slow: dict[float, ObjectStore] = {}  # by their timeouts

    def _store_for(self, nbytes: int) -> ObjectStore:
        """Return the store whose requests may take as long as so many bytes take on a slow line."""
        if nbytes <= _QUICK_BYTES or self._open_slow is None:
            return self._store
        timeout_s = put_timeout_s(nbytes)
        if timeout_s not in self._slow:
            self._slow[timeout_s] = self._open_slow(timeout_s)
        return self._slow[timeout_s]

    def read(self, path: str, *, bytes_max: int | None = None) -> bytes | None:
        """Return an object's bytes, or None when there is none.

        Where others can write too, name the most that the object may have: a larger one raises Corrupt, and
        is not read. The memory of this process is also that of other accounts.
        """
        with self._failures("read", path):
            try:
                return self._content(path, obstore.get(self._store, path), bytes_max)
            except FileNotFoundError:
                return None

    def _content(self, path: str, found: "GetResult", bytes_max: int | None) -> bytes:
        size = found.meta["size"]
        if bytes_max is not None and size > bytes_max:
            raise Corrupt(
                f"object {path} at {self.url} has {size} bytes, and at most {bytes_max} are expected; look at"
                " it, and remove it if it is not Penstock's"
            )
        return found.bytes().to_bytes()

    def holds(self, path: str, data: bytes) -> bool:
        """Return whether an object has this very content. One of another size is not read."""
        with self._failures("read", path):
            try:
                found = obstore.get(self._store, path)
            except FileNotFoundError:
                return False
            return found.meta["size"] == len(data) and found.bytes().to_bytes() == data

    def keep_private(self) -> None:
        """Make a local directory for this user only, with what is in it; do nothing for other storage."""

    def exists(self, path: str) -> bool:
        """Return whether the object exists."""
        return self.size(path) is not None

    def size(self, path: str) -> int | None:
        """Return the bytes that an object has, or None when there is none."""
        with self._failures("look for", path):
            try:
                return int(obstore.head(self._store, path)["size"])
            except FileNotFoundError:
                return None

    def open(self, path: str) -> pa.NativeFile:
        """Open an object for reading by range; raise Unavailable when it is not there."""
        with self._failures("open", path):
            try:
                size = obstore.head(self._store, path)["size"]
            except FileNotFoundError as error:
                raise Unavailable(_not_there(path, self.url)) from error
        return pa.PythonFile(_ObjectFile(self, path, size), mode="r")

    def read_range(self, path: str, start: int, end: int) -> bytes:
        """Return the bytes [start, end) of an object that exists."""
        with self._failures("read", path):
            return obstore.get_range(self._store, path, start=start, end=end).to_bytes()

    def create(self, path: str, data: bytes) -> bool:
        """Write an object unless it exists; return whether this call made it.

        False may also mean that the first try of this very call succeeded and its answer was lost:
        compare the content.
        """
        with self._failures("create", path):
            tried = 0
            while True:
                try:
                    obstore.put(self._store_for(len(data)), path, data, mode="create")
                except exceptions.AlreadyExistsError as error:
                    if self.exists(path):
                        return False
                    tried = self._retry(tried, error)
                else:
                    return True

    def write(self, path: str, data: bytes | Path) -> None:
        """Write or replace an object from memory, or from a local file in bounded memory."""
        with self._failures("write", path):
            obstore.put(self._store, path, data, chunk_size=_UPLOAD_PART_BYTES, max_concurrency=4)

    def swap(self, path: str, data: bytes, *, seen: bytes | None) -> bool:
        """Write an object if its content is still `seen` (None: if it does not exist).

        Return whether this call gave the object its new content. The answer is certain, also after a lost
        answer to the first try, when no two versions of the object have the same content.
        """
        if seen is None:
            return self.create(path, data) or self.holds(path, data)
        with self._failures("replace", path):
            tried = 0
            while True:
                try:
                    current = obstore.get(self._store, path)
                except FileNotFoundError:
                    return False
                if current.meta["size"] > max(len(seen), len(data)):
                    return False
                content = current.bytes().to_bytes()
                if content != seen:
                    return tried > 0 and content == data
                try:
                    self._put_over(path, data, current.meta)
                except (exceptions.PreconditionError, exceptions.NotFoundError):
                    return self.holds(path, data)
                except exceptions.AlreadyExistsError as error:
                    tried = self._retry(tried, error)
                else:
                    return True

    def advance(self, path: str, data: bytes, *, is_older: Callable[[bytes], bool]) -> None:
        """Write an object unless its content is as new or newer; `is_older` judges the content that is there.

        So the object never goes back, whoever writes it, and however late. On return it has this content or a
        newer one. It is small: raises Corrupt when the one that is there is not.
        """
        with self._failures("replace", path):
            tried = 0
            for _ in range(_ADVANCES_MAX):
                try:
                    current = obstore.get(self._store, path)
                except FileNotFoundError:
                    if self.create(path, data):
                        return
                    continue
                if not is_older(self._content(path, current, ADVANCED_BYTES_MAX)):
                    return
                try:
                    self._put_over(path, data, current.meta)
                except (exceptions.PreconditionError, exceptions.NotFoundError):
                    continue  # somebody else was first: look at what is there now
                except exceptions.AlreadyExistsError as error:
                    tried = self._retry(tried, error)
                else:
                    return
        raise Unavailable(f"object {path} at {self.url} is replaced by too many writers at once; try again")

    def _put_over(self, path: str, data: bytes, seen: "ObjectMeta") -> None:
        """Replace the very version of an object that was seen; raise PreconditionError when it is gone."""
        version = {name: seen[name] for name in ("e_tag", "version") if seen[name] is not None}
        obstore.put(self._store, path, data, mode=cast("UpdateVersion", version), use_multipart=False)

    def _retry(self, tried: int, error: exceptions.AlreadyExistsError) -> int:
        """Pause before the retry of a put that met another request for its object; return the tries so far.

        S3 answers such a put with 409 and does nothing; obstore reports it as an object that exists.
        """
        if tried == _CONFLICT_RETRIES:
            raise error
        self._clock.pause(_CONFLICT_PAUSE_S * 2**tried)
        return tried + 1

    def names(self, folder: str, *, after: str = "") -> list[str]:
        """Return the paths of the objects in a folder that sort after `after`, in order."""
        with self._failures("list", folder):
            offset = after or None
            paths = [
                meta["path"] for page in obstore.list(self._store, folder, offset=offset) for meta in page
            ]
        return sorted(path for path in paths if path > after)

    def find(self, matches: Callable[[str], bool]) -> str | None:
        """Return the path of the first object that matches, or None; keep no listing in memory."""
        with self._failures("list", ""):
            paths = (meta["path"] for page in obstore.list(self._store) for meta in page)
            return next(filter(matches, paths), None)

    def folders(self, folder: str) -> list[str]:
        """Return the names of the folders directly below a folder, in order. Deeper objects cost nothing."""
        with self._failures("list", folder):
            prefixes = obstore.list_with_delimiter(self._store, folder)["common_prefixes"]
        return sorted(prefix.rstrip("/").rpartition("/")[2] for prefix in prefixes)

    def list_objects(self, folder: str) -> list[StoredObject]:
        """Return the objects in a folder with their sizes and times, in order of their paths."""
        with self._failures("list", folder):
            objects = [
                StoredObject(meta["path"], meta["size"], int(meta["last_modified"].timestamp() * 1000))
                for page in obstore.list(self._store, folder)
                for meta in page
            ]
        return sorted(objects, key=lambda stored: stored.path)

    def delete(self, path: str) -> None:
        """Remove an object. Do nothing when it does not exist."""
        with self._failures("delete", path):
            try:
                obstore.delete(self._store, path)
            except FileNotFoundError:
                return

    def _failures(self, what: str, path: str) -> "_Failures":
        return _Failures(what, path, self.url, self._mask)


class _Failures:
    """Turns what storage raises into our errors. A class, because a generator would slow every call."""

    __slots__ = ("_mask", "_path", "_url", "_what")

    def __init__(self, what: str, path: str, url: str, mask: SecretMask) -> None:
        self._what = what
        self._path = path
        self._url = url
        self._mask = mask

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None:
            return
        call = f"{self._what} {self._path} at {self._url} ({_reason(error, self._mask)})"
        if isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError):
            raise Denied(f"storage refuses to {call}; check its credentials") from error
        if isinstance(error, exceptions.BaseError | OSError):
            raise Unavailable(f"cannot {call}; try again") from error


class _ObjectFile(io.RawIOBase):
    """An object as a file. Arrow reads ranges of it."""

    def __init__(self, storage: ObjectStorage, path: str, size: int) -> None:
        super().__init__()
        self._storage = storage
        self._path = path
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def read(self, size: int = -1, /) -> bytes:
        end = self._size if size < 0 else min(self._size, self._at + size)
        if end <= self._at:
            return b""
        data = self._storage.read_range(self._path, self._at, end)
        self._at = end
        return data


class LocalStorage(ObjectStorage):
    """A local directory. A change is on the disk before its call returns.

    Only this user can read what is written to it, unless it is shared: then files follow the umask. Nothing
    is written or deleted through a symbolic link that leads out of the directory. The directory itself may be
    a link, as it was when the storage was opened. An object is a regular file: to read or to look for a FIFO,
    a socket or a device raises Corrupt, and does not wait for it.
    """

    def __init__(self, url: str, folder: Path, clock: Clock, *, shared: bool = False) -> None:
        if not shared:
            make_private_folder(folder)
        super().__init__(url, LocalStore(folder, mkdir=True), clock)
        self._folder = folder
        self._real_folder = os.path.realpath(folder)
        self._shared = shared
        self._synced: set[Path] = set()
        """Folders whose names are on the disk."""

    def keep_private(self) -> None:
        with self._failures("narrow", ""):
            make_data_directory(self._folder)

    def read(self, path: str, *, bytes_max: int | None = None) -> bytes | None:
        self._require_file(path)
        return super().read(path, bytes_max=bytes_max)

    def holds(self, path: str, data: bytes) -> bool:
        self._require_file(path)
        return super().holds(path, data)

    def size(self, path: str) -> int | None:
        self._require_file(path)
        return super().size(path)

    def read_range(self, path: str, start: int, end: int) -> bytes:
        self._require_file(path)
        return super().read_range(path, start, end)

    def open(self, path: str) -> pa.NativeFile:
        self._require_file(path)
        with self._failures("open", path):
            try:
                return pa.OSFile(str(self._locate(path)))
            except FileNotFoundError as error:
                raise Unavailable(_not_there(path, self.url)) from error

    def find(self, matches: Callable[[str], bool]) -> str | None:
        """Return the path of the first file that matches, or None.

        Skip links to folders, and folders that this process may not list.
        """
        paths = (Path(folder, name) for folder, _, names in os.walk(self._folder) for name in names)
        return next(filter(matches, (path.relative_to(self._folder).as_posix() for path in paths)), None)

    def create(self, path: str, data: bytes) -> bool:
        with self._failures("create", path), self._stage(data) as staged:
            target = self._prepare(path)
            created = True
            try:
                os.link(staged, target)
            except FileExistsError:
                created = False
            sync_folder(target.parent)  # the process that made the file may have been killed before its sync
            return created

    def write(self, path: str, data: bytes | Path) -> None:
        with self._failures("write", path), self._stage(data) as staged:
            target = self._prepare(path)
            staged.replace(target)
            sync_folder(target.parent)

    def delete(self, path: str) -> None:
        with self._failures("delete", path):
            target = self._locate(path)
            self._check_inside(target.parent)
            with suppress(FileNotFoundError):  # the folder of the object may not exist either
                target.unlink(missing_ok=True)
                sync_folder(target.parent)

    def swap(self, path: str, data: bytes, *, seen: bytes | None) -> bool:
        if seen is None:
            return super().swap(path, data, seen=None)
        return self._replace(path, data, lambda: self.holds(path, seen))

    def advance(self, path: str, data: bytes, *, is_older: Callable[[bytes], bool]) -> None:
        def allows() -> bool:
            content = self.read(path, bytes_max=ADVANCED_BYTES_MAX)
            return content is None or is_older(content)

        self._replace(path, data, allows)

    def _replace(self, path: str, data: bytes, allows: Callable[[], bool]) -> bool:
        """Write a file if `allows` says so once the lock is held; return whether it did.

        The lock is held for a read and a rename only: a process that is stopped just there keeps all others
        from writing until it is continued or killed.
        """
        with self._failures("replace", path), self._stage(data) as staged:
            target = self._prepare(path)
            with self._hold_lock():
                allowed = allows()
                if allowed:
                    staged.replace(target)
            sync_folder(target.parent)  # a process that was killed after its rename may not have done so
            return allowed

    @contextmanager
    def _hold_lock(self) -> Iterator[None]:
        """Hold the directory's lock, which only one process has at a time.

        Raise BlockingIOError when another process holds it for 10 seconds, because it hangs.
        """
        self._make_folder(self._folder / STAGING)
        deadline = self._clock.monotonic() + _LOCK_WAIT_S
        with self._create_file(STAGING_LOCK, "a+b") as file:
            while not _try_flock(file):
                if self._clock.monotonic() > deadline:
                    file.seek(0)
                    holder = file.read().decode("ascii", "replace") or "another process"
                    raise BlockingIOError(errno.EAGAIN, f"{holder} holds its lock; end that process")
                self._clock.pause(_LOCK_LOOK_S)
            file.truncate(0)
            file.write(f"process {os.getpid()} of {os.uname().nodename}".encode())
            file.flush()
            yield

    @contextmanager
    def _stage(self, data: bytes | Path) -> Iterator[Path]:
        """Yield a synced copy of the data, on the same file system and outside of every listed folder."""
        self._make_folder(self._folder / STAGING)
        staged = self._folder / STAGING / self._clock.unique_id()
        try:
            with self._create_file(staged, "xb") as file:
                if isinstance(data, Path):
                    with data.open("rb") as source:
                        shutil.copyfileobj(source, file, _UPLOAD_PART_BYTES)
                else:
                    file.write(data)
                file.flush()
                sync_data(file.fileno())
            yield staged
        finally:
            staged.unlink(missing_ok=True)

    def _create_file(self, path: str | Path, mode: Literal["xb", "a+b"]) -> IO[bytes]:
        return open_plain(self._folder / path, mode, private=not self._shared)

    def _check_inside(self, folder: Path) -> None:
        """Raise Unavailable when a folder leads out of the directory: links may be made at any time."""
        if not is_inside(folder, self._real_folder):
            place = folder.relative_to(self._folder)
            raise Unavailable(
                f"{place} at {self.url} leads out of it by a symbolic link; remove the link, or restart"
                " Penstock if the whole directory was moved"
            )

    def _require_file(self, path: str) -> None:
        """Raise Corrupt when an object is something that may keep whoever opens it for ever."""
        try:
            mode = os.stat(self._folder / path).st_mode  # noqa: PTH116 - Path.stat is slower, and this is hot
        except (OSError, ValueError):
            return  # who opens it says what is wrong
        if not is_content(mode):
            raise Corrupt(f"object {path} at {self.url} is no regular file; remove it")

    def _locate(self, path: str) -> Path:
        """Return the file of an object; raise Corrupt for one outside, which a forged manifest may name.

        Other kinds of storage refuse such a path themselves.
        """
        target = self._folder / path
        if ".." in target.parts or not target.is_relative_to(self._folder):
            raise Corrupt(
                f"an object of {self.url} refers to {path}, which is outside; restore or rebuild it"
            )
        return target

    def _prepare(self, path: str) -> Path:
        target = self._locate(path)
        self._make_folder(target.parent)
        return target

    def _make_folder(self, folder: Path) -> None:
        """Make a folder and sync its name. An existing one is synced too: its maker may not have done so."""
        self._check_inside(folder)
        if folder in self._synced and folder.is_dir():
            return
        if folder == self._folder:
            make_folder(folder, private=not self._shared)
        else:
            self._make_folder(folder.parent)
            folder.mkdir(mode=_BY_UMASK if self._shared else PRIVATE_FOLDER, exist_ok=True)
            sync_folder(folder.parent)
        if len(self._synced) >= _SYNCED_FOLDERS_MAX:
            self._synced.clear()
        self._synced.add(folder)


def _try_flock(file: IO[bytes]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def open_storage(
    url: str, options: Mapping[str, str] | None = None, *, shared: bool = False, clock: Clock = SYSTEM
) -> ObjectStorage:
    """Open a storage URL; raise Invalid when the URL or an option is wrong.

    What is written to a local directory is for this user only, unless it is `shared`.

    Options are obstore's configuration keys (endpoint, region, access_key_id, ...). The usual environment
    variables of each cloud apply as well.
    """
    parts = urlsplit(url)
    if parts.scheme not in _SCHEMES:
        raise Invalid(f"storage URL {url!r} has an unknown scheme; use one of {', '.join(_SCHEMES)}://")
    if parts.scheme == "file":
        return _open_folder(url, unquote(parts.netloc + parts.path), clock, shared=shared)
    config = dict(options or {})
    mask = SecretMask({**_environment_secrets(), **config})
    settings: dict[str, Any] = {"config": config, "retry_config": _RETRIES}
    allows_http = config.pop("allow_http", "") == "true"
    if allows_http:  # even empty client_options would hide AWS_ALLOW_HTTP
        settings["client_options"] = {"allow_http": True}
    try:
        store = from_url(url) if parts.scheme == "memory" else from_url(url, **settings)
    except (exceptions.BaseError, ValueError) as error:
        why = _reason(error, mask)
        raise Invalid(f"storage {url} cannot be opened ({why}); check its options") from error
    if parts.scheme == "memory" or any(name in os.environ for name in _CLIENT_VARIABLES):
        return ObjectStorage(url, store, clock, mask=mask)  # whoever sets those has chosen the timeouts
    allows_http = allows_http or os.environ.get("AWS_ALLOW_HTTP", "").lower() in {"1", "true"}

    def open_slow(timeout_s: float) -> ObjectStore:
        options = {"timeout": timedelta(seconds=timeout_s), "allow_http": allows_http}
        return from_url(url, **{**settings, "client_options": options})

    return ObjectStorage(url, store, clock, mask=mask, open_slow=open_slow)


def _open_folder(url: str, path: str, clock: Clock, *, shared: bool) -> ObjectStorage:
    try:
        return LocalStorage(url, Path(path).absolute(), clock, shared=shared)
    except (exceptions.BaseError, OSError) as error:
        why = _reason(error, NO_SECRETS)
        raise Invalid(f"storage {url} cannot be opened ({why}); check the directory") from error


def _environment_secrets() -> dict[str, str]:
    """Return the credentials that storage finds in the environment."""
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith(_CLOUDS) and is_secret(name) and not name.endswith(("_FILE", "_ID"))
    }


def _not_there(path: str, url: str) -> str:
    return f"object {path} does not exist at {url}; plan the read again"


def _reason(error: BaseException, mask: SecretMask) -> str:
    lines = mask(str(error)).strip().splitlines()
    return lines[0][:_REASON_CHARS_MAX] if lines else type(error).__name__


_open_storages: dict[tuple[str, tuple[tuple[str, str], ...], bool], ObjectStorage] = {}
"""The least recently used comes first."""
_OPEN_STORAGES_MAX = 256
"""Each holds connections and credentials: whoever makes and removes changefeeds in a loop leaves no more."""
_opening = threading.Lock()


@dataclass(frozen=True)
class StorageRef:
    """The URL and options of a storage: a value that can be sent to other processes."""

    url: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    shared: bool = False
    """Whether users of the machine other than Penstock's may read a local directory, as the umask says."""

    def open(self) -> ObjectStorage:
        """Return the storage. Equal references share one within a process, also for memory://."""
        shared = self.shared and self.url.startswith("file:")
        key = self.url, tuple(sorted(self.options.items())), shared
        with _opening:
            storage = _open_storages.pop(key, None)
            if storage is None:
                storage = open_storage(self.url, self.options, shared=shared)
            _open_storages[key] = storage
            if len(_open_storages) > _OPEN_STORAGES_MAX:  # memory:// stays: its objects are nowhere else
                others = [other for other in _open_storages if not other[0].startswith("memory:")]
                for oldest in others[:-_OPEN_STORAGES_MAX]:
                    del _open_storages[oldest]  # those who use it go on with it
            return storage
