"""What `penstock_rows_total` has counted in this process."""

from typing import Literal

from prometheus_client import REGISTRY

__all__ = ["RowCounts"]

_STAGES = ("read", "encode", "write", "consume")


class RowCounts:
    """The rows of an engine since this was made, by stage; stages without rows are left out."""

    def __init__(self, engine: Literal["spark", "local"]) -> None:
        self._engine = engine
        self._before = self._totals()

    def _totals(self) -> dict[str, int]:
        labels = ({"stage": stage, "engine": self._engine} for stage in _STAGES)
        values = (REGISTRY.get_sample_value("penstock_rows_total", label) for label in labels)
        return {stage: int(value or 0) for stage, value in zip(_STAGES, values, strict=True)}

    @property
    def new(self) -> dict[str, int]:
        """What was counted."""
        added = {stage: total - self._before[stage] for stage, total in self._totals().items()}
        return {stage: rows for stage, rows in added.items() if rows}
