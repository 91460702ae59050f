"""The features of the node agent: which there are, in which order, and what each needs of others."""

from gpu_device_plugin.programs.node.feature_context import FeatureSpec

_HERE = "gpu_device_plugin.programs.node.features"

NODE_FEATURES = (
    FeatureSpec("use", f"{_HERE}.use:Use"),
    FeatureSpec("eviction", f"{_HERE}.eviction:Evictions", needs=("use",), needs_api=True),
    FeatureSpec("over_use", f"{_HERE}.over_use:OverUseOfMemory", needs=("use",)),
    FeatureSpec("elastic", f"{_HERE}.elastic:Elastic", needs=("use",)),
    FeatureSpec("mps", f"{_HERE}.mps:Mps"),
    FeatureSpec("limits", f"{_HERE}.limits:Limits", needs=("use",)),
    FeatureSpec("idle", f"{_HERE}.idle:Idle", needs=("use",)),
    FeatureSpec("history", f"{_HERE}.history:PastHour", needs=("use",)),
    FeatureSpec("cordon", f"{_HERE}.cordon:AutomaticCordons", needs=("history",), needs_api=True),
    FeatureSpec("audit", f"{_HERE}.audit:Audit", needs=("use",)),
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
