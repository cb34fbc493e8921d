"""How far a directory has been read, and the file that keeps it between runs, replaced as a whole."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

from penstock.changefeeds.directory.listing import Root
from penstock.changefeeds.sink_uri import location_of
from penstock.durable_files import replace_file
from penstock.errors import Corrupt, Invalid
from penstock.object_storage import StorageRef

_FORMAT = 1


class FilePosition(NamedTuple):
    """Files up to `number` were delivered, and the first `rows` changes of the next one."""

    number: int = 0
    rows: int = 0


@dataclass(slots=True)
class DirectoryProgress:
    """Where the next round goes on.

    `resolved_ts` is the checkpoint of the last finished round: every change up to it was delivered, so one
    that appears again is a repetition. A table's watermark is the version of its newest DDL: data of a lower
    version was delivered before the DDL. `seen` also counts schema files without a DDL.
    """

    resolved_ts: int = 0
    watermarks: dict[Root, int] = field(default_factory=dict)
    seen: dict[Root, int] = field(default_factory=dict)
    marks: dict[str, FilePosition] = field(default_factory=dict)  # by the path of a sequence's index file

    def mark(self, index_path: str) -> FilePosition:
        """Return how far a sequence of files was delivered."""
        return self.marks.get(index_path, FilePosition())

    def is_late(self, root: Root, version: int) -> bool:
        """Return whether a later DDL of the table was delivered already."""
        return version < self.watermarks.get(root, 0)

    def pass_schema(self, root: Root, version: int) -> None:
        """Record that a schema file was delivered."""
        self.seen[root] = max(version, self.seen.get(root, 0))

    def raise_watermark(self, root: Root, version: int) -> None:
        """Record that a DDL of a table was delivered."""
        self.watermarks[root] = max(version, self.watermarks.get(root, 0))

    def end_database(self, root: Root, version: int, tables: Iterable[Root]) -> None:
        """Record that a DROP DATABASE was delivered: nothing older can come for its tables."""
        for table in tables:
            if table.startswith(f"{root}/"):
                self.raise_watermark(table, version)

    def finish(self, checkpoint_ts: int, index_paths: Iterable[str]) -> None:
        """Finish a round; forget the sequences whose index files were cleaned up."""
        self.resolved_ts = checkpoint_ts
        existing = set(index_paths)
        self.marks = {path: mark for path, mark in self.marks.items() if path in existing}

    def to_json(self) -> dict[str, Any]:
        """Return the stored form."""
        return {
            "format": _FORMAT,
            "resolved_ts": self.resolved_ts,
            "watermarks": self.watermarks,
            "seen": self.seen,
            "marks": {path: list(mark) for path, mark in self.marks.items()},
        }

    @classmethod
    def from_json(cls, tree: Any) -> Self:
        """Read what `to_json` wrote; raise Corrupt when it is something else."""
        if not isinstance(tree, dict) or tree.get("format") != _FORMAT:
            raise Corrupt(f"the state of a consumer is not of format {_FORMAT}; begin without it")
        try:
            return cls(
                int(tree["resolved_ts"]),
                {str(root): int(ts) for root, ts in tree["watermarks"].items()},
                {str(root): int(ts) for root, ts in tree["seen"].items()},
                {
                    str(path): FilePosition(int(number), int(rows))
                    for path, (number, rows) in tree["marks"].items()
                },
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise Corrupt(
                "the state of a consumer has a missing or wrong member; begin without it"
            ) from error


class StateFile:
    """The file with the progress of one directory's consumer. It is durable when `save` returns."""

    def __init__(self, path: Path, directory: StorageRef) -> None:
        self._path = path
        self._directory = directory
        self._location = str(location_of(directory.url, directory.options))

    def load(self) -> DirectoryProgress:
        """Return the saved progress, or that of a beginning.

        Raises Invalid when it is another directory's, Corrupt when it is damaged.
        """
        try:
            tree = json.loads(self._path.read_bytes())
        except FileNotFoundError:
            return DirectoryProgress()
        except ValueError as error:
            raise Corrupt(f"state file {self._path} is no JSON; remove it to begin from the start") from error
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
        """Raise Invalid for the state of another directory, also of a bucket of the same name elsewhere."""
        stored = tree.get("location")
        own = self._location
        if stored is None and "directory" in tree:  # an older release stored the URL without the endpoint
            stored, own = str(location_of(str(tree["directory"]))), str(location_of(self._directory.url))
        if stored is not None and stored != own:
            raise Invalid(f"state file {self._path} is of {stored}; give each directory a file of its own")

    def save(self, progress: DirectoryProgress) -> None:
        """Replace the saved progress."""
        tree = {"location": self._location, **progress.to_json()}
        try:
            replace_file(self._path, json.dumps(tree).encode())
        except OSError as error:
            raise Invalid(
                f"state file {self._path} cannot be written ({error.strerror}); check its path"
            ) from error
