"""What changed in a table between two timestamps: in order, coalesced, in batches or in parallel parts."""

from penstock.changes.batches import ChangeBatch, ChangesHandle, Hint
from penstock.changes.collect import collect_changes
from penstock.changes.plan import ChangesPartition, plan_changes

__all__ = ["ChangeBatch", "ChangesHandle", "ChangesPartition", "Hint", "collect_changes", "plan_changes"]
