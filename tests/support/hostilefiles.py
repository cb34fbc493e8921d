"""Files that somebody changed, and what reading them may end with: `python -m support.hostilefiles log 50`.

Each subject writes sound files once. An example changes one of them and reads everything: that ends with what
was written, or with an error of ours that names the file. It runs as a process of its own with little memory,
because a defect may end the process.
"""

import json
import random  # noqa: TID251 - Hypothesis decides the seed
import resource
import shutil
import struct
import sys
import tempfile
import threading
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import HealthCheck, given, settings
from hypothesis import seed as with_seed
from hypothesis import strategies as st

from penstock.columnar.spill_queue import SpillQueue
from penstock.errors import Corrupt, Fenced, Invalid, PenstockError, Unavailable
from penstock.eventstore import manifest_log, paths
from penstock.eventstore.log import frames
from penstock.eventstore.log.frames import Frame, FrameKind
from penstock.eventstore.log.segments import LogLocation
from penstock.eventstore.log.wal import Wal
from penstock.eventstore.manifest import ObjectInfo, object_tree, read_object
from penstock.eventstore.manifest_log import ManifestLog
from penstock.eventstore.objects.deletion_vectors import Deletions
from penstock.eventstore.objects.object_file import ObjectWriter
from penstock.eventstore.objects.primary_key_index import PrimaryKeyIndex
from penstock.eventstore.read.blocks import BlockReader
from penstock.eventstore.schema_version import schemas_in
from penstock.jobs.consumer import find_consumer
from penstock.object_storage import open_storage
from penstock.tables.define import define_table
from penstock.testing.consumers import SourceModel, job_context
from support.lakeworld import LakeWorld
from support.rawbatches import changes, put, raw

__all__ = ["SUBJECTS", "TARGETS", "main"]

_MEMORY_BYTES = 3 << 30
"""More than the libraries need, and much less than a length field can ask for."""
_LENGTHS = (0, 1, 0x7FFF_FFFF, 0xFFFF_FFFF, 1 << 62, (1 << 63) - 1, (1 << 64) - 1)


def change_bytes(data: bytes, rng: random.Random) -> bytes:
    """Return other bytes: a flipped bit, an end that is missing, a length from nowhere, parts that moved."""
    if not data:
        return b"\xff" * 8
    at = rng.randrange(len(data))
    match rng.randrange(7):
        case 0:
            return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
        case 1:
            return data[:at]
        case 2:
            size = rng.choice((4, 8))
            return (
                data[:at]
                + (rng.choice(_LENGTHS) % (1 << (8 * size))).to_bytes(size, "little")
                + data[at + size :]
            )
        case 3:
            return data[:at] + rng.randbytes(rng.randrange(1, 64)) + data[at:]
        case 4:
            return data[:at] + bytes(len(data) - at)
        case 5:
            other = rng.randrange(len(data))
            return data[: min(at, other)] + data[max(at, other) :]
        case _:
            return rng.randbytes(len(data))


class Subject(ABC):
    """One kind of files in a folder."""

    names_file: ClassVar[bool] = True
    """Whether an error names the file; else it names the folder."""
    errors: ClassVar[tuple[type[PenstockError], ...]] = (Corrupt, Unavailable)
    """What a read may end with."""

    def close(self) -> None:
        """Remove what is beside the folders."""
        return

    @abstractmethod
    def write(self, folder: Path) -> None:
        """Write sound files."""

    @abstractmethod
    def read(self, folder: Path) -> Any:
        """Read everything that was written."""

    def forge(self, _folder: Path, path: Path, rng: random.Random) -> None:
        """Change a file."""
        path.write_bytes(change_bytes(path.read_bytes(), rng))

    def accepts(self, sound: Any, found: Any) -> bool:
        """Return whether a reader may have got this."""
        return bool(found == sound)


def _set(event: threading.Event, _place: LogLocation) -> None:
    event.set()


