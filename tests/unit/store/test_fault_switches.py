import grpc
import pytest

from penstock.proto import storepb_pb2 as storepb
from penstock.store.faults import Fault, Faults, FaultStruck


def struck(faults: Faults, method: str, store_id: int, times: int) -> list[bool]:
    return [faults.strike(method, store_id) is not None for _ in range(times)]


def test_a_fault_skips_then_strikes_then_is_spent() -> None:
    faults = Faults()
    faults.set([storepb.Fault(kind="DROP", method="KvGet", skip=2, times=2)])
    assert struck(faults, "KvGet", 1, 6) == [False, False, True, True, False, False]


def test_a_fault_without_times_strikes_until_it_is_cleared() -> None:
    faults = Faults()
    faults.set([storepb.Fault(kind="DROP", method="KvGet")])
    assert all(struck(faults, "KvGet", 1, 20))
    faults.set([])
    assert not faults.active
    assert faults.strike("KvGet", 1) is None


def test_method_and_store_must_both_match() -> None:
    faults = Faults()
    faults.set([storepb.Fault(kind="DROP", method="KvGet", store_id=2)])
    assert faults.strike("KvGet", 1) is None
    assert faults.strike("KvScan", 2) is None
    assert faults.strike("KvGet", 2) is not None


def test_a_fault_for_all_methods_spares_the_placement_driver() -> None:
    faults = Faults()
    faults.set([storepb.Fault(kind="DROP")])
    assert faults.strike("KvGet", 1) is not None
    assert faults.strike("GetRegion") is None
    faults.set([storepb.Fault(kind="DROP", method="GetRegion")])
    assert faults.strike("GetRegion") is not None


def test_a_spent_fault_gives_way_to_the_next() -> None:
    faults = Faults()
    faults.set([storepb.Fault(kind="DROP", times=1), storepb.Fault(kind="UNAVAILABLE", times=1)])
    kinds = [fault.kind if (fault := faults.strike("KvGet", 1)) else None for _ in range(3)]
    assert kinds == [Fault.DROP, Fault.UNAVAILABLE, None]


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        ("SERVER_IS_BUSY", "server_is_busy"),
        ("NOT_LEADER", "not_leader"),
        ("EPOCH_NOT_MATCH", "epoch_not_match"),
        ("STALE_COMMAND", "stale_command"),
        ("REGION_NOT_FOUND", "region_not_found"),
        ("MAX_TIMESTAMP_NOT_SYNCED", "max_timestamp_not_synced"),
    ],
)
def test_a_fault_can_be_a_region_error(kind: str, field: str) -> None:
    error = Faults().refusal(storepb.Fault(kind=kind), 5)
    assert error is not None
    assert error.HasField(field)


def test_the_other_faults_are_no_region_errors() -> None:
    for kind in ("DROP", "DELAY", "CRASH", "UNAVAILABLE", "UNDETERMINED", "STREAM_RESET"):
        assert Faults().refusal(storepb.Fault(kind=kind), 5) is None


async def test_faults_strike_before_or_after_the_call_is_applied() -> None:
    faults = Faults()
    for kind, code in (
        ("DROP", None),
        ("UNAVAILABLE", grpc.StatusCode.UNAVAILABLE),
        ("STREAM_RESET", grpc.StatusCode.UNAVAILABLE),
    ):
        with pytest.raises(FaultStruck) as caught:
            faults.before(storepb.Fault(kind=kind))
        assert caught.value.code is code
    undetermined = storepb.Fault(kind="UNDETERMINED")
    faults.before(undetermined)
    with pytest.raises(FaultStruck):
        await faults.after(undetermined)
