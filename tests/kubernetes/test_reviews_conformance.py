"""Our API server reviews tokens and access as the real one does, where there is a real one (KUBE_BIN)."""

import uuid
from typing import Any

import pytest

from tests.cluster_double.reviews import ACCESS_REVIEWS, TOKEN_REVIEWS
from tests.kubernetes.conftest import Api

GET_PODS = {"verb": "get", "resource": "pods", "namespace": "default"}


async def token_review(api: Api, spec: dict[str, Any]) -> tuple[int, Any]:
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}
    return await api.ask("POST", TOKEN_REVIEWS, body)


async def access_review(api: Api, spec: dict[str, Any]) -> tuple[int, Any]:
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    return await api.ask("POST", ACCESS_REVIEWS, body)


async def test_a_token_tells_its_user(api: Api) -> None:
    code, review = await token_review(api, {"token": "stranger-token"})
    assert code == 201
    assert review["status"] == {
        "authenticated": True,
        "user": {"username": "stranger", "uid": "2", "groups": ["system:authenticated"]},
        "audiences": ["https://kubernetes.default.svc"],
    }
    _, review = await token_review(api, {"token": "admin-token"})
    assert review["status"]["user"]["groups"] == ["system:masters", "system:authenticated"]


@pytest.mark.parametrize("spec", [{"token": "nonsense"}, {"token": "admin-token", "audiences": ["another"]}])
async def test_an_unknown_token_is_no_error_and_nobodys(api: Api, spec: dict[str, Any]) -> None:
    code, review = await token_review(api, spec)
    assert (code, review["status"]) == (201, {"user": {}, "error": "invalid bearer token"})


@pytest.mark.parametrize("spec", [{}, {"token": ""}])
async def test_a_review_needs_a_token(api: Api, spec: dict[str, Any]) -> None:
    code, status = await token_review(api, spec)
    assert (code, status["reason"]) == (400, "BadRequest")
    assert status["message"] == "token is required for TokenReview in authentication"


@pytest.mark.parametrize(
    ("who", "allowed"),
    [
        ({"user": "stranger"}, False),
        # The groups that the review names decide, and not those of the user's token.
        ({"user": "admin", "groups": ["system:masters"]}, True),
        ({"user": "admin"}, False),
    ],
)
async def test_access_is_a_question_of_user_and_groups(api: Api, who: dict[str, Any], *, allowed: bool) -> None:
    code, review = await access_review(api, {**who, "resourceAttributes": GET_PODS})
    assert code == 201
    assert review["status"]["allowed"] is allowed


@pytest.mark.parametrize(
    ("spec", "where"),
    [
        ({"resourceAttributes": GET_PODS}, "spec.user"),
        ({"user": "x"}, "spec.resourceAttributes"),
        (
            {"user": "x", "resourceAttributes": GET_PODS, "nonResourceAttributes": {"path": "/", "verb": "get"}},
            "spec.nonResourceAttributes",
        ),
    ],
)
async def test_an_incomplete_question_is_invalid(api: Api, spec: dict[str, Any], where: str) -> None:
    code, status = await access_review(api, spec)
    assert (code, status["reason"]) == (422, "Invalid")
    assert [cause["field"] for cause in status["details"]["causes"]] == [where]


async def test_a_right_holds_in_its_namespace(api: Api) -> None:
    """A role for the user `reader` in one namespace, which the double's account has as a right."""
    rbac, inside = "/apis/rbac.authorization.k8s.io/v1/namespaces/kube-public", f"r{uuid.uuid4().hex[:8]}"
    if api.config.url.startswith("https:"):
        rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}
        meta = {"name": inside, "namespace": "kube-public"}
        kind = {"apiVersion": "rbac.authorization.k8s.io/v1"}
        code, made = await api.ask("POST", f"{rbac}/roles", {**kind, "kind": "Role", "metadata": meta, "rules": [rule]})
        assert code == 201, made
        group = "rbac.authorization.k8s.io"
        body = {
            **kind,
            "kind": "RoleBinding",
            "metadata": meta,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": inside},
            "subjects": [{"kind": "User", "name": "reader", "apiGroup": group}],
        }
        code, made = await api.ask("POST", f"{rbac}/rolebindings", body)
        assert code == 201, made
    for namespace, allowed in (("kube-public", True), ("default", False), ("", False)):
        asked = {**GET_PODS, "namespace": namespace}
        _, review = await access_review(api, {"user": "reader", "resourceAttributes": asked})
        assert review["status"]["allowed"] is allowed, namespace
