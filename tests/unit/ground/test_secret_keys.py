"""The key file of a deployment: who makes it, what it opens, and how it is rotated."""

import stat
import threading
from pathlib import Path

import pytest

from penstock.errors import Corrupt, Invalid
from penstock.secret_keys import Keyring, MissingKey
from penstock.settings import Settings

TREE = {"dsn": "postgres://u:pa55word@x/y"}


@pytest.fixture
def keys(tmp_path: Path) -> Keyring:
    made = Keyring(tmp_path / "below")
    made.claim(None)
    return made


def test_what_is_sealed_shows_nothing_and_is_opened_by_every_process(keys: Keyring) -> None:
    sealed = keys.seal(TREE)
    assert "pa55word" not in sealed
    assert Keyring(keys.path.parent).open(sealed) == TREE
    assert stat.S_IMODE(keys.path.stat().st_mode) == 0o600
    assert [path.name for path in keys.path.parent.iterdir()] == ["seal.key"]


def test_many_at_once_make_one_key(tmp_path: Path) -> None:
    claims = []
    start = threading.Barrier(8)

    def claim() -> None:
        start.wait()
        claims.append(Keyring(tmp_path).claim(None))

    threads = [threading.Thread(target=claim) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(claims) == 8
    assert len(set(claims)) == 1
    assert len((tmp_path / "seal.key").read_text().splitlines()) == 1


def test_a_process_makes_no_second_key_for_a_cluster(tmp_path: Path, keys: Keyring) -> None:
    row = keys.ids[0].encode()
    assert keys.claim(row) is None
    elsewhere = Keyring(tmp_path / "elsewhere")
    with pytest.raises(
        MissingKey, match=f"seals secrets with key {row.decode()}, which .*elsewhere/seal.key does not"
    ):
        elsewhere.claim(row)
    assert not elsewhere.path.exists()


def test_running_processes_follow_a_rotation(keys: Keyring) -> None:
    running, sealed = Keyring(keys.path.parent), keys.seal(TREE)
    assert running.open(sealed) == TREE
    first = keys.ids[0]
    second = keys.rotate()
    assert running.ids == (second, first)
    assert not running.is_newest(sealed)
    assert running.is_newest(running.seal(TREE))
    assert keys.drop_old() == [first]
    assert running.ids == (second,)
    with pytest.raises(MissingKey, match=f"sealed with key {first}, which"):
        running.open(sealed)


def test_a_prepared_key_opens_and_seals_only_after_the_rotation(keys: Keyring) -> None:
    first = keys.ids[0]
    following = keys.rotate(prepare=True)
    assert keys.ids == (first, following)
    assert keys.rotate(prepare=True) == following
    assert keys.is_newest(keys.seal(TREE))
    assert keys.seal(TREE).startswith(first)
    assert keys.rotate() == following
    assert keys.ids == (following, first)
    newest = keys.rotate()
    prepared = keys.rotate(prepare=True)
    assert keys.drop_old() == [following, first]
    assert keys.ids == (newest, prepared)


@pytest.mark.parametrize("text", ["not a key\n", "\xff", "next \n"])
def test_a_damaged_file_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "seal.key").write_text(text, "latin-1")
    with pytest.raises(Invalid, match=r"^key file .*seal.key is damaged; copy the key file") as error:
        Keyring(tmp_path).seal(TREE)
    assert "not a key" not in str(error.value)


def test_a_damaged_text_is_told_from_a_missing_key(keys: Keyring) -> None:
    for sealed in ("", "no colon", f"{keys.ids[0]}:", f"{keys.ids[0]}:%%%", keys.seal(TREE)[:-3]):
        with pytest.raises(Corrupt):
            keys.open(sealed)


def test_the_variable_names_the_file_of_programs_without_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_SEAL_KEY", str(tmp_path / "mine"))
    assert Keyring().path == tmp_path / "mine"
    assert Keyring(tmp_path).path == tmp_path / "seal.key"
    monkeypatch.delenv("PENSTOCK_SEAL_KEY")
    assert Keyring().path == Settings().secrets_dir / "seal.key"
