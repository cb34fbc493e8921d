"""Messages lose the secrets that a service may repeat, however it writes them, and nothing else."""

import base64
import pickle

import pytest

from penstock.errors import Unavailable
from penstock.secret_masks import SecretMask
from penstock.secret_references import resolve_references

TOKEN = 'p&q"r\\s/t+u v'


def test_a_message_does_not_show_what_references_led_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK_TOKEN", "t0p-secret")
    monkeypatch.setenv("SHORT", "an")
    options = {"a": "Bearer ${HOOK_TOKEN}", "b": "${NOT_SET_ANYWHERE} ${SHORT} ${no:provider}", "c": "plain"}
    mask = SecretMask(options)
    assert mask("an answer: t0p-secret") == "an answer: t0p-secret", "it was given to nobody"
    resolve_references(options["a"])
    resolve_references("${SHORT}")
    assert mask("an answer: Bearer t0p-secret, plain") == "an answer: Bearer ***, plain"
    monkeypatch.setenv("HOOK_TOKEN", "another-one")
    resolve_references(options["a"])
    assert mask("t0p-secret or another-one") == "*** or ***", "who began before may still name the former one"


@pytest.mark.parametrize("name", ["secret_access_key", "session_token", "password", "sas_key"])
def test_literal_values_of_secret_options_are_masked(name: str) -> None:
    assert SecretMask({name: "hunter2hunter2"})("it was hunter2hunter2!") == "it was ***!"
    assert SecretMask({name: "abc$${d}"})("abc${d} is wrong") == "*** is wrong"


def test_values_of_plain_options_stay() -> None:
    options = {"region": "us-east-1", "path": "/data/items", "storage_options.region": "eu-west-3"}
    options["storage_options.endpoint"] = "http://127.0.0.1:9000"
    mask = SecretMask(options, hidden={"storage_options.region", "storage_options.endpoint"})
    message = "us-east-1 /data/items eu-west-3 http://127.0.0.1:9000/lake"
    assert mask(message) == message
    references = "${vault:kv/db#password} has no answer"
    assert SecretMask({"password": "${vault:kv/db#password}"})(references) == references


@pytest.mark.parametrize(
    "shown",
    [
        TOKEN,
        "p%26q%22r%5Cs%2Ft%2Bu%20v",
        "p%26q%22r%5Cs%2Ft%2Bu+v",
        "p&amp;q&quot;r\\s/t+u v",
        'p&q\\"r\\\\s/t+u v',
    ],
)
def test_a_secret_is_recognised_as_services_write_it(shown: str) -> None:
    assert SecretMask({"token": TOKEN})(f"<{shown}>") == "<***>"


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("headers.Authorization", "Bearer abcdefgh12", "abcdefgh12"),
        ("headers.Authorization", f"Basic {base64.b64encode(b'ann:opensesame').decode()}", "opensesame"),
        ("url", "https://hooks.example/services/T00000000/B0/aBcDeFgHiJkLmNoPqR", "aBcDeFgHiJkLmNoPqR"),
        ("url", "https://hooks.example/x?auth=opensesame", "opensesame"),
        ("dsn", "postgresql://ann:open%40sesame@db/shop", "open@sesame"),
        ("dsn", "host=db user=ann password='open \\' sesame' dbname=shop", "open ' sesame"),
        ("dsn", "host=db user=ann password=opensesame dbname=shop", "opensesame"),
    ],
)
def test_parts_of_hidden_options_are_secrets_too(name: str, value: str, shown: str) -> None:
    assert SecretMask({name: value}, hidden={name})(f"refused: {shown}.") == "refused: ***."


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("https://opensesame@host/x", "opensesame"),
        ("s3://lake/x?secret-access-key=opensesame&protocol=csv", "opensesame"),
    ],
)
def test_credentials_in_a_url_are_masked_in_any_option(value: str, shown: str) -> None:
    assert SecretMask({"uri": value})(f"refused: {shown}, csv, lake, host") == "refused: ***, csv, lake, host"


def test_a_longer_secret_goes_first_and_short_ones_stay() -> None:
    options = {"token": "opensesame", "other_token": "opensesame-and-more", "key": "ab"}
    assert SecretMask(options)("opensesame-and-more ab") == "*** ab"


def test_what_is_raised_has_no_secret_and_neither_has_its_cause() -> None:
    mask = pickle.loads(pickle.dumps(SecretMask({"token": "opensesame"})))
    failure = Unavailable("refused: opensesame")
    failure.__cause__ = OSError(5, "opensesame")
    with pytest.raises(Unavailable, match=r"^refused: \*\*\*$") as found, mask.in_errors():
        raise failure
    assert found.value.__cause__ is not None
    assert found.value.__cause__.args == (5, "***")
