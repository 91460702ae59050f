"""The list of the node agent's features, in their order, with what each needs of others."""

from gpu_device_plugin.node.feature_context import FeatureSpec

NODE_FEATURES = (
    FeatureSpec("forgotten", "gpu_device_plugin.features.forgotten.node:ForgottenPods"),
    FeatureSpec("conflicts", "gpu_device_plugin.features.conflicts.node:ConflictingPlugins"),
    FeatureSpec("use", "gpu_device_plugin.features.use.node:Use"),
    FeatureSpec("eviction", "gpu_device_plugin.features.eviction.node:Evictions", needs=("use",), needs_api=True),
    FeatureSpec("over_use", "gpu_device_plugin.features.over_use.node:OverUseOfMemory", needs=("use",)),
    FeatureSpec("elastic", "gpu_device_plugin.features.elastic.node:Elastic", needs=("use",)),
    FeatureSpec("mps", "gpu_device_plugin.features.mps.node:make_mps", needs=("use",)),
    FeatureSpec("limits", "gpu_device_plugin.features.limits.node:Limits", needs=("use",)),
    FeatureSpec("idle", "gpu_device_plugin.features.idle.node:Idle", needs=("use",)),
    FeatureSpec("history", "gpu_device_plugin.features.history.node:PastHour", needs=("use",)),
    FeatureSpec("cordon", "gpu_device_plugin.features.cordon.node:Cordons", needs_api=True),
    FeatureSpec("audit", "gpu_device_plugin.features.audit.node:Audit", needs=("use",)),
    FeatureSpec("mig", "gpu_device_plugin.features.mig.node:InstancesOfPods"),
    FeatureSpec("claims", "gpu_device_plugin.features.claims.node:Claims", needs_api=True),
)
"""In the order in which they are made and take part in answers: what a container may use is known before it is limited
to that, and whether MPS can limit it before the means is chosen. A feature that is absent, because another one is or
without the Kubernetes API, is not missed by others."""