class Log(Subject):
    """Segments of the write-ahead log; half of the changes come with the right checksum."""

    def write(self, folder: Path) -> None:
        wal = self._open(folder, lambda *_: None)
        for ts in range(1, 9):
            stored = threading.Event()
            wal.append(ts % 2, raw([put(ts, f"key {ts}", b"value" * ts)]), ts, partial(_set, stored))
            assert stored.wait(30)
            wal.mark_resolved(ts % 2, ts)
        wal.close()

    def read(self, folder: Path) -> Any:
        found: list[Any] = []

        def replay(frame: Frame, _place: LogLocation) -> None:
            if frame.kind is FrameKind.ROWS:
                found.append((frame.table_id, changes(frames.decode_rows(frame))))

        self._open(folder, replay).close()
        return found

    def forge(self, folder: Path, path: Path, rng: random.Random) -> None:
        data = path.read_bytes()
        sound = frames.scan_segment(pa.py_buffer(data)).frames
        if not sound or rng.random() < 0.5:
            super().forge(folder, path, rng)
            return
        frame = rng.choice(sound)
        payload = change_bytes(frame.payload.to_pybytes(), rng)
        kind = rng.choice([*FrameKind, 0, 99]) if rng.random() < 0.3 else frame.kind
        header = frames.encode_header(
            kind,
            rng.choice([frame.table_id, (1 << 64) - 1]),
            len(payload),
            zlib.crc32(payload),
            group=frame.group,
            first=frame.first,
        )
        padded = payload + bytes(frames.padding(len(payload)))
        path.write_bytes(data[: frame.offset] + header + padded + data[frame.end :])
        self._forged = True

    def __init__(self) -> None:
        self._forged = False

    def accepts(self, sound: Any, found: Any) -> bool:
        forged, self._forged = self._forged, False
        return forged or found == sound[: len(found)]

    @staticmethod
    def _open(folder: Path, replay: Callable[[Frame, LogLocation], None]) -> Wal:
        wal = Wal(folder, segment_bytes=900, queue_bytes=1 << 20, on_failure=lambda _: None)
        try:
            wal.start(replay)
        except BaseException:
            owner = wal._owner
            assert owner is not None
            owner.close()
            raise
        return wal


_JSON: list[Any] = [
    None,
    True,
    -1,
    1 << 70,
    1e308,
    "",
    "../../../etc/passwd",
    "\0",
    [],
    {},
    [[]],
    {"kind": 3},
    [1],
    ["x"],
]
_BRACKETS = "[" * 100_000
_ENDLESS = "1e999"


class Manifests(Subject):
    """Entries and a checkpoint of a manifest, changed as bytes and as JSON."""

    def write(self, folder: Path) -> None:
        storage = open_storage(folder.as_uri())
        log = ManifestLog.open(storage, paths.table_root(7), writer="w")
        for number in range(40):
            info = ObjectInfo(
                id=f"object{number}",
                side="data",
                kind="appendable",
                schema_version=1,
                create_ts=10 * number + 1,
                min_ts=10 * number + 1,
                max_ts=10 * number + 9,
                rows=3,
                size_bytes=100,
                key_min=b"a",
                key_max=b"z",
            )
            log.commit(add=[info], flushed_ts=10 * number + 9, facts=[{"kind": "begun", "ts": number}])

    def read(self, folder: Path) -> Any:
        state = manifest_log.load(open_storage(folder.as_uri()), paths.table_root(7))
        schemas_in(state.facts)
        assert state.changed_ts >= 0
        for info in [*state.visible_objects("data", 1 << 62), *state.visible_objects("tombstone", 1 << 62)]:
            path = paths.object_path(paths.table_root(7), info.side, info.id)
            assert Path("/root", path).resolve() == Path("/root", path), path
        return None

    def forge(self, folder: Path, path: Path, rng: random.Random) -> None:
        if rng.random() < 0.3:
            super().forge(folder, path, rng)
            return
        text = path.read_text()
        if rng.random() < 0.1:
            path.write_text(rng.choice((_BRACKETS, text.replace('"seq":', f'"seq":{_ENDLESS},"old":'))))
            return
        tree = json.loads(text)
        node, key = rng.choice(list(_places(tree)))
        node[key] = rng.choice(_JSON)
        path.write_text(json.dumps(tree))


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        yield tree, key
        if isinstance(value, (dict, list)):
            yield from _places(value)


