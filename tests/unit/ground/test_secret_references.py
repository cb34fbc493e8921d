"""References to secrets: what they are, what they resolve to, and what errors say."""

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import secret_references
from penstock.errors import Invalid
from penstock.secret_references import (
    UnresolvedReference,
    escape_references,
    has_reference,
    resolve_references,
    resolve_values,
)


def test_a_reference_is_replaced_by_what_this_process_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK_TOKEN", "t0p")
    (tmp_path / "token").write_text("from file\r\n")
    given = {
        "env": "Bearer ${HOOK_TOKEN}!",
        "default": "${NOT_SET_ANYWHERE:-x:y}",
        "file": f"a${{file:{tmp_path}/token}}b",
        "literal": "$${HOOK_TOKEN} costs $5 {} ${} ${a b}",
    }
    assert resolve_values(given) == {
        "env": "Bearer t0p!",
        "default": "x:y",
        "file": "afrom fileb",
        "literal": "${HOOK_TOKEN} costs $5 {} ${} ${a b}",
    }
    assert [name for name, text in given.items() if has_reference(text)] == ["env", "default", "file"]


def test_what_a_secret_contains_is_not_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTER", "${INNER} $${INNER}")
    monkeypatch.setenv("INNER", "never")
    assert resolve_references("${OUTER}") == "${INNER} $${INNER}"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x ${NOT_SET_ANYWHERE}", "${NOT_SET_ANYWHERE} is not set; export NOT_SET_ANYWHERE"),
        ("${file:/none/such}", "${file:/none/such} cannot be read (No such file or directory)"),
        ("${file:/dev/zero}", "${file:/dev/zero} is no regular file"),
    ],
)
def test_an_error_is_one_line_with_the_reference(text: str, words: str) -> None:
    with pytest.raises(UnresolvedReference) as error:
        resolve_references(f"secret-before {text}")
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    assert "secret-before" not in str(error.value)


def test_files_that_are_no_secrets_are_refused(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * ((1 << 20) + 1))
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for name, words in (("large", "larger than a secret"), ("binary", "no text in UTF-8")):
        with pytest.raises(UnresolvedReference, match=words):
            resolve_references(f"${{file:{tmp_path}/{name}}}")


def test_an_unknown_provider_is_refused() -> None:
    known = r"\$\{NAME\}, \$\{aws:\.\.\.\}, \$\{file:\.\.\.\}, \$\{vault:\.\.\.\}"
    with pytest.raises(Invalid, match=rf"\$\{{fiel:/x\}} names no provider of secrets; use {known}"):
        resolve_references("${fiel:/x}")


def from_a_vault(place: str) -> str:
    if place == "gone":
        raise KeyError("value of another secret")
    return {"db#password": "pa55word", "number": 5}[place]  # type: ignore[return-value] # of a bad provider


def test_a_package_may_offer_a_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("vault", f"{__name__}:from_a_vault", "penstock.secrets")
    monkeypatch.setattr(EntryPoint, "load", lambda _: from_a_vault)
    monkeypatch.setattr(
        secret_references, "entry_points", lambda group: [point] * (group == "penstock.secrets")
    )
    assert resolve_references("x${vault:db#password}") == "xpa55word"
    for place, why in (("gone", "KeyError"), ("number", "it returned a int, not a text")):
        with pytest.raises(UnresolvedReference) as error:
            resolve_references(f"${{vault:{place}}}")
        assert str(error.value).startswith(f"${{vault:{place}}} has no answer of its provider")
        assert why in str(error.value)
        assert "value of" not in str(error.value)


@given(st.text("$ {}aA:-/"))
def test_an_escaped_text_has_no_reference_and_resolves_to_itself(text: str) -> None:
    assert not has_reference(escape_references(text))
    assert resolve_references(escape_references(text)) == text
