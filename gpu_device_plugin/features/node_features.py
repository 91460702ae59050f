"""The list of the node agent's features, in their order, with what each needs of others."""

from gpu_device_plugin.feature_list import FeatureSpec, settings_of
from gpu_device_plugin.features.claims import ClaimSettings
from gpu_device_plugin.features.conflicts import ConflictSettings
from gpu_device_plugin.features.cordon import CordonSettings
from gpu_device_plugin.features.elastic import ElasticSettings
from gpu_device_plugin.features.eviction import EvictionSettings, GpuFailureSettings
from gpu_device_plugin.features.history import HistorySettings
from gpu_device_plugin.features.idle import IdleSettings
from gpu_device_plugin.features.limits import LimitSettings
from gpu_device_plugin.features.mps import MpsSettings
from gpu_device_plugin.features.over_use import OverUseSettings
from gpu_device_plugin.features.use import UseSettings
from gpu_device_plugin.settings.node import NodeSettings

NODE_FEATURES = (
    FeatureSpec("forgotten", "gpu_device_plugin.features.forgotten.node:ForgottenPods"),
    FeatureSpec("conflicts", "gpu_device_plugin.features.conflicts.node:ConflictingPlugins", ConflictSettings),
    FeatureSpec("use", "gpu_device_plugin.features.use.node:Use", UseSettings),
    FeatureSpec("use_reports", "gpu_device_plugin.features.use.node:UseReports", needs=("use",)),
    FeatureSpec("eviction", "gpu_device_plugin.features.eviction.evictor:Evictor", EvictionSettings, needs_api=True),
    FeatureSpec(
        "gpu_failures",
        "gpu_device_plugin.features.eviction.evictor:GpuFailures",
        GpuFailureSettings,
        needs=("use", "eviction"),
    ),
    FeatureSpec("over_use", "gpu_device_plugin.features.over_use.node:OverUse", OverUseSettings, needs=("use",)),
    FeatureSpec("guarantees", "gpu_device_plugin.features.elastic.guarantees:Guarantees"),
    FeatureSpec("borrowing", "gpu_device_plugin.features.elastic.borrowing:Borrowing", ElasticSettings, needs=("use",)),
    FeatureSpec("mps", "gpu_device_plugin.features.mps.node:Mps", MpsSettings, needs=("use",)),
    FeatureSpec("limits", "gpu_device_plugin.features.limits.node:Limits", LimitSettings, needs=("use",)),
    FeatureSpec("idle", "gpu_device_plugin.features.idle.node:Idle", IdleSettings, needs=("use",)),
    FeatureSpec("history", "gpu_device_plugin.features.history.sampling:History", HistorySettings, needs=("use",)),
    FeatureSpec(
        "incidents",
        "gpu_device_plugin.features.history.flight_recorder:FlightRecorder",
        needs=("use_reports", "history"),
    ),
    FeatureSpec("cordon", "gpu_device_plugin.features.cordon.node:Cordons", CordonSettings, needs_api=True),
    FeatureSpec("audit", "gpu_device_plugin.features.audit.node:Audit", needs=("use",)),
    FeatureSpec("mig", "gpu_device_plugin.features.mig.node:InstancesOfPods"),
    FeatureSpec("claims", "gpu_device_plugin.features.claims.node:Claims", ClaimSettings, needs_api=True),
)
"""In the order in which they are made and take part in answers: what a container may use is known before it is limited
to that, and whether MPS can limit it before the means is chosen. A feature that is absent, because another one is or
without the Kubernetes API, is not missed by others."""

NODE_SETTINGS = settings_of(NODE_FEATURES, NodeSettings)
"""The settings of an agent with all of them."""