class Objects(Subject):
    """Parquet objects of both sides: other pages, other footers, another length, missing ends, bombs."""

    _DATA = pa.schema(
        [("_handle", pa.binary()), ("_commit_ts", pa.int64()), ("_start_ts", pa.int64()), ("v", pa.string())]
    )
    _GONE = pa.schema([*_DATA, ("_object", pa.string()), ("_offset", pa.int64())])

    def __init__(self) -> None:
        self._infos: list[ObjectInfo] = []

    def write(self, folder: Path) -> None:
        storage = open_storage((folder / "events").as_uri())
        rows = pa.record_batch(
            {
                "_handle": [bytes([n]) for n in range(100)],
                "_commit_ts": list(range(1, 101)),
                "_start_ts": list(range(100)),
                "v": [f"value {n % 7}" for n in range(100)],
            },
            schema=self._DATA,
        )
        gone = pa.record_batch(
            [*rows.columns, pa.array(["object"] * 100), pa.array(range(100), pa.int64())], schema=self._GONE
        )
        for side, batch in (("data", rows), ("tombstone", gone)):
            with ObjectWriter(
                storage,
                paths.table_root(7),
                side,  # type: ignore[arg-type]  # one of the two
                kind="appendable",
                schema_version=1,
                schema=batch.schema,
                scratch=folder / "scratch",
            ) as writer:
                writer.write(batch)
                info = writer.finish()
            assert info is not None
            self._infos.append(info)
        (folder / "scratch").rmdir()

    def forget_footers(self) -> None:
        """Know of the objects what manifests of 0.1.0 say."""
        self._infos = [
            read_object(
                {k: v for k, v in object_tree(info).items() if k not in ("footer_bytes", "footer_hash")}
            )
            for info in self._infos
        ]

    def read(self, folder: Path) -> Any:
        storage = open_storage((folder / "events").as_uri())
        shown = pa.schema([("v", pa.string())])
        found: list[Any] = []
        for info in self._infos:
            reader = BlockReader(storage=storage, table_id=7, from_ts=0, to_ts=1000, shown=shown)
            for block in reader.blocks([info]):
                block.rows.validate(full=True)
                found += zip(block.rows.column("v").to_pylist(), block.commit.tolist(), strict=True)
        found += Deletions(storage, 7, self._infos[1:], 50).of("object").tolist()
        return found

    def forge(self, _folder: Path, path: Path, rng: random.Random) -> None:
        if rng.random() < 0.05:
            text = pa.DictionaryArray.from_arrays(
                pa.array([0] * 5000, pa.int32()), pa.array(["0" * 1_000_000])
            )
            columns = {
                field.name: pa.array([1] * 5000, field.type)
                for field in self._GONE
                if field.type == pa.int64()
            }
            names = {name: pa.array(["object"] * 5000) for name in ("_object",)}
            handles = pa.array([b"a"] * 5000)
            pq.write_table(
                pa.table({"v": text, "_handle": handles, **columns, **names}), path, compression="zstd"
            )
            return
        data = path.read_bytes()
        (length,) = struct.unpack("<I", data[-8:-4])
        begin = len(data) - 8 - length
        match rng.randrange(4):
            case 0:
                path.write_bytes(change_bytes(data[:begin], rng) + data[begin:])
            case 1:
                path.write_bytes(data[:-8] + change_bytes(data[-8:], rng))
            case 2:  # pyarrow itself ends the process for some of these
                path.write_bytes(data[:begin] + change_bytes(data[begin:-8], rng) + data[-8:])
            case _:
                path.write_bytes(data[: rng.randrange(len(data))])

    def accepts(self, sound: Any, found: Any) -> bool:
        return bool(found == sound)


