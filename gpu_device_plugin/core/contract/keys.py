"""The names of everything that is written on pods and nodes. What stands under them is the codecs' business.

The pod annotations are those of Alibaba's gpushare, so that its extender can drive this plugin and its tools can read
what this plugin writes; `ALLOCATION` is the one that its successor ACK writes and that gpushare's inspect reads.
"""

# --- On a pod: its GPUs (`promises`) ----------------------------------------------------------------------------------

IDX = "ALIYUN_COM_GPU_MEM_IDX"
"""Position of the GPU in the node's list, when there is only one."""
POD = "ALIYUN_COM_GPU_MEM_POD"
"""Shares of the whole pod."""
DEV = "ALIYUN_COM_GPU_MEM_DEV"
"""Shares of the GPU."""
ASSIGNED = "ALIYUN_COM_GPU_MEM_ASSIGNED"
"""``"false"`` as the scheduler writes it, ``"true"`` once the kubelet has given the devices out."""
ASSUME_TIME = "ALIYUN_COM_GPU_MEM_ASSUME_TIME"
"""When the scheduler promised, in nanoseconds since the epoch."""
ALLOCATION = "scheduler.framework.gpushare.allocation"
"""JSON ``{"<container index>": {"<GPU position>": <shares>}}``: where each container's devices are. Tells more than
`IDX` can, and is believed before it. A GPU given whole has all of its shares."""
INIT_ALLOCATION = "gpu-device-plugin/init-allocation"
"""The same for init containers and sidecars, by their index among ``initContainers``; `ALLOCATION` has none of them."""
POD_ANNOTATIONS = frozenset({IDX, POD, DEV, ASSIGNED, ASSUME_TIME, ALLOCATION, INIT_ALLOCATION})

STATIC_POD = "kubernetes.io/config.mirror"
"""On the API's copy of a static pod: the UID by which the kubelet itself knows the pod. The kubelet writes it."""
SPLIT_LABEL = "aliyun.com/gpu-count"
"""Pod label of Alibaba's ACK: over how many GPUs the gpu-mem of the pod is split, in equal parts."""

# --- On a pod: which GPUs its owner wants (`wishes`) ------------------------------------------------------------------

GPU_POLICY = "gpu-device-plugin/gpu-policy"
"""Which GPU of a node it prefers, a name in `POLICIES`."""
NODE_POLICY = "gpu-device-plugin/node-policy"
"""Which node it prefers, a name in `POLICIES`."""
USE_MODEL = "gpu-device-plugin/use-model"
"""Only GPUs of these models, with commas between them."""
AVOID_MODEL = "gpu-device-plugin/avoid-model"
USE_UUID = "gpu-device-plugin/use-uuid"
"""Only these GPUs, with commas between them."""
AVOID_UUID = "gpu-device-plugin/avoid-uuid"
WISHES = frozenset({GPU_POLICY, NODE_POLICY, USE_MODEL, AVOID_MODEL, USE_UUID, AVOID_UUID})

READ_ON_PODS = POD_ANNOTATIONS | WISHES | {SPLIT_LABEL, STATIC_POD}
"""What programs keep of a pod's annotations and labels."""

# --- On a node, written by its agent (`nodegpus`, `nodelabels`), and removed with it (`cleanup`) ----------------------

NODE_GPUS = "gpu-device-plugin/gpus"
"""Annotation: every GPU with what a scheduler needs to know of it, as JSON."""
NODE_LABELS = "gpu-device-plugin/"
"""Prefix of the labels; others with this prefix are people's."""
MODEL_LABELS = f"{NODE_LABELS}product."
"""Prefix of the labels that name a model each."""
AGENT_LABELS = tuple(
    f"{NODE_LABELS}{name}" for name in ("product", "count", "memory-mib", "driver", "share-mib", "policy")
)
"""All other labels of the agent."""

# --- On a node, written by people -------------------------------------------------------------------------------------

SWITCH_LABEL = "gpushare"
"""The label that a person puts on a node to have its GPUs shared, and that the DaemonSet selects by."""
SWITCHED_ON = "true"
PLACEMENT_LABEL = "ack.node.gpu.placement"
"""Of Alibaba's ACK: the policy by which GPUs of this node are chosen."""
CONFIG_LABEL = "gpu-device-plugin/config"
"""The profile of settings that the agent of this node has."""
DEFAULT_PROFILE = "default"
"""What `CONFIG_LABEL` may say where the node has no other settings than all have."""
CGPU_DISABLE_LABEL = "cgpu.disable.isolation"
"""Of gpushare; ``"true"`` asks for ``CGPU_DISABLE=true`` in every container."""

READ_ON_NODES = frozenset({NODE_GPUS, PLACEMENT_LABEL})
"""What programs keep of a node's annotations and labels that place pods on it."""


class MalformedAnnotationError(ValueError):
    """A value under one of these names that cannot be read; the message names key and fault, not the value's owner."""
