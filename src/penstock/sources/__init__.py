"""Sources of changes: the span pipeline, and TiKV as a source under `tikv`."""

from penstock.sources.pipeline import AdvanceResolvedTs, ConsumeKvEvents, SpanPipelineManager
from penstock.sources.quota import Cancelled
from penstock.sources.tikv.client import SubscriptionClient
from penstock.sources.tikv.key_ranges import KeySpan

__all__ = [
    "AdvanceResolvedTs",
    "Cancelled",
    "ConsumeKvEvents",
    "KeySpan",
    "SpanPipelineManager",
    "SubscriptionClient",
]
