"""The list of the extender's features, in their order, with what each needs of others."""

from gpu_device_plugin.feature_list import FeatureSpec, settings_of
from gpu_device_plugin.features.capacity import CapacitySettings
from gpu_device_plugin.features.idle import IdleActionSettings
from gpu_device_plugin.settings.extender import ExtenderSettings

EXTENDER_FEATURES: tuple[FeatureSpec, ...] = (
    FeatureSpec("elastic", "gpu_device_plugin.features.elastic.scheduler:Resizes"),
    FeatureSpec("learning", "gpu_device_plugin.features.learning.scheduler:Learner"),
    FeatureSpec("preemption", "gpu_device_plugin.features.preemption.scheduler:Preemption"),
    FeatureSpec(
        "sample_misses", "gpu_device_plugin.features.sample_misses.scheduler:SampleMisses", needs=("preemption",)
    ),
    FeatureSpec("capacity", "gpu_device_plugin.features.capacity.scheduler:Capacity", CapacitySettings),
    # After it: what takes long for idle pods keeps no node from its mark when a term begins.
    FeatureSpec("idle", "gpu_device_plugin.features.idle.scheduler:IdleActions", IdleActionSettings),
)
"""In the order in which they are made and take part in answers. A feature that is absent, because another one is or
because it is not in the list, is simply not there."""

EXTENDER_SETTINGS = settings_of(EXTENDER_FEATURES, ExtenderSettings)
"""The settings of an extender with all of them."""
