"""The actions of a capture's Flight service by which others do its merges: it plans, they write, it commits.

A plan is handed out under an id and remembered for a while; only what was written for such a plan is
committed, so that a caller can at worst waste work.
"""

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from penstock.clock import SYSTEM, Clock
from penstock.errors import Invalid
from penstock.eventstore.capture.store import EventStore
from penstock.eventstore.upkeep.merge import MergePlan
from penstock.eventstore.upkeep.mergewire import plan_tree, read_output

PLANS_MAX = 64  # of one call
_REMEMBERED_MAX = 1024

Action = Callable[[bytes], bytes]


@dataclass(slots=True)
class MergeActions:
    """`plan_merge` and `commit_merge`. Thread-safe."""

    store: EventStore
    clock: Clock = SYSTEM
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _plans: dict[str, MergePlan] = field(default_factory=dict)

    @property
    def actions(self) -> Mapping[str, tuple[str, Action]]:
        """Each action's name, what it is for, and how it is done; they raise what the store raises."""
        return {
            "plan_merge": ("What there is to merge in a table, for others to write.", self.plan),
            "commit_merge": ("Put what was written for a plan in the place of its inputs.", self.commit),
        }

    def plan(self, body: bytes) -> bytes:
        """{"table_id": n} to [{"plan_id", "plan"}]: merges that may be written at the same time."""
        plans = {
            self.clock.unique_id(): plan for plan in self.store.plan_merges(table_id_in(body), PLANS_MAX)
        }
        with self._lock:
            self._plans |= plans
            while len(self._plans) > _REMEMBERED_MAX:
                del self._plans[next(iter(self._plans))]
        return json.dumps(
            [{"plan_id": name, "plan": plan_tree(plan)} for name, plan in plans.items()]
        ).encode()

    def commit(self, body: bytes) -> bytes:
        """{"plan_id", "data", "tombstones"} to whether it was committed; asking again gives the same answer.

        False: an input is no longer part of the table, or the plan is forgotten; plan again.
        """
        plan_id, output = read_output(body)
        with self._lock:
            plan = self._plans.get(plan_id)
        committed = plan is not None and self.store.commit_merge(plan.table_id, plan, output)
        return json.dumps({"committed": committed}).encode()


def table_id_in(body: bytes) -> int:
    """The table that an action is about; raise Invalid when it names none."""
    try:
        return int(json.loads(body)["table_id"])
    except (ValueError, KeyError, TypeError) as error:
        raise Invalid('the action needs {"table_id": n}') from error
