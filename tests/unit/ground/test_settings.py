"""Settings: defaults, environment, and one clear line for every wrong value."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from penstock import settings
from penstock.errors import Invalid


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "penstock.yaml"
    path.write_text(text)
    return path


def test_an_empty_file_gives_the_documented_defaults(tmp_path: Path) -> None:
    loaded = settings.read_file(write(tmp_path, ""))
    assert loaded == settings.Settings()
    assert loaded.kv.grpc_connection_count == 4
    assert loaded.kv.max_batch_size == 128
    assert loaded.store.pd_addr == "127.0.0.1:2379"


def test_values_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PD", "10.0.0.1:2379")
    monkeypatch.delenv("STORES", raising=False)
    path = write(tmp_path, "pd_addrs: ['${PD}']\nstore: {stores: '${STORES:-3}'}\n")
    loaded = settings.load(path)
    assert loaded.pd_addrs == ("10.0.0.1:2379",)
    assert loaded.store.stores == 3


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("kv: {max_batch_size: -1}", r"kv.max_batch_size = -1 is refused: .*greater than or equal to 0"),
        ("kv: {max_batch_sizes: 1}", r"unknown key 'kv.max_batch_sizes'"),
        ("engine: flink", r"engine = 'flink' is refused: .*'spark' or 'local'"),
        (
            "changefeeds: {lake: {sink_uri: 'file:///x', spark_rows: 0}}",
            r"key 'changefeeds.lake.spark_rows' is of an earlier release; remove it: .* `engine: local`",
        ),
        (
            "jobs: {spark_rows: 1000}",
            r"key 'jobs.spark_rows' is of an earlier release; remove it: .* `engine: local`",
        ),
        ("store: {stores: many}", r"store.stores = 'many' is refused: .*integer"),
        ("tls: {ca_path: ca.pem, cert_path: c.pem}", r"cert_path and key_path belong together; set both"),
        ("- a\n- b", r"must be a mapping"),
        ("a: [", r"not valid YAML at line"),
        ("pd_addrs: ['${PENSTOCK_NOWHERE}']", r"\$\{PENSTOCK_NOWHERE\}, which is not set; export"),
    ],
)
def test_a_wrong_value_is_refused_with_key_value_and_remedy(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(Invalid, match=says) as caught:
        settings.load(write(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"cannot be read .*check --config"):
        settings.load(tmp_path / "none.yaml")


def test_a_secret_is_not_shown_in_the_refusal() -> None:
    with pytest.raises(Invalid) as caught:
        settings.parse({"tls": {"ca_path": "a", "cert_path": "b", "key_path": ["hunter2"]}})
    assert "hunter2" not in str(caught.value)


TOKEN = "correct-horse-battery"


@pytest.mark.parametrize(
    "capture",
    [
        {"flight_token": TOKEN, "flight_token_path": "token"},
        {"flight_token": TOKEN, "flush_bytes": 0},
        {"flight_token": TOKEN + " staple"},
        {"flight_token": TOKEN[:8]},
        {"flight_token": [TOKEN]},
        {"storage_options": [TOKEN]},
        {"storage_options": {"access_key_id": [TOKEN]}},
    ],
)
def test_a_refused_capture_never_shows_its_secrets(capture: dict[str, object]) -> None:
    with pytest.raises(Invalid, match="is refused") as caught:
        settings.parse({"capture": capture})
    assert TOKEN[:8] not in str(caught.value)
    with pytest.raises(ValidationError) as direct:
        settings.CaptureSettings.model_validate(capture)
    assert TOKEN[:8] not in str(direct.value)


def test_a_token_comes_from_the_environment_and_stays_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLIGHT_TOKEN", TOKEN)
    loaded = settings.load(write(tmp_path, "capture: {flight_token: '${FLIGHT_TOKEN}'}"))
    token = loaded.capture.read_flight_token()
    assert token is not None
    assert token.get_secret_value() == TOKEN
    assert TOKEN not in f"{loaded!r} {loaded} {loaded.model_dump()} {loaded.model_dump_json()}"


def test_a_token_comes_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "token"
    capture = settings.CaptureSettings(flight_token_path=path)
    with pytest.raises(Invalid, match=r"token file .* cannot be read .*flight_token_path"):
        capture.read_flight_token()
    path.write_text("short\n")
    with pytest.raises(Invalid, match=r"token file .* is refused: a token has at least 16") as caught:
        capture.read_flight_token()
    assert "short" not in str(caught.value)
    path.write_text(f"{TOKEN}\n")
    token = capture.read_flight_token()
    assert token is not None
    assert token.get_secret_value() == TOKEN


def test_settings_cannot_be_changed_after_they_are_made() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        settings.KvSettings().max_batch_size = 1


def test_an_unreadable_tls_file_is_named(tmp_path: Path) -> None:
    tls = settings.TlsSettings(ca_path=tmp_path / "ca.pem")
    with pytest.raises(Invalid, match=r"TLS file .*ca\.pem cannot be read"):
        tls.read()
