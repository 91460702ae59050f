"""What the answers of the API server mean."""

import json

import pytest

from gpu_device_plugin.kubernetes.client.errors import (
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


BINDING = Call("create", "pods/binding", "", "default", "p")
DENIED = 'admission webhook "x" denied the request: no GPU pods on Fridays'


@pytest.mark.parametrize(
    ("call", "message", "expected"),
    [
        (
            BINDING,
            'pods "p" is forbidden: User "s" cannot create resource "pods/binding" in API group "" in namespace "d"',
            "403 Forbidden; grant 'create' on 'pods/binding' to the service account",
        ),
        (BINDING, DENIED, f"403 Forbidden: {DENIED}"),
        (Call("update", "leases", "coordination.k8s.io"), DENIED, f"403 Forbidden: {DENIED}"),
        (Call("patch", "nodes"), DENIED, f"403 Forbidden: {DENIED}"),
        (Call("get", "pods"), "not today", "403 Forbidden; grant 'get' on 'pods' to the service account"),
        (
            CALL,
            'pods "a" is forbidden: {Env: PASSWORD=hunter2}',
            "403 Forbidden; the account has the right, but an admission policy, a webhook or a quota denied it",
        ),
    ],
)
def test_forbidden_is_no_missing_right_where_admission_says_why(call: Call, message: str, expected: str) -> None:
    """And it is quoted where what was sent holds no environment."""
    body = json.dumps({"reason": "Forbidden", "message": message}).encode()
    assert str(error_from(call, body, status=403)) == f"{call}: {expected}"


def test_while_a_server_starts_a_missing_right_is_no_reason_to_grant_it() -> None:
    watch = Call("watch", "pods")
    error = error_from(watch, b"", status=403, starting=True)
    assert type(error) is UnavailableError
    assert str(error) == (
        "watch pods: 403 Forbidden; the API server is starting, and may not know the rights of its accounts yet"
    )
    assert type(error_from(BINDING, json.dumps({"message": DENIED}).encode(), status=403, starting=True)) is (
        ForbiddenError
    )
    assert type(error_from(watch, b"", status=404, starting=True)) is NotFoundError


@pytest.mark.parametrize(("status", "reason"), [(400, "BadRequest"), (422, "Invalid")])
def test_what_admission_has_against_a_binding_is_shown(status: int, reason: str) -> None:
    body = json.dumps({"reason": reason, "message": DENIED}).encode()
    assert str(error_from(BINDING, body, status=status)) == f"{BINDING}: {status} {reason}: {DENIED}"


@pytest.mark.parametrize(("status", "reason"), [(403, "Forbidden"), (422, "Invalid")])
@pytest.mark.parametrize(
    ("message", "refuser"),
    [
        (
            "pods \"a\" is forbidden: ValidatingAdmissionPolicy 'own-node' with binding 'b' denied request: hunter2",
            "ValidatingAdmissionPolicy own-node",
        ),
        ('admission webhook "no.fridays" denied the request: hunter2', "admission webhook no.fridays"),
    ],
)
def test_who_has_something_against_a_change_of_a_pod_is_named(
    status: int, reason: str, message: str, refuser: str
) -> None:
    """What they say of it is not repeated: it may quote the pod."""
    error = error_from(CALL, json.dumps({"reason": reason, "message": message}).encode(), status=status)
    assert str(error) == f"patch pods default/a: {status} {reason}; {refuser} denied it"


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


def test_why_kubectls_proxy_reached_no_server_is_told() -> None:
    """It answers in plain text; a page in HTML tells nothing, and of a write nothing is quoted."""
    reading, writing = Call("list", "nodes"), Call("patch", "pods", "", "default", "a")
    refused = b"dial tcp 127.0.0.1:1: connect: connection refused\n\nmore"
    told = [str(error_from(call, refused, status=500)) for call in (reading, writing)]
    assert told[0] == "list nodes: 500 Internal Server Error: dial tcp 127.0.0.1:1: connect: connection refused"
    assert told[1] == "patch pods default/a: 500 Internal Server Error"
    for body in (b"<html>", b"", b"\x1b[31m"):
        assert str(error_from(reading, body, status=502)) == "list nodes: 502 Bad Gateway"
