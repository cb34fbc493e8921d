"""The one row of a Lance dataset that says whose it is and how far it has come. Pure.

It is a row, because a row is what Lance commits together with others, carries through compactions, indexes
and the cleaning of old versions, and does not let two writers replace at once.
"""

import json
from dataclasses import asdict, dataclass, fields
from typing import Self

from penstock.errors import Corrupt, Invalid

MARKER = "_penstock"
"""The column that only the marker has; all its other columns are null."""
ROWS_ONLY = f"{MARKER} IS NULL"
FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """What a dataset knows of itself, in the same commit as its rows."""

    owner: str
    watermark: int
    recipe: str
    """How rows were made of those of the source; another one makes other rows."""
    last_id: int
    """The greatest id of a column that the source had."""
    job: str = ""
    """The owner's name, which a job that is registered anew has too; older versions did not write it."""
    attempt: str = ""
    """Which build made the dataset, a unique id."""
    complete: bool = True
    """False while indexes of a first build are still missing."""
    trained_rows: int = 0
    """How many rows there were when the index was last made anew; 0: it was not made yet."""
    changed_rows: int = 0
    """Changes since then."""
    measured_rows: int = 0
    """`changed_rows` when recall was last measured."""
    recall: float = 0.0
    """Recall right after training; 0: not measured."""
    trained_as: str = ""
    """What kind of index it was made as."""
    cleaned_version: int = 0
    """The version at which old ones were last removed."""

    def of(self, owner: str) -> int:
        """The watermark that counts for an owner; 0: the dataset is another's, or not complete."""
        return self.watermark if self.complete and self.owner == owner else 0

    def dump(self) -> str:
        """As it is kept."""
        return json.dumps({"format": FORMAT, **asdict(self)})

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read it; raise Corrupt when it is no marker, Invalid when a newer Penstock wrote it."""
        try:
            tree = json.loads(text)
            written = tree.pop("format")
            if written > FORMAT:
                raise Invalid(f"the dataset has format {written}, a newer Penstock's; upgrade this one")
            return cls(**{each.name: tree[each.name] for each in fields(cls) if each.name in tree})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise Corrupt("the marker row of a Lance dataset cannot be read; rebuild the index") from error
