"""The Python processes in which Spark runs tasks. It keeps them from one task to the next."""

import gc

__all__ = ["task_begins"]

_WARM = 2  # the task before which a process has its modules

_begun = 0


def task_begins() -> None:
    """Leave what the first task of this process has loaded out of collections of garbage.

    Spark collects the garbage of the whole process after each task, which with our modules and those that
    they need takes as long as reading a million rows. What is there before the second task has survived one
    such collection. Done once: later garbage is collected as ever.
    """
    global _begun  # noqa: PLW0603 - it is about the process
    _begun += 1
    if _begun == _WARM:
        gc.freeze()
