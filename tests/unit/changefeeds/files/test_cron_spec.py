"""Cron specs of six fields."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.changefeeds.sinks.storage.cron import CronSpec
from penstock.errors import Invalid
from support.campaign import examples


def next_of(spec: str, after: str) -> str:
    found = CronSpec(spec).next_ms(int(datetime.fromisoformat(f"{after}+00:00").timestamp() * 1000))
    return datetime.fromtimestamp(found / 1000, UTC).isoformat(sep=" ")[:19]


@pytest.mark.parametrize(
    ("spec", "after", "then"),
    [
        ("0 0 2 * * *", "2021-01-01 01:59:59", "2021-01-01 02:00:00"),
        ("0 0 2 * * *", "2021-01-01 02:00:00", "2021-01-02 02:00:00"),
        ("0 0 2 * * ?", "2021-12-31 23:59:59", "2022-01-01 02:00:00"),
        ("* * * * * *", "2021-02-28 23:59:59", "2021-03-01 00:00:00"),
        ("*/15 * * * * *", "2021-01-01 00:00:31", "2021-01-01 00:00:45"),
        ("5/20 * * * * *", "2021-01-01 00:00:26", "2021-01-01 00:00:45"),
        ("0 0-10/5,30 * * * *", "2021-01-01 00:10:00", "2021-01-01 00:30:00"),
        ("0 30 8-18 * * mon-fri", "2021-01-01 18:30:00", "2021-01-04 08:30:00"),
        ("0 0 0 29 2 *", "2021-01-01 00:00:00", "2024-02-29 00:00:00"),
        ("0 0 0 29 2 *", "2096-03-01 00:00:00", "2104-02-29 00:00:00"),
        ("0 0 0 31 * *", "2021-01-31 00:00:00", "2021-03-31 00:00:00"),
        ("0 0 0 * JAN,dec *", "2021-01-31 12:00:00", "2021-12-01 00:00:00"),
        ("0 0 0 13 * fri", "2021-01-01 00:00:00", "2021-01-08 00:00:00"),
        ("0 0 0 13 * fri", "2021-01-09 00:00:00", "2021-01-13 00:00:00"),
        ("0 0 0 13 * *", "2021-01-09 00:00:00", "2021-01-13 00:00:00"),
        ("0 0 0 * * 0", "2021-01-01 00:00:00", "2021-01-03 00:00:00"),
        ("0 0 0 */10 * 0", "2021-01-03 00:00:00", "2021-01-10 00:00:00"),
        ("0 0 0 1,* * fri", "2021-01-01 00:00:00", "2021-01-08 00:00:00"),
        ("0 5-5/2 0 * * *", "2021-01-01 00:05:00", "2021-01-02 00:05:00"),
        ("0 0 0 * * sat/1", "2021-01-02 00:00:00", "2021-01-09 00:00:00"),
        ("0 0 0 * * 5/1", "2021-01-02 00:00:00", "2021-01-08 00:00:00"),
    ],
)
def test_the_next_time_that_fits(spec: str, after: str, then: str) -> None:
    assert next_of(spec, after) == then


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("", "has 0 fields"),
        ("0 2 * * *", "has 5 fields; write six"),
        ("60 * * * * *", "second '60'"),
        ("* * 24 * * *", "hour '24'"),
        ("* * * 0 * *", "day '0'"),
        ("* * * * 13 *", "month '13'"),
        ("* * * * * 7", "weekday '7'"),
        ("* * * * smarch *", "month 'smarch'"),
        ("*/0 * * * * *", "second '\\*/0'"),
        ("*/ * * * * *", "second '\\*/'"),
        ("10-5 * * * * *", "second '10-5'"),
        ("1, * * * * *", "second ''"),
        ("0 0 0 L * *", "day 'L'"),
        ("0 0 0 * * fri#2", "weekday 'fri#2'"),
        ("0 0 0 30 2 *", "never comes round"),
    ],
)
def test_a_wrong_spec_is_refused_with_its_field(spec: str, says: str) -> None:
    with pytest.raises(Invalid, match=says):
        CronSpec(spec)


FIELD = st.one_of(st.just("*"), st.integers(1, 11).map(str), st.integers(2, 9).map("*/{}".format))


@settings(max_examples=examples(60), deadline=None)
@given(
    st.tuples(
        FIELD, FIELD, FIELD, st.sampled_from(["*", "1", "15,28"]), st.just("*"), st.sampled_from(["*", "1-5"])
    ),
    st.integers(0, 4_000_000_000),
)
def test_it_is_the_first_second_that_a_second_by_second_search_finds(
    fields: tuple[str, ...], after_s: int
) -> None:
    spec = CronSpec(" ".join(fields))
    found_s = spec.next_ms(after_s * 1000) // 1000
    assert found_s > after_s
    checked = min(found_s, after_s + 4000)

    def fits(second: int) -> bool:
        moment = datetime.fromtimestamp(second, UTC)
        before = int((moment - timedelta(seconds=1)).timestamp()) * 1000
        return spec.next_ms(before) == second * 1000

    assert fits(found_s)
    assert not any(fits(second) for second in range(after_s + 1, checked, 97) if second != found_s)
