"""A store and a capture as processes."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from penstock.settings import Settings, with_tokens
from support.capture import CaptureProcess
from support.warmstore import WarmStore


@contextmanager
def cluster(folder: Path, **jobs: Any) -> Iterator[tuple[Settings, Path]]:
    """A store and a capture as processes, and settings for whoever runs jobs beside them, also as a file."""
    folder.mkdir()
    with WarmStore.start(folder / "kv", stores=1, faults=False) as store:
        tree = {
            "pd_addrs": [store.pd_addr],
            "secrets_dir": str(folder / "secrets"),
            "capture": {
                "data": str(folder / "capture"),
                "storage": f"file://{folder}/events",
                "flight_addr": "127.0.0.1:0",
            },
            "jobs": {"data": str(folder / "jobs"), **jobs},
        }
        config = folder / "jobs.yaml"
        config.write_text(yaml.safe_dump(tree))
        with CaptureProcess(folder, tree):
            yield with_tokens(Settings.model_validate(tree)), config
