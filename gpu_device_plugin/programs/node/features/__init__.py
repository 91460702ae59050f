"""The features of the node agent: which there are, in which order, and what each needs of others."""

from gpu_device_plugin.programs.node.feature_context import FeatureSpec

_NODE = "gpu_device_plugin.programs.node"

NODE_FEATURES = (
    FeatureSpec("use", f"{_NODE}.use.use_reader:Use"),
    FeatureSpec("eviction", f"{_NODE}.use.evictor:Evictions", needs=("use",), needs_api=True),
    FeatureSpec("over_use", f"{_NODE}.use.over_use:OverUseOfMemory", needs=("use",)),
    FeatureSpec("elastic", f"{_NODE}.features.elastic:Elastic", needs=("use",)),
    FeatureSpec("mps", f"{_NODE}.limits.mps_link:Mps"),
    FeatureSpec("limits", f"{_NODE}.features.limits:Limits", needs=("use",)),
    FeatureSpec("idle", f"{_NODE}.use.idle_pods:Idle", needs=("use",)),
    FeatureSpec("history", f"{_NODE}.features.history:PastHour", needs=("use",)),
    FeatureSpec("cordon", f"{_NODE}.auto_cordon:AutomaticCordons", needs=("history",), needs_api=True),
    FeatureSpec("audit", f"{_NODE}.audit_log:Audit", needs=("use",)),
)
"""In the order in which they are made, and take part in answers: what a container may use is known before MPS limits it
to that, and what is required of its limits comes last. A feature that is absent because another is, or without the
Kubernetes API, is missed by nobody."""


def without(*names: str) -> tuple[FeatureSpec, ...]:
    """Return the features but these and those that need them."""
    absent, left = set(names), []
    for spec in NODE_FEATURES:
        if spec.name in absent or absent.intersection(spec.needs):
            absent.add(spec.name)
        else:
            left.append(spec)
    return tuple(left)
