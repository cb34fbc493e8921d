"""The keys of a deployment: what must be kept of secrets is sealed with the first of them.

The file has one key in each line, made by `Fernet` (AES-128 in CBC mode with an HMAC). The first seals, all
of them open. A sealed text begins with the id of its key, so that a process without that key says so instead
of taking the text for a damaged one. The cluster keeps the id of the first key (`KEY_ROW`): a process makes a
key only for a cluster that has none. Running processes read the file again when it changes.
"""

import hashlib
import json
import os
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from cryptography.fernet import Fernet, InvalidToken

from penstock.clock import SYSTEM
from penstock.durable_files import make_folder, open_private, replace_file, sync_data, sync_folder
from penstock.errors import Corrupt, Invalid

__all__ = ["KEY_ROW", "Keyring", "LossyKeyring", "MissingKey"]

KEY_ROW = b"penstock/secrets/key"
"""The row of the key-value store with the id of the deployment's first key."""
_FOLDER = Path("penstock-data/secrets")
_FILE = "seal.key"
_PATH_VARIABLE = "PENSTOCK_SEAL_KEY"


class MissingKey(Invalid):
    """This process does not have the key with which secrets of its deployment are sealed."""


class Keyring:
    """The keys in `seal.key` of a folder, which need not exist before something is sealed. Thread-safe.

    Instead of that file in the default folder, it is the one that the variable PENSTOCK_SEAL_KEY names: for
    programs without settings. Every method raises Invalid when the file cannot be used.
    """

    def __init__(self, folder: Path = _FOLDER) -> None:
        named = os.environ.get(_PATH_VARIABLE) if folder == _FOLDER else None
        self.path = Path(named) if named else folder / _FILE
        self._lock = threading.Lock()
        self._seen: tuple[int, int, int] | None = None
        self._keys: dict[str, Fernet] = {}

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of the keys; the first one seals."""
        return tuple(self._load())

    def seal(self, tree: Mapping[str, Any]) -> str:
        """Return a tree of JSON as a text that shows nothing of it; raise MissingKey when there is no key."""
        found = next(iter(self._load().items()), None)
        if found is None:
            raise MissingKey(f"{self.path} has no key to seal secrets with; {_REMEDY}")
        return f"{found[0]}:{found[1].encrypt(json.dumps(tree).encode()).decode()}"

    def open(self, sealed: str) -> dict[str, Any]:
        """Return what `seal` got; raise MissingKey without its key, Corrupt when the text is damaged."""
        key_id, colon, token = sealed.partition(":")
        if not colon:
            raise Corrupt("a sealed secret is damaged; give it again")
        key = self._load().get(key_id)
        if key is None:
            raise MissingKey(
                f"secrets are sealed with key {key_id}, which {self.path} does not have; {_REMEDY}"
            )
        try:
            tree: dict[str, Any] = json.loads(key.decrypt(token))
        except (InvalidToken, ValueError):
            raise Corrupt("a sealed secret is damaged; give it again") from None
        return tree

    def is_newest(self, sealed: str) -> bool:
        """Return whether a text is sealed with the first key."""
        return sealed.partition(":")[0] == next(iter(self._load()), None)

    def claim(self, row: bytes | None) -> bytes | None:
        """Return what to write to `KEY_ROW`, whose value is `row`, before something is sealed; None: nothing.

        Makes the first key of a cluster that has none. Raises MissingKey when it has one that is not here.
        """
        if row is None:
            self._create()
            return self.ids[0].encode()
        if row.decode() not in self.ids:
            known = f"this deployment seals secrets with key {row.decode()}"
            raise MissingKey(f"{known}, which {self.path} does not have; {_REMEDY}")
        return None

    def rotate(self, *, prepare: bool = False) -> str:
        """Put a new key first and return its id; the others stay, to open what they sealed.

        With `prepare` the key only opens until the next call, which puts it first: so the file can be copied
        to all machines before anything is sealed with the new key.
        """
        self._create()
        keys = self._read()
        waiting = [key for key in keys if key.startswith(_NEXT)]
        key = waiting[0].removeprefix(_NEXT) if waiting else Fernet.generate_key().decode()
        others = [other for other in keys if not other.startswith(_NEXT)]
        self._write([*others, _NEXT + key] if prepare else [key, *others])
        return _id(key)

    def drop_old(self) -> list[str]:
        """Remove the keys that were first before, and return their ids. What they sealed cannot be opened."""
        first, *others = self._read()
        self._write([first, *(key for key in others if key.startswith(_NEXT))])
        return [_id(key) for key in others if not key.startswith(_NEXT)]

    def _load(self) -> dict[str, Fernet]:
        """Return the keys by their ids, in order; read the file again when it has changed."""
        with self._lock:
            try:
                found = self.path.stat()
            except OSError:
                return {}
            seen = (found.st_mtime_ns, found.st_size, found.st_ino)
            if seen != self._seen:
                self._keys = {_id(key): Fernet(key.removeprefix(_NEXT)) for key in self._read()}
                self._seen = seen
            return self._keys

    def _read(self) -> list[str]:
        try:
            keys = self.path.read_text("ascii").splitlines()
            for key in keys:
                Fernet(key.removeprefix(_NEXT))
        except OSError as error:
            raise Invalid(f"key file {self.path} cannot be read ({error.strerror}); {_REMEDY}") from error
        except ValueError:
            raise Invalid(f"key file {self.path} is damaged; {_REMEDY}") from None
        return keys

    def _write(self, keys: Iterable[str]) -> None:
        try:
            replace_file(self.path, "".join(f"{key}\n" for key in keys).encode())
        except OSError as error:
            raise Invalid(f"key file {self.path} cannot be written ({error.strerror}); {_REMEDY}") from error

    def _create(self) -> None:
        """Make the file with one key, unless there is one; of several processes at once, one makes it."""
        if self._load():
            return
        fresh = self.path.with_name(f"{self.path.name}.{SYSTEM.unique_id()[:12]}")
        try:
            make_folder(self.path.parent)
            with open_private(fresh, "xb") as file:
                file.write(Fernet.generate_key() + b"\n")
                file.flush()
                sync_data(file.fileno())
            with suppress(FileExistsError):  # another process was faster: its key counts
                os.link(fresh, self.path)
            fresh.unlink()
            sync_folder(self.path.parent)
        except OSError as error:
            raise Invalid(f"key file {self.path} cannot be made ({error.strerror}); {_REMEDY}") from error


class LossyKeyring(Keyring):
    """The same keys, for a deployment that has lost one: what it sealed is opened as `instead`."""

    def __init__(self, keys: Keyring, instead: Mapping[str, Any]) -> None:
        super().__init__()
        self.path = keys.path
        self._instead = instead

    def open(self, sealed: str) -> dict[str, Any]:
        """Return what `seal` got, or `instead` when its key is lost; raise Corrupt for a damaged text."""
        try:
            return super().open(sealed)
        except MissingKey:
            return dict(self._instead)


_NEXT = "next "
"""Before a key that does not seal yet."""
_REMEDY = "copy the key file of the deployment there, or name its folder by secrets_dir"


def _id(key: str) -> str:
    """Return the name of a key, which tells nothing of it."""
    return hashlib.sha256(key.removeprefix(_NEXT).encode()).hexdigest()[:12]
