"""How Arrow gets its memory in our processes.

Its usual allocator keeps what one thread frees of another's for that thread: a process that reads ahead holds
half as much again, the more the longer it reads. jemalloc gives unused pages back after a while, without
being asked. Buffers that come out of messages are not aligned as its joins and groups want them: those are
copied, and nobody is warned.
"""

import os

ENVIRONMENT = {
    "ARROW_DEFAULT_MEMORY_POOL": "jemalloc",
    "JE_ARROW_MALLOC_CONF": "dirty_decay_ms:5000,muzzy_decay_ms:5000",
    "ACERO_ALIGNMENT_HANDLING": "reallocate",
}
"""What Arrow reads when it is first used."""


def prepare() -> None:
    """Choose it for this process and its children, unless somebody has; before Arrow is imported."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
