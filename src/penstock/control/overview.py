"""The overview of a deployment: what `penstock status`, the API and the pages show."""

from penstock.control.overviewmodel import (
    ChangefeedRow,
    HeldBy,
    HolderKind,
    JobRow,
    Overview,
    PartRow,
    Problem,
    ProblemKind,
    SpoolLevel,
    Stage,
    StageRow,
    TableRow,
    Totals,
)

__all__ = [
    "ChangefeedRow",
    "HeldBy",
    "HolderKind",
    "JobRow",
    "Overview",
    "PartRow",
    "Problem",
    "ProblemKind",
    "SpoolLevel",
    "Stage",
    "StageRow",
    "TableRow",
    "Totals",
]
