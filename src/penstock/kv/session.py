"""What the transactions and snapshots of one client share."""

from dataclasses import dataclass

from penstock.clock import Clock
from penstock.kv.background import Background
from penstock.kv.backoff import Backoffer
from penstock.kv.latches import LocalLatches
from penstock.kv.pd import PdClient
from penstock.kv.resolver import LockResolver
from penstock.kv.routing import Router
from penstock.kv.safepoint import SafePoint
from penstock.settings import KvSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """The parts behind a client, made once and passed to everything it opens."""

    pd: PdClient
    router: Router
    resolver: LockResolver
    safe_point: SafePoint
    background: Background
    latches: LocalLatches | None
    settings: KvSettings
    clock: Clock

    def backoffer(self, budget_ms: int, name: str) -> Backoffer:
        """Return a fresh budget of retries for one operation."""
        return Backoffer(budget_ms, clock=self.clock, weight=self.settings.backoff_weight, name=name)
