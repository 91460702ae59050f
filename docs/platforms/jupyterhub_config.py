"""Notebooks of 4 GiB of a GPU that borrow up to 12 GiB while others do not need them, and end when nobody uses them."""

import sys

c = get_config()

c.JupyterHub.spawner_class = "kubespawner.KubeSpawner"
c.KubeSpawner.profile_list = [
    {
        "display_name": "4 GiB of a GPU, and up to 12 GiB while they are free",
        "slug": "gpu-4",
        "default": True,
        "kubespawner_override": {
            "scheduler_name": "gpushare-scheduler",
            "extra_pod_config": {"runtimeClassName": "nvidia"},
            "extra_resource_limits": {"aliyun.com/gpu-mem": "4"},
            "extra_annotations": {
                "gpu-device-plugin/memory-limit": "12",
                "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
            },
        },
    },
    {
        "display_name": "a whole GPU",
        "slug": "gpu",
        "kubespawner_override": {
            "scheduler_name": "gpushare-scheduler",
            "extra_pod_config": {"runtimeClassName": "nvidia"},
            "extra_resource_limits": {"aliyun.com/gpu-count": "1"},
        },
    },
]

# In the chart Zero to JupyterHub this is cull.enabled and cull.timeout.
c.JupyterHub.services = [
    {
        "name": "idle-culler",
        "command": [sys.executable, "-m", "jupyterhub_idle_culler", "--timeout=3600"],
    }
]
c.JupyterHub.load_roles = [
    {
        "name": "idle-culler",
        "services": ["idle-culler"],
        "scopes": ["list:users", "read:users:activity", "read:servers", "delete:servers"],
    }
]
