"""Where a consumer keeps its progress between runs: one small file, replaced as a whole."""

import json
from pathlib import Path
from typing import Any

from penstock.changefeeds.directory.progress import DirectoryProgress
from penstock.changefeeds.locations import location_of
from penstock.durable_files import replace_file
from penstock.errors import Corrupt, Invalid
from penstock.object_storage import StorageRef


class StateFile:
    """The progress of one directory's consumer. Durable on return of `save`."""

    def __init__(self, path: Path, directory: StorageRef) -> None:
        self._path = path
        self._directory = directory
        self._location = str(location_of(directory.url, directory.options))

    def load(self) -> DirectoryProgress:
        """What was saved, or the beginning; Invalid when it is another directory's, Corrupt when damaged."""
        try:
            tree = json.loads(self._path.read_bytes())
        except FileNotFoundError:
            return DirectoryProgress()
        except ValueError as error:
            raise Corrupt(f"state file {self._path} is no JSON; remove it to begin anew") from error
        except OSError as error:
            raise Invalid(
                f"state file {self._path} cannot be read ({error.strerror}); check its path"
            ) from error
        if isinstance(tree, dict):
            self._check_directory(tree)
        try:
            return DirectoryProgress.from_json(tree)
        except Corrupt as error:
            raise Corrupt(f"state file {self._path}: {error}") from error

    def _check_directory(self, tree: dict[str, Any]) -> None:
        """Raise Invalid for the state of another directory: also of a bucket of this name elsewhere."""
        known = tree.get("location")
        mine = self._location
        if known is None and "directory" in tree:  # an older release kept the URL without the endpoint
            known, mine = str(location_of(str(tree["directory"]))), str(location_of(self._directory.url))
        if known is not None and known != mine:
            raise Invalid(f"state file {self._path} is of {known}; give each directory a file of its own")

    def save(self, progress: DirectoryProgress) -> None:
        """Keep progress in place of what was kept before."""
        tree = {"location": self._location, **progress.to_json()}
        try:
            replace_file(self._path, json.dumps(tree).encode())
        except OSError as error:
            raise Invalid(
                f"state file {self._path} cannot be written ({error.strerror}); check its path"
            ) from error
