"""Check a recorded history of transactions for snapshot isolation.

Each transaction reads a few keys and appends its own name to the lists kept under others, so that
the final lists show who overwrote whom. The store's timestamps make the check exact: a
transaction must have read, under each key, precisely the appends of the transactions committed at
or before its start, and two transactions that wrote the same key must not overlap in time.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

Key = bytes
Names = tuple[str, ...]


class Outcome(Enum):
    """What the client was told."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """One transaction as its client saw it.

    `commit_ts` is 0 unless the outcome is COMMITTED. `locked` marks a pessimistic transaction: it
    read what it was about to write under locks, so newer than its start.
    """

    name: str
    start_ts: int
    commit_ts: int = 0
    outcome: Outcome = Outcome.COMMITTED
    reads: Mapping[Key, Names]
    writes: frozenset[Key]
    locked: bool = False


def check(history: Iterable[Transaction], final: Mapping[Key, Names]) -> list[str]:
    """Return what contradicts snapshot isolation, in words; empty when nothing does."""
    transactions = list(history)
    problems = list(_effects(transactions, final))
    committed = [t for t in transactions if t.outcome is Outcome.COMMITTED]
    unknown = {t.name for t in transactions if t.outcome is Outcome.UNKNOWN}
    by_key = defaultdict(list)
    for transaction in sorted(committed, key=lambda t: (t.commit_ts, t.start_ts)):
        if transaction.commit_ts <= transaction.start_ts:
            problems.append(f"{transaction.name} committed at {transaction.commit_ts}, not after its start")
        for key in transaction.writes:
            by_key[key].append(transaction)
    problems += _overlaps(by_key)
    problems += _stale_reads(committed, by_key, final, unknown)
    return problems


def _effects(transactions: Sequence[Transaction], final: Mapping[Key, Names]) -> Iterable[str]:
    """Yield problems unless a transaction's writes are all visible or none, by its outcome, each once."""
    for key, names in final.items():
        if len(set(names)) != len(names):
            yield f"{key!r} holds a name twice: {names}"
    for transaction in transactions:
        present = {key for key in transaction.writes if transaction.name in final.get(key, ())}
        if transaction.outcome is Outcome.ABORTED and present:
            yield f"{transaction.name} aborted, yet wrote {sorted(present)}"
        if present and present != transaction.writes:
            yield f"{transaction.name} wrote {sorted(present)} only, of {sorted(transaction.writes)}"
        if transaction.outcome is Outcome.COMMITTED and present != transaction.writes:
            yield f"{transaction.name} committed, yet its writes are lost"


def _overlaps(by_key: Mapping[Key, Sequence[Transaction]]) -> Iterable[str]:
    """Two transactions that wrote one key did not run at the same time (a locked one may have waited)."""
    for key, writers in by_key.items():
        for first, second in pairwise(writers):
            if first.commit_ts == second.commit_ts:
                yield f"{first.name} and {second.name} both committed {key!r} at {first.commit_ts}"
            elif second.start_ts < first.commit_ts and not second.locked:
                yield f"{first.name} and {second.name} overlap and both wrote {key!r}"


def _stale_reads(
    committed: Sequence[Transaction],
    by_key: Mapping[Key, Sequence[Transaction]],
    final: Mapping[Key, Names],
    unknown: set[str],
) -> Iterable[str]:
    """Yield problems unless a transaction read what was committed at its start, unknown outcomes maybe."""
    for transaction in committed:
        for key, seen in transaction.reads.items():
            if seen != final.get(key, ())[: len(seen)]:
                yield f"{transaction.name} read {key!r} as {seen}, which the final value contradicts"
                continue
            if transaction.locked:
                continue
            expected = {t.name for t in by_key.get(key, ()) if t.commit_ts <= transaction.start_ts}
            surplus = set(seen) - expected - unknown
            if missing := expected - set(seen):
                yield f"{transaction.name} did not see {sorted(missing)} under {key!r}"
            if surplus:
                yield f"{transaction.name} saw {sorted(surplus)} under {key!r} too early"