class Index(Subject):
    """The files of the primary-key index, which is rebuilt when it is damaged."""

    names_file = False

    def write(self, folder: Path) -> None:
        index = PrimaryKeyIndex(folder / "index")
        db = index.current()
        for number in range(2000):
            db[number.to_bytes(16, "big")] = b"row" * 10
        db.flush()
        index.close()

    def read(self, folder: Path) -> Any:
        index = PrimaryKeyIndex(folder / "index")
        db = index.current()
        try:
            return index.call(db, lambda: sum(1 for _ in db.items()))
        finally:
            index.close()

    def accepts(self, sound: Any, found: Any) -> bool:
        return bool(
            0 <= found <= sound
        )  # the newest log may be torn; which rows are missing, its owner finds out


class Spool(Subject):
    """A queue on disk, whose files change between a write and the read of it."""

    def write(self, folder: Path) -> None:
        (folder / "rows").write_text("the queue is made for each example")

    def read(self, folder: Path) -> Any:
        queue: SpillQueue[tuple[Any, ...]] = SpillQueue(folder / "queue", tuple)
        sent = [(n, pa.record_batch({"id": [n] * 50, "text": [f"text {n}"] * 50})) for n in range(5)]
        for item in sent:
            queue.append(item)
        rng = random.Random((folder / "rows").read_text())  # noqa: S311 - a seed of Hypothesis's
        (file,) = (folder / "queue").iterdir()
        if (folder / "rows").read_text() != "the queue is made for each example":
            file.write_bytes(change_bytes(file.read_bytes(), rng))
        found = []
        while (taken := queue.take()) is not None:
            taken[1].validate(full=True)
            found.append((taken[0], taken[1].num_rows, str(taken[1].schema)))
        queue.close()
        return found

    def forge(self, _folder: Path, path: Path, rng: random.Random) -> None:
        path.write_text(str(rng.random()))


