"""Replays the text scenarios of the commit protocol and of lock resolution."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.clock import compose_ts, physical_ms
from penstock.kv.locks import (
    Lock,
    MustSync,
    ReadAction,
    Secondaries,
    TxnNotFound,
    TxnStatus,
    action_for_read,
    primary_not_found,
    read_status,
)
from penstock.kv.protocol import CommitOptions, CommitState, Mode
from penstock.proto import kvrpcpb_pb2 as kvrpcpb
from penstock.settings import KvSettings

HERE = Path(__file__).parent


def scenarios(name: str) -> Iterator[tuple[list[str], list[str]]]:
    """Yield (commands, expected lines) of each scenario in a file."""
    for block in (HERE / name).read_text().split("\n\n"):
        lines = [line for line in block.splitlines() if line and not line.startswith("#")]
        if lines:
            at = lines.index("----")
            yield lines[:at], lines[at + 1 :]


def facts(words: list[str]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in words)


def replay_protocol(commands: list[str]) -> list[str]:
    state = CommitState(100)
    for command in commands:
        verb, *words = command.split()
        given = facts([word for word in words if "=" in word])
        match verb:
            case "plan":
                options = CommitOptions(
                    async_commit=given.get("async_commit") != "no", one_pc=given.get("one_pc") != "no"
                )
                state = CommitState.plan(
                    100,
                    options,
                    KvSettings(),
                    keys=int(given["keys"]),
                    key_bytes=int(given["key_bytes"]),
                    has_binlog=given.get("binlog") == "yes",
                )
            case "min_commit_ts":
                state.raise_min_commit_ts(int(words[0]))
            case "cut":
                state.note_batch_count(int(words[0]))
            case "fall":
                state.fall_back()
            case "answer":
                state.take_answer(
                    min_commit_ts=int(given.get("min_commit_ts", 0)),
                    one_pc_commit_ts=int(given.get("one_pc_commit_ts", 0)),
                )
            case unknown:
                pytest.fail(f"unknown command {unknown}")
    report = [f"mode {state.mode.value}"]
    if state.one_pc_commit_ts:
        report.append(f"committed {state.one_pc_commit_ts}")
    elif state.mode is Mode.ASYNC:
        report.append(f"commit at {state.min_commit_ts}")
    return report


BEGAN = 1000


def told(status: TxnStatus) -> str:
    if status.undecided:
        return "undecided " + " ".join(key.decode() for key in status.secondaries or ())
    if status.alive:
        return f"alive {status.ttl_ms}"
    cached = ", cached" if status.cacheable else ""
    return (
        f"committed {physical_ms(status.commit_ts)}{cached}" if status.commit_ts else f"rolled back{cached}"
    )


def status_of(given: dict[str, str]) -> TxnStatus:
    answer = kvrpcpb.CheckTxnStatusResponse(
        lock_ttl=int(given.get("ttl", 0)),
        commit_version=compose_ts(int(given.get("commit", 0))),
        action=kvrpcpb.Action.Value(given.get("action", "NoAction")),
    )
    if given.get("async") == "yes":
        answer.lock_info.use_async_commit = True
        answer.lock_info.min_commit_ts = compose_ts(int(given.get("min_commit", 0)))
        names = given.get("secondaries", "")
        answer.lock_info.secondaries.extend(name.encode() for name in names.split(",") if name)
    return read_status(
        answer,
        compose_ts(BEGAN),
        compose_ts(int(given.get("now", BEGAN))),
        force_sync_commit=given.get("force_sync") == "yes",
    )


def region_answer(given: dict[str, str]) -> tuple[int, list[kvrpcpb.LockInfo], int]:
    locks = [
        kvrpcpb.LockInfo(
            use_async_commit=word != "plain", min_commit_ts=0 if word == "plain" else compose_ts(int(word))
        )
        for word in given["locks"].split(",")
        if word
    ]
    return int(given["asked"]), locks, compose_ts(int(given.get("commit", 0)))


def replay_resolver(commands: list[str]) -> list[str]:
    report: list[str] = []
    status = TxnStatus()
    secondaries: Secondaries | None = None
    must_sync = False
    for command in commands:
        verb, *words = command.split()
        given = facts(words)
        match verb:
            case "status":
                status = status_of(given)
                report.append(told(status))
                secondaries = Secondaries(status.min_commit_ts) if status.undecided else None
            case "region":
                assert secondaries is not None
                try:
                    secondaries.add(*region_answer(given))
                except MustSync:
                    must_sync = True
            case "read":
                action = action_for_read(status, compose_ts(int(given["at"])))
                words_for = {
                    ReadAction.IGNORE: "ignores",
                    ReadAction.ACCESS: "accesses",
                    ReadAction.WAIT: "waits",
                }
                report.append(f"reader {words_for[action]}")
            case "missing":
                lock = Lock(
                    key=b"k",
                    primary=b"p",
                    start_ts=compose_ts(BEGAN),
                    ttl_ms=int(given["ttl"]),
                    pessimistic=given.get("pessimistic") == "yes",
                )
                found = primary_not_found(lock, compose_ts(int(given["now"])))
                names = {
                    TxnNotFound.WAIT: "wait",
                    TxnNotFound.ROLL_BACK: "roll back",
                    TxnNotFound.ALIVE: "alive",
                }
                report.append(names[found])
            case unknown:
                pytest.fail(f"unknown command {unknown}")
    if must_sync:
        report.append("ask the primary again")
    elif secondaries is not None:
        decided = told(TxnStatus(commit_ts=secondaries.commit_ts))
        report.append(decided.removesuffix(", cached"))
    return report


@pytest.mark.parametrize(
    ("name", "replay"), [("commit_protocol.txt", replay_protocol), ("resolver.txt", replay_resolver)]
)
def test_scenarios(name: str, replay: Callable[[list[str]], list[str]]) -> None:
    found = list(scenarios(name))
    assert len(found) > 5
    for commands, expected in found:
        assert replay(commands) == expected, "\n".join(commands)
