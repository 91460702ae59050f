"""What a container gets: the kernel's grant with what limits add to it, as Allocate puts them together."""

from typing import Any

from gpu_device_plugin.features.limits.rules.limit_grants import LimitPlan, added_for_limits
from gpu_device_plugin.model.placing import Placement
from gpu_device_plugin.model.shares import Shares
from gpu_device_plugin.node.rules.container_grants import NOBODY, Delivery, Grant, GrantOwner, grant


def granted(
    placement: Placement,
    shares: Shares,
    plan: LimitPlan | None = None,
    delivery: Delivery | None = None,
    *,
    owner: GrantOwner = NOBODY,
    **more: Any,
) -> Grant:
    added = added_for_limits(placement, shares, plan or LimitPlan(), owner)
    return grant(placement, shares, delivery or Delivery(), owner=owner, added=added, **more)