class Target(Subject):
    """What lies in the target of a job: its metadata and its rows, as its consumer reads them.

    Metadata may have the path of the target, so a link leads from one place to the folder of each example.
    A value may be another one: formats have no checksums of all that they write.
    """

    names_file = False
    errors = (Corrupt, Unavailable, Invalid, Fenced)
    table = define_table("items", [("id", "bigint primary key"), ("name", "varchar(99)")])

    def __init__(self, consumer: str) -> None:
        self._consumer = consumer
        self._place = Path(tempfile.mkdtemp(prefix="penstock-hostile-")) / "target"
        self._source = SourceModel(self.table)

    def close(self) -> None:
        """Remove the place."""
        shutil.rmtree(self._place.parent)

    def _open(self, folder: Path) -> Any:
        self._place.unlink(missing_ok=True)
        self._place.symlink_to(folder, target_is_directory=True)
        scratch = self._place.parent
        if self._consumer == "fulltext":
            options = {"uri": f"file://{self._place}/index", "text_columns": "name"}
        else:
            options = LakeWorld(self._consumer, self._place).options
        if self._consumer == "iceberg":  # the catalog is a database of the operator's
            options["catalog.uri"] = f"sqlite:///{scratch}/catalog.db"
        return find_consumer(self._consumer)(job_context(scratch, self._consumer, options))

    def write(self, folder: Path) -> None:
        for start in (0, 50):  # the second commit rewrites what the first wrote
            before = self._source.ts if start else 0
            self._source.commit(*({"id": start // 2 + n, "name": f"green {n}"} for n in range(50)))
            consumer = self._open(folder)
            try:
                consumer.consume(self._source.retriever(before, self._source.ts))
            finally:
                consumer.close()

    def read(self, folder: Path) -> Any:
        consumer = self._open(folder)
        try:
            at_ts = consumer.committed_ts()
            return sum(batch.num_rows for batch in consumer.present(at_ts)) if at_ts else 0
        finally:
            consumer.close()

    def forge(self, folder: Path, path: Path, rng: random.Random) -> None:
        if path.suffix == ".json" and rng.random() < 0.6:
            lines = path.read_text().splitlines() if path.parent.name == "_delta_log" else [path.read_text()]
            at = rng.randrange(len(lines))
            tree = json.loads(lines[at])
            node, key = rng.choice(list(_places(tree)))
            node[key] = rng.choice(_JSON)
            lines[at] = json.dumps(tree)
            path.write_text("\n".join(lines))
            return
        if path.suffix == ".parquet" and rng.random() < 0.1:
            texts = pa.DictionaryArray.from_arrays(
                pa.array([0] * 5000, pa.int32()), pa.array(["0" * 1_000_000])
            )
            pq.write_table(pa.table({"id": pa.array(range(5000)), "name": texts}), path, compression="zstd")
            return
        super().forge(folder, path, rng)

    def accepts(self, _sound: Any, found: Any) -> bool:
        return bool(found >= 0)


TARGETS: dict[str, Callable[[], Subject]] = {
    "parquet copy": partial(Target, "parquet"),
    "delta log": partial(Target, "delta"),
    "iceberg metadata": partial(Target, "iceberg"),
    "lance": partial(Target, "fulltext"),
}
"""What lies in targets; each example opens a library's table, and takes longer."""
SUBJECTS: dict[str, Callable[[], Subject]] = {
    **TARGETS,
    "log": Log,
    "manifest": Manifests,
    "objects": Objects,
    "index": Index,
    "spool": Spool,
}


def _run(subject: Subject, pristine: Path, work: Path, seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311 - Hypothesis's seed
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(pristine, work)
    path = rng.choice(sorted(path for path in work.rglob("*") if path.is_file()))
    if rng.random() < 0.05 and len(others := [other for other in work.rglob("*") if other.is_file()]) > 1:
        shutil.copyfile(rng.choice([other for other in others if other != path]), path)
    else:
        subject.forge(work, path, rng)
    sys.stderr.write(f"seed {seed} changed {path.relative_to(work)}\n")
    sys.stderr.flush()  # a crash would lose it
    try:
        found = subject.read(work)
    except subject.errors as error:
        wrong = _complain(subject, path, error)
    else:
        sound = subject.accepts(_sound[type(subject).__name__], found)
        wrong = "" if sound else f"{path}: wrong rows were read"
    assert not wrong, wrong


def _complain(subject: Subject, path: Path, error: PenstockError) -> str:
    """Return what is wrong with an error; nothing when it has one line and names the file."""
    text = str(error)
    if "\n" in text:
        return f"an error of several lines: {text}"
    named = any(part in text for part in (path.name, path.stem))
    if subject.names_file and isinstance(error, Corrupt) and not named:
        return f"{path} is not named: {text}"
    return ""


_sound: dict[str, Any] = {}


def main() -> None:
    """Run so many examples of a subject; a failure is told with the seed of its change.

    A third argument is the seed of all examples; without it they are always the same.
    """
    name, examples = sys.argv[1], int(sys.argv[2])
    drawn = [int(text) for text in sys.argv[3:]]
    subject = SUBJECTS[name]()
    with tempfile.TemporaryDirectory() as folder:
        pristine = Path(folder, "pristine")
        pristine.mkdir()
        subject.write(pristine)
        copy = Path(folder, "copy")
        shutil.copytree(pristine, copy)
        _sound[type(subject).__name__] = subject.read(copy)
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))

        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            derandomize=not drawn,
            suppress_health_check=list(HealthCheck),
        )
        @given(st.integers(0, 2**32))
        def run(seed: int) -> None:
            _run(subject, pristine, Path(folder, "work"), seed)

        try:
            (with_seed(*drawn)(run) if drawn else run)()
        finally:
            subject.close()


if __name__ == "__main__":
    main()
