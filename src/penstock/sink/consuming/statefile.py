"""Where a consumer keeps its progress between runs: one small file, replaced as a whole."""

import json
from pathlib import Path

from penstock.errors import Corrupt, Invalid
from penstock.files import replace_file
from penstock.sink.consuming.progress import Progress
from penstock.sink.files.locations import location_of


class StateFile:
    """The progress of one directory's consumer. Durable on return of `save`."""

    def __init__(self, path: Path, directory: str, server: str = "") -> None:
        self._path = path
        self._directory = directory
        self._server = server

    def load(self) -> Progress:
        """What was saved, or the beginning; Invalid when it is another directory's, Corrupt when damaged."""
        try:
            tree = json.loads(self._path.read_bytes())
        except FileNotFoundError:
            return Progress()
        except ValueError as error:
            raise Corrupt(f"state file {self._path} is no JSON; remove it to begin anew") from error
        except OSError as error:
            raise Invalid(
                f"state file {self._path} cannot be read ({error.strerror}); check its path"
            ) from error
        known = tree.get("directory") if isinstance(tree, dict) else None
        if known is not None and location_of(str(known)) != location_of(self._directory):
            raise Invalid(f"state file {self._path} is of {known}; give each directory a file of its own")
        server = tree.get("server") if isinstance(tree, dict) else None  # older files do not say it
        if server is not None and server != self._server:
            raise Invalid(
                f"state file {self._path} is of {known} at {server or 'the default endpoint'};"
                " give each directory a file of its own"
            )
        try:
            return Progress.from_json(tree)
        except Corrupt as error:
            raise Corrupt(f"state file {self._path}: {error}") from error

    def save(self, progress: Progress) -> None:
        """Keep progress in place of what was kept before."""
        tree = {"directory": self._directory, "server": self._server, **progress.to_json()}
        try:
            replace_file(self._path, json.dumps(tree).encode())
        except OSError as error:
            raise Invalid(
                f"state file {self._path} cannot be written ({error.strerror}); check its path"
            ) from error
