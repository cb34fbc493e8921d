"""The seam between what consumers of table formats do and what a format is.

The options of copies that are kept at a URL.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import pyarrow as pa
from pydantic import Field, field_validator

from penstock.consumers.lake.files import DataFile, FileStore, WrittenFile
from penstock.consumers.options import ConsumerOptions, Properties, Seconds, absolute_place, revealed
from penstock.consumers.schema_evolution import Dialect
from penstock.errors import PenstockError
from penstock.object_storage import StorageRef

__all__ = ["LakeOptions", "LakeTable", "LakeWatermark", "Overtaken", "Staging", "Version"]


class Overtaken(PenstockError):
    """Somebody else committed first; nothing of this was. Look what it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeWatermark:
    """What a copy keeps in each commit beside its rows."""

    owner: str
    """The job that keeps it, by its key in the log."""
    job: str
    """Its name, which a job that was registered anew has too."""
    watermark: int
    column_id: int
    """The greatest id that a column of the source had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A copy at one commit. Its schema has the metadata of `lakeschema` in its fields."""

    marks: LakeWatermark
    schema: pa.Schema
    origin: Any = field(repr=False)
    """What the format knows it by."""
    crowded: bool = False
    """Whether there are so many old versions that it is time for `maintain`."""


class Staging(Protocol):
    """A commit that is being prepared on top of a version. Nobody sees anything of it before `commit`."""

    @property
    def file_schema(self) -> pa.Schema:
        """That of new files: the columns in their order, with what the format wants to find in the files."""

    @property
    def open_store(self) -> Callable[[], FileStore]:
        """Opens the place of new files; can be pickled, for executors."""

    def commit(
        self, marks: LakeWatermark, written: Sequence[WrittenFile], removed: Sequence[DataFile]
    ) -> None:
        """Let files come and go, with the marks, all at once and durably; when it is whole, all others go.

        Raises Overtaken when the table is not at the version any more on which this was staged. Any other
        error leaves open whether it is committed.
        """


class LakeTable(Protocol):
    """A copy in some format. Blocking; made for one iteration. All methods may raise Unavailable."""

    @property
    def dialect(self) -> Dialect:
        """What it can do with columns."""

    @property
    def folder(self) -> str:
        """Where new files belong: below it, in folders by the watermark that they are put on top of."""

    @property
    def place(self) -> str:
        """What people call it; never with a secret."""

    def look(self) -> Version | None:
        """The newest version; None when there is nothing. Raises Invalid when somebody else's is there."""

    def files(self, version: Version) -> list[DataFile]:
        """The files of a version, with the bounds of the key's first column where the format keeps them."""

    def read(self, version: Version, file: DataFile) -> Iterator[pa.RecordBatch]:
        """The rows of one of them, in the version's columns, some at a time."""

    def stage(self, base: Version | None, schema: pa.Schema, *, whole: bool) -> Staging:
        """Prepare a commit; `whole`: none of the files that are there stays.

        Unless it is whole, columns may have come, or changed as the dialect can, and nothing else. Raises
        Overtaken like `commit`.
        """

    def maintain(self) -> None:
        """Let go of what was replaced long ago. Called after commits, now and then."""

    def close(self) -> None:
        """Let go of what is open."""


class LakeOptions(ConsumerOptions):
    """Where a copy is, and how long what was replaced in it can still be read."""

    places: ClassVar[tuple[str, ...]] = ("uri",)

    uri: str
    """A directory, or a URL such as s3://bucket/path."""
    storage: Properties = Field({}, repr=False)
    """What storage has to know: storage.region, storage.endpoint, storage.access_key_id, ..."""
    history: Seconds = Field(86_400, ge=0)
    """How long files stay that a commit has replaced: whoever began to read them has that much time."""

    @field_validator("uri")
    @classmethod
    def _as_url(cls, uri: str) -> str:
        if "?" in uri or "@" in uri.partition("://")[2].partition("/")[0]:
            raise ValueError("give credentials and settings as storage.*, not in the URI")
        place = absolute_place(uri)
        return place.rstrip("/") if "://" in place else Path(place).as_uri()

    @property
    def place(self) -> StorageRef:
        """The storage that it names."""
        return StorageRef(self.uri, revealed(self.storage))
