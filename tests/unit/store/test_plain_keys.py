import asyncio

from penstock.store.engine import Engine
from penstock.store.pd.etcd import EtcdKeys, Event


async def test_keys_carry_the_revisions_of_their_changes(engine: Engine) -> None:
    keys = EtcdKeys(engine)
    begin = keys.revision
    await keys.write([(b"/a", b"1"), (b"/b", b"2")])
    await keys.write([(b"/a", b"3")])
    found = keys.get(b"/a")
    assert found is not None
    assert (found.value, found.create_revision - begin, found.mod_revision - begin, found.version) == (
        b"3",
        1,
        2,
        2,
    )
    assert [one.key for one in keys.scan(b"/a", b"")] == [b"/a", b"/b"]
    assert [one.key for one in keys.scan(b"/a", b"/b")] == [b"/a"]
    await keys.write([(b"/a", None)])
    assert keys.get(b"/a") is None


async def test_keys_and_their_revision_survive_a_restart(engine: Engine) -> None:
    before = EtcdKeys(engine)
    await before.write([(b"/a", b"1")])
    after = EtcdKeys(engine)
    assert after.revision == before.revision
    found = after.get(b"/a")
    assert found is not None
    assert found.value == b"1"
    assert not after.remembers(before.revision)
    assert after.remembers(before.revision + 1)


async def test_a_watcher_gets_what_it_missed_and_waits_for_the_rest(engine: Engine) -> None:
    keys = EtcdKeys(engine)
    begin = keys.revision
    await keys.write([(b"/x/a", b"1"), (b"/y", b"9")])
    assert await keys.changes(b"/x/", begin + 1) == [Event(begin + 1, b"/x/a", b"1")]
    waiting = asyncio.ensure_future(keys.changes(b"/x/", begin + 2))
    await keys.write([(b"/y", b"8")])
    await keys.write([(b"/x/a", None)])
    assert await waiting == [Event(begin + 3, b"/x/a", None)]
