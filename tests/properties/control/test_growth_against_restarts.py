"""Whatever becomes of the processes that count, rates neither invent rows nor lose those of steady ones."""

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.control.overview.model import FlowStage
from penstock.control.overview.part_metrics import Growth, MetricSample
from support.campaign import examples

ROWS = MetricSample("penstock_sink_rows_total", ("files",))

STEPS = st.lists(
    st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 1000), st.booleans(), st.booleans()), max_size=40
)


@settings(max_examples=examples(60), deadline=None)
@given(STEPS)
def test_restarts_and_silence_never_invent_rows(steps: list[tuple[str, int, bool, bool]]) -> None:
    """A step: a part is started again or not, counts some rows, and answers or not."""
    growth, counted, written, seen = Growth(), {"a": 0, "b": 0}, {"a": 0, "b": 0}, set[str]()
    before, steady = dict[str, int](), {"a", "b"}
    growth.add(0.0, {})
    for part, rows, restarted, answers in steps:
        if restarted:
            counted[part] = 0
            steady.discard(part)
        counted[part] += rows
        written[part] += rows
        if answers:
            growth.add(1.0, {part: {ROWS: float(counted[part])}})
            before.setdefault(part, written[part])
            seen.add(part)
            latest = {**before, part: written[part]}
    rate = growth.rate(FlowStage.CHANGEFEEDS) or 0.0
    answered = {part: written[part] - before[part] for part in seen}
    assert 0 <= rate <= sum(answered.values()) + 1e-9
    if seen and seen <= steady and steps[-1][3]:
        assert rate >= latest[steps[-1][0]] - before[steps[-1][0]] - 1e-9
