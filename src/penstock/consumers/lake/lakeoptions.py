"""The options of copies that are kept at a URL."""

from pathlib import Path
from typing import ClassVar

from pydantic import Field, field_validator

from penstock.consumers.options import ConsumerOptions, Properties, Seconds, absolute_place, revealed
from penstock.object_storage import StorageRef

__all__ = ["LakeOptions"]


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
