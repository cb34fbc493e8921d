"""Secrets of AWS Secrets Manager, over HTTP from moto's server."""

import json
import sys
from collections.abc import Iterator
from contextlib import closing

import boto3
import pytest
from moto.server import ThreadedMotoServer

from penstock.secret_references import UnresolvedReference, resolve_references

SECRET = "pa55word-at-amazon"


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        url = f"http://{host}:{port}"
        for name, value in {
            "AWS_ENDPOINT_URL_SECRETS_MANAGER": url,
            "AWS_ACCESS_KEY_ID": "penstock",
            "AWS_SECRET_ACCESS_KEY": "hunter2hunter2",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }.items():
            monkeypatch.setenv(name, value)
        yield url
    finally:
        server.stop()


def test_a_secret_is_read_where_it_is_used_and_anew_after_it_was_replaced(endpoint: str) -> None:
    del endpoint
    with closing(boto3.client("secretsmanager")) as manager:
        manager.create_secret(Name="shop/plain", SecretString=SECRET)
        manager.create_secret(Name="shop/db", SecretString=json.dumps({"password": SECRET, "port": 5}))
        manager.create_secret(Name="shop/bytes", SecretBinary=b"\x00")
        assert resolve_references("x${aws:shop/plain}y") == f"x{SECRET}y"
        assert resolve_references("${aws:shop/db#password}") == SECRET
        manager.put_secret_value(SecretId="shop/plain", SecretString="the-next-one")
        assert resolve_references("${aws:shop/plain}") == "the-next-one"
    refused = {
        "shop/none": "ResourceNotFoundException",
        "shop/db#user": "no such field",
        "shop/plain#user": "no such field",
        "shop/db#port": "no text",
        "shop/bytes": "is binary",
    }
    for place, words in refused.items():
        with pytest.raises(UnresolvedReference) as error:
            resolve_references(f"${{aws:{place}}}")
        told = str(error.value)
        assert words in told, told
        assert told.startswith(f"${{aws:{place}}} ")
        assert SECRET not in told
        assert "\n" not in told


def test_without_the_extra_it_is_said_in_one_line_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    wanted = r"needs the package boto3; install it with: pip install 'penstock\[aws\]'"
    with pytest.raises(UnresolvedReference, match=wanted):
        resolve_references("${aws:shop/plain}")
