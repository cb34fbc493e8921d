"""How long a campaign runs: short in `make test`, whole in `make soak`.

`PENSTOCK_SOAK=n` runs every campaign n times as long as the whole one. `PENSTOCK_EXAMPLES` sets the
examples of every property, `PENSTOCK_SEEDS` the number of seeds of every simulation, and `PENSTOCK_SEED` runs
one seed alone. Where every run of `make soak` draws other examples, `PENSTOCK_SEED` repeats one of them.
"""

import os
from collections.abc import Sequence

from penstock.clock import SYSTEM

__all__ = ["examples", "fresh_seed", "length", "seeds"]

_SOAK = int(os.environ.get("PENSTOCK_SOAK", "0"))
_SOAK_EXAMPLES = 4  # times the examples that a property names
_SHORT_EXAMPLES = 2  # `make test` tries one in so many of them
_EXAMPLES_MIN = 10


def length(short: int, whole: int) -> int:
    """Return how often to repeat a step, such as killing a process."""
    return whole * _SOAK if _SOAK else short


def examples(short: int, whole: int | None = None) -> int:
    """Return how many examples a property tries."""
    if "PENSTOCK_EXAMPLES" in os.environ:
        return int(os.environ["PENSTOCK_EXAMPLES"])
    fewer = max(min(short, _EXAMPLES_MIN), short // _SHORT_EXAMPLES)
    return length(fewer, whole or short * _SOAK_EXAMPLES)


def seeds(short: int, whole: int, *, first: int = 1) -> Sequence[int]:
    """Return the seeds of a simulation."""
    if os.environ.get("PENSTOCK_SEED"):
        return [int(os.environ["PENSTOCK_SEED"])]
    count = int(os.environ.get("PENSTOCK_SEEDS") or length(short, whole))
    return range(first, first + count)


def fresh_seed() -> int | None:
    """Return another seed in each `make soak`, or that of PENSTOCK_SEED; None in `make test`."""
    if os.environ.get("PENSTOCK_SEED"):
        return int(os.environ["PENSTOCK_SEED"])
    return int(SYSTEM.random() * (1 << 31)) if _SOAK else None
