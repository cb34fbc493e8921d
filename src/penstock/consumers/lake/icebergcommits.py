"""Commits of an Iceberg table whose cost does not grow with the number of those before."""

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table import Table, Transaction
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _ManifestMergeManager, _OverwriteFiles

__all__ = ["Overwrite", "strict_transaction"]

_MANIFEST_BYTES = 8 << 20
_MANIFESTS_MAX = 50
_NO_RETRIES = {"commit.retry.num-retries": "0"}


class Overwrite(_OverwriteFiles):
    """Files that come and go. The library's own keeps, and reads, manifests of which no file is left."""

    @classmethod
    def begin(cls, transaction: Transaction, io: FileIO, summary: dict[str, str]) -> "Overwrite":
        """A snapshot that is staged when the context ends."""
        first = transaction.table_metadata.current_snapshot() is None
        operation = Operation.APPEND if first else Operation.OVERWRITE
        return cls(operation, transaction, io, snapshot_properties=summary)

    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        used = [
            each
            for each in manifests
            if each.added_snapshot_id == self._snapshot_id
            or each.has_added_files()
            or each.has_existing_files()
        ]
        data = [each for each in used if each.content == ManifestContent.DATA]
        deletes = [each for each in used if each.content != ManifestContent.DATA]
        merging = _ManifestMergeManager(
            target_size_bytes=_MANIFEST_BYTES,
            min_count_to_merge=_MANIFESTS_MAX,
            merge_enabled=True,
            snapshot_producer=self,
        )
        return [*merging.merge_manifests(data), *deletes]


def strict_transaction(table: Table) -> Transaction:
    """A transaction that is committed on top of the table's very snapshot or not at all.

    The library would put a commit that came second on top of the first, and copies all that it knows of a
    table again and again. What it is told here is known to this object alone: commits hold what they change.
    """
    current = table.current_snapshot()
    metadata = table.metadata.model_copy(
        update={
            "properties": {**table.metadata.properties, **_NO_RETRIES},
            "snapshots": [] if current is None else [current],
            "snapshot_log": [],
        }
    )
    lean = Table(table.name(), metadata, table.metadata_location, table.io, table.catalog, dict(table.config))
    return lean.transaction()
