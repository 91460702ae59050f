"""Review tokens and access like the API server's authenticators and its authorizer RBAC."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from gpu_device_plugin.testing.cluster.cluster_kinds import StatusError
from tests.builders import Json

TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105 - a path
ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
AUDIENCE = "https://kubernetes.default.svc"
_MASTERS = "system:masters"
_AUTHENTICATED = "system:authenticated"


@dataclass(frozen=True)
class Account:
    """Whom a token identifies, and the rights of that user."""

    username: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    rights: Collection[tuple[str, str, str]] = frozenset()
    """(verb, resource, namespace), the resource ``PLURAL.GROUP`` outside the core group; without a namespace the right
    holds in the whole cluster. Members of ``system:masters`` have all rights."""

    def user(self) -> Json:
        """Return the user as a TokenReview has it."""
        given = {
            "username": self.username,
            "uid": self.uid,
            "groups": [*self.groups, _AUTHENTICATED],
            "extra": {key: list(values) for key, values in self.extra.items()},
        }
        return {key: value for key, value in given.items() if value}


def review_token(accounts: Mapping[str, Account], review: Json) -> Json:
    """Return a TokenReview with its status. StatusError: it names no token."""
    token = review.get("spec", {}).get("token", "")
    if not token:
        raise StatusError(400, "BadRequest", "token is required for TokenReview in authentication")
    account = accounts.get(token)
    # A server that identifies tokens for one audience refuses them for others in the same words.
    elsewhere = AUDIENCE not in review["spec"].get("audiences", [AUDIENCE])
    unknown = {"user": {}, "error": "invalid bearer token"}
    known = account is not None and not elsewhere
    status = {"authenticated": True, "user": account.user(), "audiences": [AUDIENCE]} if account and known else unknown
    return {**review, "status": status}


def review_access(accounts: Collection[Account], review: Json) -> Json:
    """Return a SubjectAccessReview with its status. StatusError: it names nobody, or not exactly one kind of access."""
    spec = review.get("spec", {})
    if not spec.get("user") and not spec.get("groups"):
        raise _invalid("user", 'Invalid value: "": at least one of user or group must be specified')
    if spec.get("resourceAttributes") and spec.get("nonResourceAttributes"):
        raise _invalid("nonResourceAttributes", "cannot be specified in combination with resourceAttributes")
    if not spec.get("resourceAttributes") and not spec.get("nonResourceAttributes"):
        one = "Invalid value: null: exactly one of nonResourceAttributes or resourceAttributes must be specified"
        raise _invalid("resourceAttributes", one)
    asked = spec.get("resourceAttributes", {})
    plural = ".".join(filter(None, (asked.get("resource", ""), asked.get("group", ""))))
    resource = "/".join(filter(None, (plural, asked.get("subresource", ""))))
    verb, namespace = asked.get("verb", ""), asked.get("namespace", "")
    # Whom a review names, and not what a token says of him, decides.
    rights = {right for account in accounts if account.username == spec.get("user") for right in account.rights}
    allowed = _MASTERS in spec.get("groups", ()) or bool({(verb, resource, ""), (verb, resource, namespace)} & rights)
    return {**review, "status": {"allowed": allowed}}


def _invalid(field: str, why: str) -> StatusError:
    cause = {"reason": "FieldValueInvalid", "message": why, "field": f"spec.{field}"}
    details = {"group": "authorization.k8s.io", "causes": [cause]}
    return StatusError(422, "Invalid", f'.authorization.k8s.io "" is invalid: spec.{field}: {why}', details)
