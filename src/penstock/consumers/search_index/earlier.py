"""What an index had of some keys before a change: so that what is dear to make is not made again."""

from dataclasses import dataclass, field

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from lance.dataset import LanceDataset

Places = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Earlier:
    """A version of the dataset. Pickled to executors, and opened there."""

    uri: str
    version: int
    keys: tuple[str, ...]
    storage: dict[str, str] = field(repr=False)

    def open(self) -> LanceDataset:
        """The dataset of then."""
        return lance.dataset(self.uri, version=self.version, storage_options=self.storage or None)

    def same(self, keys: pa.Table, column: str, values: pa.Array) -> tuple[LanceDataset, Places, Places]:
        """Which of some keys had these values in a column: their places in `keys`, and in the dataset.

        One scan of the key's columns and of that one; only what matches is kept.
        """
        dataset = self.open()
        keys = keys.cast(pa.schema([pa.field(name, dataset.schema.field(name).type) for name in self.keys]))
        wanted = keys.append_column("_mine", pa.array(np.arange(keys.num_rows))).append_column(
            "_value", values
        )
        mine, theirs, begin = [np.empty(0, np.int64)], [np.empty(0, np.int64)], 0
        for batch in dataset.to_batches(columns=[*self.keys, column], batch_size=1 << 17):
            there = pa.table(batch).append_column(
                "_theirs", pa.array(np.arange(begin, begin + batch.num_rows))
            )
            joined = there.join(
                wanted, [*self.keys, column], [*self.keys, "_value"], join_type="inner", use_threads=False
            )
            mine.append(joined.column("_mine").to_numpy())
            theirs.append(joined.column("_theirs").to_numpy())
            begin += batch.num_rows
        return dataset, np.concatenate(mine), np.concatenate(theirs)
