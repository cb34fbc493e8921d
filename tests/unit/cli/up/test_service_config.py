"""What a part is told when it starts."""

import json

import pytest

from penstock.cli.up.parts import ServiceConfig, parts_of
from penstock.control.part_states import PartKind
from penstock.errors import Invalid
from penstock.settings import Settings, parse

SECRETS = {
    "capture": {"flight_token": "a-token-of-16-letters", "storage_options": {"aws_secret_access_key": "k3y"}},
    "changefeeds": {"f": {"sink_uri": "s3://b/p?secret=x&protocol=csv", "start": 7}},
    "api": {"accounts": {"shop": {"token": "b-token-of-16-letters", "targets": ["s3://b/"]}}},
    "tls": {"ca_path": "ca.pem"},
    "spark": {"conf": {"spark.x": "1"}, "pools": {"shop": {"weight": 2}}},
    "tracing": {"headers": {"Authorization": "Bearer z"}},
}


@pytest.mark.parametrize("tree", [{}, SECRETS])
def test_a_part_gets_the_settings_with_their_secrets(tree: dict[str, object]) -> None:
    for part in parts_of(parse(tree)):
        order = ServiceConfig(kind=part.kind, settings=part.settings, log_format="json", log_level="DEBUG")
        line = order.encode()
        assert line.count(b"\n") == 1
        assert ServiceConfig.parse(line) == order


def test_values_that_look_like_variables_are_not_taken_from_the_environment_again() -> None:
    settings = Settings.model_validate({"capture": {"storage_options": {"key": "${HOME}"}}})
    order = ServiceConfig(kind=PartKind.CAPTURE, settings=settings)
    assert ServiceConfig.parse(order.encode()).settings.capture.storage_options == {"key": "${HOME}"}


@pytest.mark.parametrize(
    "line", [b"", b"nonsense\n", b"[]\n", b'{"kind": "store"}\n', b'{"kind": "s3cret"}\n']
)
def test_what_is_no_order_is_refused_without_a_word_of_it(line: bytes) -> None:
    with pytest.raises(Invalid, match="has no configuration") as refused:
        ServiceConfig.parse(line)
    assert refused.value.__cause__ is None
    assert "s3cret" not in str(refused.value)


def test_settings_of_another_version_are_refused_by_their_key() -> None:
    tree = json.loads(ServiceConfig(kind=PartKind.STORE, settings=Settings()).encode())
    tree["settings"]["colour"] = "red"
    with pytest.raises(Invalid, match="unknown key 'colour'"):
        ServiceConfig.parse(json.dumps(tree).encode())


def test_an_order_shows_no_secret_when_it_is_printed() -> None:
    shown = repr(ServiceConfig(kind=PartKind.API, settings=parse(SECRETS)))
    for secret in ("a-token-of", "b-token-of", "k3y", "secret=x", "Bearer z"):
        assert secret not in shown
