"""Files that somebody changed end a read with an error that names them: no crash, no rows from elsewhere."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from penstock.errors import Corrupt
from penstock.eventstore import manifest_log, paths
from penstock.object_storage import open_storage
from support.campaign import examples, fresh_seed
from support.hostilefiles import SUBJECTS, TARGETS, Log, Manifests, Objects

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("subject", sorted(SUBJECTS))
def test_a_changed_file_is_named_or_does_not_matter(subject: str) -> None:
    """In a process of its own: a defect in a library would end it, or take all memory."""
    count = examples(25, 2000) if subject in TARGETS else examples(60, 5000)
    seed = fresh_seed()
    drawn = [] if seed is None else [str(seed)]
    command = [sys.executable, "-m", "support.hostilefiles", subject, str(count), *drawn]
    environment = os.environ | {"PYTHONPATH": str(TESTS)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600, check=False, env=environment)
    assert done.returncode == 0, f"PENSTOCK_SEED={seed}\n{done.stderr[-3000:]}"


def test_a_footer_that_was_not_written_by_us_is_not_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = Objects()
    objects.write(tmp_path)
    sound = objects.read(tmp_path)
    path = next((tmp_path / "events").rglob("data/*.parquet"))  # which is read first
    data = path.read_bytes()
    parsed: list[object] = []
    monkeypatch.setattr(pq, "ParquetFile", lambda *_, **__: parsed.append("file"))
    monkeypatch.setattr(pq, "read_metadata", lambda *_: parsed.append("footer"))
    for forged in (data[:-9] + bytes([data[-9] ^ 1]) + data[-8:], data[:-8], data + data, b"", b"PAR1"):
        path.write_bytes(forged)
        with pytest.raises(Corrupt, match=rf"{path.name} is damaged; keep it for inspection"):
            objects.read(tmp_path)
    assert parsed == []
    monkeypatch.undo()
    path.write_bytes(data)
    assert objects.read(tmp_path) == sound
    objects.forget_footers()
    assert objects.read(tmp_path) == sound, "manifests of before have no hashes"


def test_an_object_of_a_manifest_cannot_lead_out_of_its_folder(tmp_path: Path) -> None:
    """A collection would delete there."""
    Manifests().write(tmp_path)
    root = paths.table_root(7)
    for path in (tmp_path / root / "manifest").iterdir():
        path.write_text(path.read_text().replace('"id":"object3"', '"id":"../../../../victim"'))
    with pytest.raises(Corrupt, match=r"manifest/0+5\.json has a missing or wrong field"):
        manifest_log.load(open_storage(tmp_path.as_uri()), root)


def test_rows_behind_a_damaged_header_of_the_log_are_not_taken_for_an_unfinished_segment(
    tmp_path: Path,
) -> None:
    log = Log()
    log.write(tmp_path)
    last = paths.wal_segments(tmp_path)[-1][1]
    data = last.read_bytes()
    last.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    with pytest.raises(Corrupt, match="has no header"):
        log.read(tmp_path)
    assert last.exists()
    last.write_bytes(data)
    assert len(log.read(tmp_path)) == 8
