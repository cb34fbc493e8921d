"""The progress of a bulk job, on the terminal."""

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.spark.tasks import Progress


@contextmanager
def shown(title: str) -> Iterator[Progress]:
    """Show a bar for a job that is given the result as its `progress`; nothing where there is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
