"""What a round delivers, and in which order. Pure.

Versions are the timestamps of DDLs, and the checkpoint is read before the directory is listed: so a schema
file up to the checkpoint finds everything older than itself in the listing, and the order of versions is
right for every table and every database. What is above the checkpoint waits for a later round.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from penstock.changefeeds.directory.listing import Listing, Root, SchemaFound, Stretch
from penstock.changefeeds.directory.progress import DirectoryProgress
from penstock.errors import Corrupt


@dataclass(frozen=True, slots=True)
class SchemaStep:
    """A schema file to deliver: a DDL, or only the columns of the files that follow."""

    schema: SchemaFound


@dataclass(frozen=True, slots=True)
class DataStep:
    """Files of one version of a physical table: the stretches of each dispatcher, in order."""

    schema: SchemaFound
    dispatchers: tuple[tuple[Stretch, ...], ...]


Step = SchemaStep | DataStep


def plan(listing: Listing, checkpoint_ts: int, progress: DirectoryProgress) -> list[Step]:
    """The steps of a round; raise Corrupt when data has no schema file.

    Stretches are as listed; those without new files should be left out before.
    """
    steps: list[tuple[tuple[int, int, str, int], Step]] = [
        ((schema.version, 0, schema.root, -1), SchemaStep(schema))
        for schema in listing.schemas
        if progress.seen.get(schema.root, -1) < schema.version <= checkpoint_ts
    ]
    schemas = {(schema.root, schema.version): schema for schema in listing.schemas}
    for (root, version, partition), stretches in _grouped(listing.stretches).items():
        if version > checkpoint_ts or progress.is_late(root, version):
            continue
        schema = schemas.get((root, version))
        if schema is None:
            raise Corrupt(
                f"{root} has data of version {version} but no schema file of it; keep the directory"
            )
        order = version, 1, root, partition
        steps.append((order, DataStep(schema, _by_dispatcher(stretches))))
    return [step for _, step in sorted(steps, key=lambda each: each[0])]


def _grouped(stretches: Iterable[Stretch]) -> dict[tuple[Root, int, int], list[Stretch]]:
    found: dict[tuple[Root, int, int], list[Stretch]] = defaultdict(list)
    for each in stretches:
        found[each.root, each.folder.version, each.folder.partition].append(each)
    return found


def _by_dispatcher(stretches: Iterable[Stretch]) -> tuple[tuple[Stretch, ...], ...]:
    found: dict[str, list[Stretch]] = defaultdict(list)
    for each in sorted(stretches, key=lambda each: (each.dispatcher_id, each.folder.date)):
        found[each.dispatcher_id].append(each)
    return tuple(map(tuple, found.values()))
