"""Which code of users a process may import: jobs name it, the settings allow it.

A job's spec, and the recipe that an index keeps of itself, name consumers, triggers, parsers and embeddings
as `module:name`. Whoever may write such a name would otherwise run any function of any installed module. The
operator lists modules in `jobs.allowed_code`; another name is refused before its module is imported.
"""

from collections.abc import Sequence

from penstock.errors import Invalid

__all__ = ["check_code"]


def check_code(location: str, allowed: Sequence[str], what: str) -> None:
    """Raise Invalid unless `module:name` is in a listed module, or below a listed package.

    `what` says who names it, for the message.
    """
    module = location.partition(":")[0]
    if not any(module == listed or module.startswith(f"{listed}.") for listed in allowed):
        raise Invalid(
            f"{what} is code that the settings do not allow; add {module} to jobs.allowed_code, in the"
            " settings of everything that runs or registers jobs"
        )
