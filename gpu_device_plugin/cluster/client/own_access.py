"""Ask the API server which rights our account has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gpu_device_plugin.cluster.client.answers import answered
from gpu_device_plugin.cluster.client.errors import Call
from gpu_device_plugin.cluster.objects.decoding import ObjectKind

if TYPE_CHECKING:
    from gpu_device_plugin.cluster.client.api_client import Client

_REVIEWS = ObjectKind("selfsubjectaccessreviews", group="authorization.k8s.io")


class _Verdict(msgspec.Struct):
    allowed: bool = False


class _Review(msgspec.Struct):
    status: _Verdict


async def may(client: Client, right: Call) -> bool:
    """Return whether our account has the right to a call in all namespaces. Every account may review its own rights.

    Raises:
        ApiError: the API server did not answer the review.
    """
    asked = {"verb": right.verb, "resource": right.resource, "group": right.group}
    body = {
        "apiVersion": f"{_REVIEWS.group}/{_REVIEWS.version}",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": asked},
    }
    answer = await client.create(_REVIEWS, body)
    call = Call("create", _REVIEWS.plural, _REVIEWS.group)
    return answered(call, answer, _Review, "a review").status.allowed
