"""Secrets of AWS Secrets Manager: `${aws:NAME}` is a secret, `${aws:NAME#FIELD}` a field of one that is JSON.

The process that uses the reference asks with its own credentials, region and endpoint, as boto3 finds them:
the environment, its files, or the role of the machine. boto3 comes with the extra `penstock[aws]`.
"""

import json
from typing import Any

from penstock.errors import Invalid
from penstock.extras import import_with_extra
from penstock.secret_references import UnresolvedReference

__all__ = ["read_aws"]

_TIMEOUT_S = 10


def read_aws(place: str) -> str:
    """Return a secret, or a field of it, as it is now. Blocks for seconds when AWS does not answer.

    Raises UnresolvedReference, without a value, when there is none, or AWS cannot be asked.
    """
    reference = f"${{aws:{place}}}"
    name, _, field = place.partition("#")
    text = _ask(name, reference)
    if not field:
        return text
    try:
        value = json.loads(text)[field]
    except (ValueError, TypeError, KeyError):
        raise UnresolvedReference(
            f"{reference} has no such field; check the name after #, of a secret that is a JSON object"
        ) from None
    if not isinstance(value, str):
        raise UnresolvedReference(f"{reference} is no text; keep the field as a text")
    return value


def _ask(name: str, reference: str) -> str:
    try:
        boto3: Any = import_with_extra("boto3", needed_by=reference)
        config: Any = import_with_extra("botocore.config", needed_by=reference)
        errors: Any = import_with_extra("botocore.exceptions", needed_by=reference)
    except Invalid as error:
        raise UnresolvedReference(str(error)) from None
    given = config.Config(
        connect_timeout=_TIMEOUT_S, read_timeout=_TIMEOUT_S, retries={"total_max_attempts": 2}
    )
    try:
        client = boto3.session.Session().client("secretsmanager", config=given)
        try:
            answer = client.get_secret_value(SecretId=name)
        finally:
            client.close()
    except errors.ClientError as error:
        code = str(error.response.get("Error", {}).get("Code", ""))
        raise UnresolvedReference(
            f"{reference} cannot be read ({code}); check the name, and that this process may read it"
        ) from None
    except errors.BotoCoreError as error:
        raise UnresolvedReference(
            f"{reference} cannot be read ({type(error).__name__}); check credentials, AWS_REGION and network"
        ) from None
    text = answer.get("SecretString")
    if not isinstance(text, str):
        raise UnresolvedReference(f"{reference} is binary; keep the secret as a text")
    return text
