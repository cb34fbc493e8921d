"""Which error is answered by what."""

import json

import pytest

from penstock import errors
from penstock.api.errors import MEDIA_TYPE, answer_failure
from penstock.control.tenancy import TenantRefused


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.Invalid("wrong"), 400),
        (TenantRefused("not yours"), 403),
        (errors.NotFound("none"), 404),
        (errors.AlreadyExists("taken"), 409),
        (errors.KeyExists(b"key"), 409),
        (errors.Conflict("again"), 409),
        (errors.Aborted("again"), 409),
        (errors.Fenced("newer owner"), 409),
        (errors.StaleRead("shop.orders", 1, oldest_ts=2), 410),
        (errors.Unavailable("away"), 503),
        (errors.Undetermined("unknown"), 503),
        (errors.Corrupt("damaged"), 500),
    ],
)
def test_every_error_has_its_status_and_says_what_it_is(error: errors.PenstockError, status: int) -> None:
    answer = answer_failure(error)
    assert answer.status_code == status
    assert answer.media_type == MEDIA_TYPE
    tree = json.loads(bytes(answer.body))
    assert tree == {"type": "about:blank", "title": tree["title"], "status": status, "detail": str(error)}
    assert ("retry-after" in answer.headers) == (status == 503)


def test_an_error_of_others_is_not_repeated() -> None:
    """Their words may have values of rows in them."""
    answer = answer_failure(ValueError("duplicate key: ada@example.org"))
    assert answer.status_code == 500
    assert b"ada" not in bytes(answer.body)


def test_an_error_of_several_lines_is_one() -> None:
    assert json.loads(bytes(answer_failure(errors.Invalid("a\nb")).body))["detail"] == "a b"
