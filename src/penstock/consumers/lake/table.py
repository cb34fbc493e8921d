"""The seam between what consumers of table formats share and what a format provides; options of copies."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import pyarrow as pa
from pydantic import Field, field_validator

from penstock.consumers.lake.files import DataFile, FileStore, WrittenFile
from penstock.consumers.options import ConsumerOptions, Properties, Seconds, absolute_place, reveal_secrets
from penstock.consumers.schema_evolution import Dialect
from penstock.errors import PenstockError
from penstock.object_storage import StorageRef
from penstock.targets import Target

__all__ = ["LakeOptions", "LakeTable", "LakeWatermark", "Overtaken", "Staging", "Version"]


class Overtaken(PenstockError):
    """Another writer committed first, and nothing of this commit was made. Read the newest version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeWatermark:
    """What a copy keeps in each commit beside its rows."""

    owner: str
    """The key of the job that keeps it."""
    job: str
    """The job's name, which a job that is registered again has too."""
    watermark: int
    column_id: int
    """The greatest id of a column of the source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A copy at one commit. The fields of its schema have the metadata of `schema_evolution`."""

    marks: LakeWatermark
    schema: pa.Schema
    origin: Any = field(repr=False)
    """The format's own object."""
    crowded: bool = False
    """Whether there are so many old versions that `maintain` is due."""


class Staging(Protocol):
    """A commit that is being prepared on top of a version. Nothing of it is visible before `commit`."""

    @property
    def file_schema(self) -> pa.Schema:
        """The schema of new files: the columns in order, with what the format needs in its files."""

    @property
    def open_store(self) -> Callable[[], FileStore]:
        """Opens the place of new files; can be pickled for executors."""

    def commit(
        self, marks: LakeWatermark, written: Sequence[WrittenFile], removed: Sequence[DataFile]
    ) -> None:
        """Add and remove files, with the marks, in one durable commit; a whole one removes all other files.

        Raises Overtaken when the table is not at the version any more on which this was staged. After any
        other error it is unknown whether it is committed.
        """


class LakeTable(Protocol):
    """A copy in some format. Blocking; made for one iteration. All methods may raise Unavailable."""

    @property
    def dialect(self) -> Dialect:
        """What the format can do with columns."""

    @property
    def folder(self) -> str:
        """The folder of new files, which has a folder for each watermark that they are put on top of."""

    @property
    def place(self) -> str:
        """The name for messages; never with a secret."""

    def latest(self) -> Version | None:
        """Return the newest version; None when there is none. Raises Invalid when it is not Penstock's."""

    def files(self, version: Version) -> list[DataFile]:
        """Return the files of a version, with bounds of the key's first column if the format keeps them."""

    def read(self, version: Version, file: DataFile) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file, in the version's columns, some at a time."""

    def stage(self, base: Version | None, schema: pa.Schema, *, whole: bool) -> Staging:
        """Prepare a commit; `whole`: none of the existing files stays.

        Unless it is whole, the only changes of columns are new ones, and those that the dialect can do.
        Raises Overtaken like `commit`.
        """

    def maintain(self) -> None:
        """Remove what was replaced long ago. Called after commits from time to time."""

    def close(self) -> None:
        """Close what is open."""


class LakeOptions(ConsumerOptions):
    """Where a copy is, and how long replaced files can still be read."""

    places: ClassVar[tuple[str, ...]] = ("uri",)

    uri: str
    """A directory, or a URL such as s3://bucket/path."""
    storage: Properties = Field({}, repr=False)
    """Options of the storage: storage.region, storage.endpoint, storage.access_key_id, ..."""
    history: Seconds = Field(86_400, ge=0)
    """How long files stay after a commit has replaced them: readers have that much time."""

    @field_validator("uri")
    @classmethod
    def _as_url(cls, uri: str) -> str:
        if "?" in uri or "@" in uri.partition("://")[2].partition("/")[0]:
            raise ValueError("give credentials and settings as storage.*, not in the URI")
        place = absolute_place(uri)
        return place.rstrip("/") if "://" in place else Path(place).as_uri()

    @property
    def place(self) -> StorageRef:
        """The storage of the copy."""
        return StorageRef(self.uri, reveal_secrets(self.storage), shared=True)

    @property
    def target(self) -> Target:
        """The place as tenants may name it; raises TenantRefused when they may not."""
        return Target.of_storage("uri", self.place.url, self.place.options)
