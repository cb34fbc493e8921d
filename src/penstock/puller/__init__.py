"""From the change streams of regions to a consumer: subscriptions, matching, resolved timestamps."""

from penstock.puller.client import SubscriptionClient
from penstock.puller.keyranges import Span
from penstock.puller.pipeline import AdvanceResolvedTs, Cancelled, ConsumeKvEvents, SpanPipelineManager

__all__ = [
    "AdvanceResolvedTs",
    "Cancelled",
    "ConsumeKvEvents",
    "Span",
    "SpanPipelineManager",
    "SubscriptionClient",
]
