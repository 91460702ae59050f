"""What the answers of the API server mean."""

from __future__ import annotations

import json

import pytest

from gpu_device_plugin.cluster.errors import (
    ApiError,
    Call,
    ConflictError,
    ForbiddenError,
    GoneError,
    InvalidError,
    NotFoundError,
    TooManyRequestsError,
    UnauthorizedError,
    UnavailableError,
    error_from,
)

CALL = Call("patch", "pods", "", "default", "a")


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (302, ApiError),
        (400, InvalidError),
        (401, UnauthorizedError),
        (403, ForbiddenError),
        (404, NotFoundError),
        (405, ApiError),
        (409, ConflictError),
        (410, GoneError),
        (422, InvalidError),
        (429, TooManyRequestsError),
        (500, UnavailableError),
        (503, UnavailableError),
        (599, UnavailableError),
    ],
)
def test_the_status_code_decides_and_not_the_text(status: int, kind: type[ApiError]) -> None:
    lying = json.dumps({"kind": "Status", "reason": "NotFound", "message": "not found", "code": 404}).encode()
    for body in (lying, b"", b"<html>\xff</html>"):
        error = error_from(CALL, body, status=status)
        assert type(error) is kind
        assert error.status == status


def test_an_error_inside_a_watch_carries_its_code_itself() -> None:
    error = error_from(CALL, b'{"kind":"Status","code":410,"reason":"Expired","message":"too old resource version: 1"}')
    assert type(error) is GoneError
    assert str(error) == "patch pods default/a: 410 Expired: too old resource version: 1"


def test_forbidden_names_the_right_that_is_missing() -> None:
    call = Call("create", "events", "events.k8s.io", "default")
    assert str(error_from(call, b"", status=403)) == (
        "create events default: 403 Forbidden; "
        "grant 'create' on 'events' of the API group events.k8s.io to the service account"
    )


def test_an_invalid_object_is_not_quoted() -> None:
    """The API server quotes pods, environment included, when it refuses a change of one."""
    body = {
        "reason": "Invalid",
        "message": 'Pod "a" is invalid: spec: Forbidden: {Env: PASSWORD=hunter2}',
        "details": {"causes": [{"reason": "FieldValueForbidden", "message": "hunter2", "field": "spec"}]},
    }
    error = error_from(CALL, json.dumps(body).encode(), status=422)
    assert str(error) == "patch pods default/a: 422 Invalid: spec (FieldValueForbidden)"


@pytest.mark.parametrize(
    ("header", "details", "expected"),
    [
        ("2", {}, 2),
        ("", {"retryAfterSeconds": 3}, 3),
        ("2", {"retryAfterSeconds": 3}, 2),
        ("100000", {}, 60),
        ("-5", {"retryAfterSeconds": -5}, 0),
        ("Fri, 31 Dec 1999 23:59:59 GMT", {}, 0),
        ("²", {}, 0),
    ],
)
def test_the_server_says_how_long_to_wait(header: str, details: dict[str, int], expected: float) -> None:
    body = json.dumps({"details": details}).encode()
    assert error_from(CALL, body, status=429, retry_after=header).retry_after_s == expected


def test_long_messages_are_cut_and_kept_on_one_line() -> None:
    body = json.dumps({"message": "a\nb " + "x" * 5000}).encode()
    assert str(error_from(CALL, body, status=500)).startswith(
        "patch pods default/a: 500 Internal Server Error: a b xxx"
    )
    assert len(str(error_from(CALL, body, status=500))) < 400
