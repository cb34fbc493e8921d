"""Any pages of metrics, joined, say what each of them said."""

from collections import Counter as Multiset

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from penstock.api.routes.status import join_pages

_NAMES = ("a", "a_b", "b", "penstock_rows")
_LABELS = ("part", "job", "exported")
_VALUES = st.text(st.characters(codec="utf-8"), max_size=12) | st.sampled_from(
    [",part=", '"', "\\", "\n", "\u2028", "\x85", "}", '{part="x"}', "\\n"]
)
_NUMBERS = st.floats(allow_nan=False) | st.integers(-5, 5).map(float)


@st.composite
def families(draw: st.DrawFn, name: str) -> Metric:
    # What a name is, does not differ between the parts of one deployment.
    labels = _LABELS[: _NAMES.index(name)]
    values = draw(st.lists(st.tuples(*[_VALUES] * len(labels)), max_size=3, unique=True))
    if name == "a":
        histogram = HistogramMetricFamily(name, draw(_VALUES), labels=labels)
        for each in values:
            count = draw(st.integers(0, 9))
            histogram.add_metric(each, [("1.0", count), ("+Inf", count + 1)], sum_value=draw(_NUMBERS))
        return histogram
    family = (CounterMetricFamily if name == "b" else GaugeMetricFamily)(name, draw(_VALUES), labels=labels)
    for each in values:
        family.add_metric(each, draw(_NUMBERS))
    return family


class Fixed(Collector):
    def __init__(self, metrics: list[Metric]) -> None:
        self.metrics = metrics

    def collect(self) -> list[Metric]:
        return self.metrics


def page(metrics: list[Metric]) -> str:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Fixed(metrics))
    return generate_latest(registry).decode()


def samples(text: str) -> list[tuple[str, tuple[tuple[str, str], ...], float]]:
    return [
        (sample.name, tuple(sorted(sample.labels.items())), sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]


_PAGES = st.dictionaries(
    st.sampled_from(["api", "store", "capture-1", 'odd"\\\n']),
    st.none()
    | st.sets(st.sampled_from(_NAMES)).flatmap(
        lambda names: st.tuples(*(families(name) for name in sorted(names))).map(list)
    ),
    min_size=1,
)


@given(_PAGES)
def test_pages_joined_have_every_sample_of_each_once_with_its_part(
    pages: dict[str, list[Metric] | None],
) -> None:
    texts = {part: None if metrics is None else page(metrics) for part, metrics in pages.items()}
    text = join_pages(texts)
    expected = [
        (
            name,
            tuple(
                sorted(
                    [("exported_part" if label == "part" else label, value) for label, value in labels]
                    + [("part", part)]
                )
            ),
            value,
        )
        for part, one in texts.items()
        if one is not None
        for name, labels, value in samples(one)
    ]
    up = [("penstock_part_up", (("part", part),), float(one is not None)) for part, one in texts.items()]
    assert Multiset(samples(text)) == Multiset(expected + up)


@given(_PAGES)
def test_pages_joined_describe_each_family_once_and_keep_its_type(
    pages: dict[str, list[Metric] | None],
) -> None:
    text = join_pages({part: None if metrics is None else page(metrics) for part, metrics in pages.items()})
    described = [line.split(" ", 3)[:3] for line in text.split("\n") if line.startswith("# ")]
    assert len(described) == len({tuple(each) for each in described})
    types = {"a": "histogram", "a_b": "gauge", "b": "counter", "penstock_rows": "gauge"}
    found = {family.name: family.type for family in text_string_to_metric_families(text)}
    assert found == {name: types.get(name, "gauge") for name in found}
    given = {metric.name for metrics in pages.values() if metrics is not None for metric in metrics}
    assert set(found) == given | {"penstock_part_up"}
