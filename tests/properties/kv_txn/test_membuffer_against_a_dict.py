"""The membuffer with nested staging, and scans over it and a snapshot, against dictionaries."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.kv.membuffer import DELETED, PERSISTENT, KeyFlag, MemBuffer
from penstock.kv.scanning import Page, Union
from support.campaign import examples

keys = st.binary(min_size=1, max_size=2)
values = st.binary(min_size=1, max_size=3)
bounds = st.tuples(st.binary(max_size=2), st.binary(max_size=2))
flags = st.sampled_from(list(KeyFlag))


@dataclass
class Model:
    """What a membuffer holds, copied whole at each staging level."""

    values: dict[bytes, bytes] = field(default_factory=dict)
    flags: dict[bytes, KeyFlag] = field(default_factory=dict)

    def copy(self) -> "Model":
        return Model(dict(self.values), dict(self.flags))


class Membuffer(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.buffer = MemBuffer()
        self.model = Model()
        self.saved: list[tuple[int, Model]] = []

    @rule(key=keys, value=values)
    def put(self, key: bytes, value: bytes) -> None:
        self.buffer.put(key, value)
        self.model.values[key] = value

    @rule(pairs=st.lists(st.tuples(keys, values), min_size=33, max_size=60))
    def put_many(self, pairs: list[tuple[bytes, bytes]]) -> None:
        for key, value in pairs:
            self.put(key, value)

    @rule(key=keys)
    def delete(self, key: bytes) -> None:
        self.buffer.delete(key)
        self.model.values[key] = DELETED

    @rule(key=keys, add=flags, remove=flags)
    def update_flags(self, key: bytes, add: KeyFlag, remove: KeyFlag) -> None:
        self.buffer.update_flags(key, add=add, remove=remove)
        asserts = KeyFlag.ASSERT_EXISTS | KeyFlag.ASSERT_NOT_EXISTS
        before = self.model.flags.get(key, KeyFlag(0)) & ~remove
        self.model.flags[key] = (before & ~asserts if add & asserts else before) | add

    @rule()
    def staging(self) -> None:
        self.saved.append((self.buffer.staging(), self.model.copy()))

    @precondition(lambda self: self.saved)
    @rule()
    def release(self) -> None:
        handle, _ = self.saved.pop()
        self.buffer.release(handle)

    @precondition(lambda self: self.saved)
    @rule()
    def cleanup(self) -> None:
        handle, before = self.saved.pop()
        self.buffer.cleanup(handle)
        for key in self.model.flags.keys() | before.flags.keys():
            kept = self.model.flags.get(key, KeyFlag(0)) & PERSISTENT
            before.flags[key] = (before.flags.get(key, KeyFlag(0)) & ~PERSISTENT) | kept
        self.model = before

    @rule(bounds=bounds)
    def rows(self, bounds: tuple[bytes, bytes]) -> None:
        low, high = bounds
        expected = [
            (k, v) for k, v in sorted(self.model.values.items()) if low <= k and (not high or k < high)
        ]
        assert self.buffer.rows(low, high) == expected

    @invariant()
    def agrees(self) -> None:
        model = self.model
        assert len(self.buffer) == len(model.values)
        assert self.buffer.bytes_used == sum(len(k) + len(v) for k, v in model.values.items())
        listed = sorted(model.values.keys() | {key for key, value in model.flags.items() if value})
        expected = [(key, model.values.get(key), model.flags.get(key, KeyFlag(0))) for key in listed]
        assert list(self.buffer.entries()) == expected


TestMembuffer = Membuffer.TestCase
TestMembuffer.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)


def cut(rows: Page, sizes: list[int]) -> list[Page]:
    pages, at = [], 0
    for size in sizes:
        if at < len(rows):
            pages.append(rows[at : at + size])
            at += size
    return [*pages, rows[at:]] if at < len(rows) else pages


@settings(max_examples=examples(200), deadline=None)
@given(
    snapshot=st.dictionaries(keys, values),
    written=st.dictionaries(keys, values | st.just(DELETED)),
    sizes=st.lists(st.integers(1, 5)),
    reverse=st.booleans(),
)
def test_a_union_is_the_snapshot_with_the_writes_on_top(
    snapshot: dict[bytes, bytes], written: dict[bytes, bytes], sizes: list[int], reverse: bool
) -> None:
    union = Union(sorted(written.items()), reverse=reverse)
    pages = cut(sorted(snapshot.items(), reverse=reverse), sizes)
    merged = [row for page in pages for row in union.merge(page, last=False)] + union.merge([], last=True)
    expected = {key: value for key, value in (snapshot | written).items() if value}
    assert merged == sorted(expected.items(), reverse=reverse)


def test_a_page_without_own_writes_is_handed_on_as_it_is() -> None:
    union = Union([(b"x", b"1")], reverse=False)
    page = [(b"a", b"1"), (b"b", b"2")]
    assert union.merge(page, last=False) is page
