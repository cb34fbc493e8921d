"""Dividing a table by a sample of its handles."""

from bisect import bisect_left
from itertools import pairwise

import pytest

from penstock.follow.slices import HandleSample, divide_samples


def handle(number: int) -> bytes:
    return number.to_bytes(4, "big")


@pytest.mark.parametrize("parts", [2, 3, 10])
def test_parts_are_about_as_large(parts: int) -> None:
    ordered = HandleSample([handle(each) for each in range(0, 1000, 10)], 1000)
    mixed = HandleSample([handle(each) for each in range(0, 1000, 100)], 1000)
    cuts = divide_samples([ordered, mixed], 2000 / parts)
    assert len(cuts) == parts - 1
    places = [0, *(bisect_left(range(1000), int.from_bytes(each, "big")) for each in cuts), 1000]
    assert all(abs((high - low) - 1000 / parts) < 120 for low, high in pairwise(places))


def test_samples_weigh_what_they_stand_for() -> None:
    heavy = HandleSample([handle(each) for each in range(10)], 900)
    light = HandleSample([handle(each) for each in range(100, 200)], 100)
    (cut,) = divide_samples([heavy, light], 500)
    assert cut in {handle(5), handle(6)}


def test_a_handle_divides_once_at_most() -> None:
    assert divide_samples([HandleSample([handle(1)] * 50, 100)], 10) == []
    assert divide_samples([HandleSample([handle(1)] * 50 + [handle(2)], 100)], 10) == [handle(2)]
