"""The keys of the annotations and labels on pods and nodes; the codecs define the values.

The pod annotations are those of Alibaba's gpushare, so that its extender can drive this plugin and its tools can read
the annotations of this plugin; `ALLOCATION` is the one that its successor ACK writes and gpushare's inspect reads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

# --- On a pod: its GPUs (`promises`) ----------------------------------------------------------------------------------

IDX = "ALIYUN_COM_GPU_MEM_IDX"
"""Position of the GPU in the node's list, when there is only one."""
POD = "ALIYUN_COM_GPU_MEM_POD"
"""Shares of the whole pod."""
DEV = "ALIYUN_COM_GPU_MEM_DEV"
"""Shares of the GPU."""
ASSIGNED = "ALIYUN_COM_GPU_MEM_ASSIGNED"
"""The scheduler writes ``"false"``, the agent ``"true"`` once the kubelet has allocated the devices."""
ASSUME_TIME = "ALIYUN_COM_GPU_MEM_ASSUME_TIME"
"""Time of the scheduler's promise, in nanoseconds since the epoch."""
ALLOCATION = "scheduler.framework.gpushare.allocation"
"""JSON ``{"<container index>": {"<GPU position>": <shares>}}``: the GPUs of each container. More precise than `IDX`,
and takes precedence over it. A whole GPU has all of its shares."""
INIT_ALLOCATION = "gpu-device-plugin/init-allocation"
"""The same for init containers and sidecars, by their index among ``initContainers``; `ALLOCATION` omits them."""
PLACES = frozenset({IDX, ALLOCATION, INIT_ALLOCATION})
"""Those that name GPUs."""
POD_ANNOTATIONS = PLACES | {POD, DEV, ASSIGNED, ASSUME_TIME}

STATIC_POD = "kubernetes.io/config.mirror"
"""On the mirror pod of a static pod: the UID by which the kubelet itself knows the pod. Any client can write it on
a new pod, so programs read `Pod.static_uid`."""
SPLIT_LABEL = "aliyun.com/gpu-count"
"""Pod label of Alibaba's ACK: the number of GPUs over which the pod's gpu-mem is split in equal parts."""

# --- On a pod: the wishes of its owner (`wishes`) ---------------------------------------------------------------------

GPU_POLICY = "gpu-device-plugin/gpu-policy"
"""The policy by which the pod's GPU on a node is chosen, a name in `POLICIES`."""
NODE_POLICY = "gpu-device-plugin/node-policy"
"""The policy by which the pod's node is chosen, a name in `POLICIES`."""
USE_MODEL = "gpu-device-plugin/use-model"
"""Only GPUs of these models, separated by commas."""
AVOID_MODEL = "gpu-device-plugin/avoid-model"
USE_UUID = "gpu-device-plugin/use-uuid"
"""Only these GPUs, separated by commas."""
AVOID_UUID = "gpu-device-plugin/avoid-uuid"
FRAMEWORKS = "gpu-device-plugin/frameworks"
"""Frameworks of the pod's programs that its containers' variables keep within their parts, separated by commas: names
in `model.contract.variables.OF_FRAMEWORKS`."""
WISHES = frozenset({GPU_POLICY, NODE_POLICY, USE_MODEL, AVOID_MODEL, USE_UUID, AVOID_UUID})

# --- On a pod: memory that changes while it runs (`elastic`) ----------------------------------------------------------

MEMORY_LIMIT = "gpu-device-plugin/memory-limit"
"""By the owner: the most shares that a container may use of its GPU while they are free; more than its limit of the
resource lets it borrow. A number for every container, or JSON ``{"<container>": 12}``."""
MEMORY_GUARANTEE = "gpu-device-plugin/memory-guarantee"
"""By the owner: the shares that a container is to be guaranteed from now on, in the same form; absent: its limit of the
resource."""
MEMORY_PROMISED = "gpu-device-plugin/memory-promised"
"""By the scheduler extender, on every pod that it binds: the guarantees beyond the requests that it has promised, and
why not more (`elastic.Answer`). On a pod without it the node's agent decides alone."""
MEMORY_HELD = "gpu-device-plugin/memory-held"
"""By the agent of the pod's node: the guarantees beyond the requests that it holds, likewise."""
ELASTIC = frozenset({MEMORY_LIMIT, MEMORY_GUARANTEE, MEMORY_PROMISED, MEMORY_HELD})

# --- On a pod, written by the agent of its node -----------------------------------------------------------------------

INSTANCES = "gpu-device-plugin/mig-instances"
"""The UUIDs of the MIG instances that each container was given whole, as JSON ``{"<container>": ["MIG-..."]}``
(`features.mig.node`)."""
OVER_USE = "gpu-device-plugin/over-use"
"""While the pod uses more GPU memory than it was granted: how much, since when, and what will happen; a sentence."""

IDLE_SINCE = "gpu-device-plugin/idle-since"
"""While the pod leaves its GPUs idle: RFC 3339, in UTC, since when."""

# --- On a pod: moves between nodes ------------------------------------------------------------------------------------

MOVE_TO = "gpu-device-plugin/move-to"
"""By a person: the place that a running pod is to be moved to (`moves`)."""
MOVE_REFUSED = "gpu-device-plugin/move-refused"
"""By the scheduler extender: why it was not moved; a sentence."""
STAND_IN = "gpu-device-plugin/stand-in"
"""Label of a pod that stands for room which the cluster's autoscaler is to provide. No scheduler ever places it."""

# --- On a pod or a namespace, by their owners: what becomes of idle pods (`idle`) -------------------------------------

WHEN_IDLE = "gpu-device-plugin/when-idle"
"""Annotation: what the scheduler extender does with an idle pod, a word of `features.idle.rules.WhenIdle`. That of the
pod takes precedence over its namespace's."""
REPLICAS_BEFORE_IDLE = "gpu-device-plugin/replicas-before-idle"
"""Annotation of a Deployment, a StatefulSet or a Notebook that the extender has scaled to zero: its replicas before."""
NOTEBOOK_STOPPED = "kubeflow-resource-stopped"
"""Of Kubeflow: annotation that stops a Notebook, with the time since when in RFC 3339."""

READ_ON_PODS = PLACES | WISHES | ELASTIC | {SPLIT_LABEL, MOVE_TO, STAND_IN, IDLE_SINCE, WHEN_IDLE}
"""The annotations and labels of a pod that the programs which place pods keep."""
READ_BY_AGENT = READ_ON_PODS | POD_ANNOTATIONS | {FRAMEWORKS, INSTANCES, OVER_USE}
"""The annotations and labels of a pod that the agent of its node keeps, and the tools of people."""

LONGEST: Mapping[str, int] = MappingProxyType(
    {
        # A promise for 64 containers with 64 GPUs each is shorter. No node has as many whole GPUs, and of MIG instances
        # a container gets one.
        **dict.fromkeys((ALLOCATION, INIT_ALLOCATION, INSTANCES), 1 << 16),
        # The UUIDs of 64 GPUs take 2,623 characters.
        **dict.fromkeys((USE_MODEL, AVOID_MODEL, USE_UUID, AVOID_UUID), 4096),
        OVER_USE: 4096,
        **dict.fromkeys((MEMORY_LIMIT, MEMORY_GUARANTEE), 512),
        # A wish and a sentence of 512 characters each, of which JSON escapes every one, and 64 containers.
        **dict.fromkeys((MEMORY_PROMISED, MEMORY_HELD), 7424),
        FRAMEWORKS: 256,
        # The name of a node, and 128 GPUs; a sentence.
        MOVE_TO: 2048,
        MOVE_REFUSED: 1024,
    }
)
"""Most characters of the value of a key on a pod; `LONGEST_WORD` for the other keys. Longer values are not parsed. In a
value with others than ASCII each counts as four: so much memory may each take."""
LONGEST_WORD = 64
LONGEST_OF_CONTAINER: Mapping[str, int] = MappingProxyType(
    {ALLOCATION: 2048, INIT_ALLOCATION: 2048, INSTANCES: 8192, MEMORY_PROMISED: 80, MEMORY_HELD: 80}
)
"""The same for each container, of the values that have an entry for each: 128 whole GPUs, as many instances, a name."""
_BESIDE: Mapping[str, int] = MappingProxyType({MEMORY_PROMISED: 2304, MEMORY_HELD: 2304})
"""And beside these entries."""
TOO_LONG = "(too long to be read)"
"""Stands for a longer value: its text, for which the API server leaves 256 KiB, is not kept."""

# --- On a node, written by its agent (`nodegpus`, `nodelabels`), and removed with it ----------------------------------

NODE_GPUS = "gpu-device-plugin/gpus"
"""Annotation: every GPU with the facts that a scheduler needs, as JSON."""
NODE_LABELS = "gpu-device-plugin/"
"""Prefix of the agent's labels; users own the other labels with this prefix."""
MODEL_LABELS = f"{NODE_LABELS}product."
"""Prefix of the labels that name one GPU model each."""
NODE_LIMITS = "gpu-device-plugin/limits"
"""Label: how the memory limits of this node are enforced (`model.limits.Enforcement`), the weakest of its GPUs'.
Annotation: the means of each GPU with its reason, as JSON (`nodelabels`)."""
NODE_USE = "gpu-device-plugin/use"
"""Annotation: who uses what on the node's GPUs, as JSON (`model.contract.node_use`)."""
GPU_CONDITION = "GPUHealthy"
"""The type of the node condition that the agent keeps where the setting `node_condition` asks for it."""
AGENT_LABELS = tuple(
    f"{NODE_LABELS}{name}" for name in ("product", "count", "memory-mib", "driver", "share-mib", "policy", "limits")
)
"""All other labels of the agent, but for the numbers of MIG instances, which are named like the resources of profiles:
``gpu-device-plugin/mig-1g.10gb``."""
AGENT_ANNOTATIONS = frozenset({NODE_GPUS, NODE_LIMITS, NODE_USE})
"""All annotations of the agent on its node."""

# --- On a namespace, written by administrators ------------------------------------------------------------------------

RESIZE_BOUND = "gpu-device-plugin/resize-bound"
"""Label: the most shares, in sum, that the pods of the namespace may be guaranteed beyond their requests. Without it
none is: ResourceQuota counts requests only."""

# --- On a node, written by the scheduler extender ---------------------------------------------------------------------

HELD_ROOM = "gpu-device-plugin/held-room"
"""Annotation: the room that is held for replacements of pods that are being moved here, as JSON (`moves`)."""
KEPT_NODE = "gpu-device-plugin/kept-node"
"""Annotation: which of `KEEPS` on this node are the extender's, and why the node is kept, as JSON (`nodelabels`)."""
KEEPS = ("cluster-autoscaler.kubernetes.io/scale-down-disabled", "karpenter.sh/do-not-disrupt")
"""Annotations: autoscalers do not remove a node on which their own one is ``"true"``."""

# --- On a node, written by administrators -----------------------------------------------------------------------------

CORDONS = "gpu-device-plugin/cordons"
"""Annotation: the GPUs that no new pod gets, each with who put it aside, when and why, as JSON (`cordons`). The
node's agent writes it too, where the setting `cordon_on` asks for that."""

HOSTNAME = "kubernetes.io/hostname"
"""Of Kubernetes: a label with a value of its own on every node."""
NODE_POOL = "karpenter.sh/nodepool"
GROUP_LABELS = (
    "eks.amazonaws.com/nodegroup",
    "alpha.eksctl.io/nodegroup-name",
    "cloud.google.com/gke-nodepool",
    "kubernetes.azure.com/agentpool",
    NODE_POOL,
)
"""The labels by which clouds and Karpenter name the group of a node."""
STARTUP_TAINT = "startup-taint.cluster-autoscaler.kubernetes.io/gpushare"
"""Taint of nodes that an autoscaler makes: the extender removes it once the node offers its GPUs. Until then the
Cluster Autoscaler counts the node as coming; without it, it makes another one in each of its rounds."""
SWITCH_LABEL = "gpushare"
"""The label that enables sharing on a node; the DaemonSet selects nodes by it."""
SWITCHED_ON = "true"
PLACEMENT_LABEL = "ack.node.gpu.placement"
"""Of Alibaba's ACK: the policy by which GPUs of this node are chosen."""
CONFIG_LABEL = "gpu-device-plugin/config"
"""The settings profile of this node's agent."""
DEFAULT_PROFILE = "default"
"""A value of `CONFIG_LABEL` for nodes without settings of their own."""
CGPU_DISABLE_LABEL = "cgpu.disable.isolation"
"""Of gpushare; ``"true"`` asks for ``CGPU_DISABLE=true`` in every container."""

SET_LIMITS_LABEL = "gpu-device-plugin/set-limits"
"""The setting `limits` of this node; it takes precedence over `SCHEDULE_LABEL`, and that over the settings."""
SERVE_LABEL = "gpu-device-plugin/serve"
"""The setting `serve` of this node, which it takes precedence over: how pods get its GPUs."""
MIG_LABEL = "gpu-device-plugin/mig"
"""The setting `mig` of this node, which it takes precedence over: how pods get its MIG instances."""
SCHEDULE_LABEL = "ack.node.gpu.schedule"
"""Of Alibaba's ACK: how GPUs of this node are shared; `features.limits.rules.enforcement` says what each value means
for limits."""

READ_ON_NODES = frozenset({NODE_GPUS, PLACEMENT_LABEL, CORDONS})
"""The annotations and labels of a node that the programs which place pods keep."""
READ_BY_INSPECT = READ_ON_NODES | {HELD_ROOM, NODE_LIMITS, NODE_USE}
"""The annotations of a node that inspect keeps. `NODE_USE` is large, and of no use to a scheduler."""


@dataclass(frozen=True)
class Clause:
    """Words for people, made from a code and parameters, which may be clauses again."""

    code: str
    text: str = field(compare=False)
    """The words, with the parameters in braces; the same for each code."""
    parameters: tuple[tuple[str, str | int | Clause], ...] = ()

    @cached_property
    def sentence(self) -> str:
        """The words."""
        return self.text.format_map(dict(self.parameters))

    def __str__(self) -> str:
        """Return the words."""
        return self.sentence


class MalformedAnnotationError(ValueError):
    """The value of one of these keys cannot be parsed; its words, or `Clause`, name key and fault, no pod or node."""


def too_long(key: str, text: str) -> bool:
    """Return whether a value is too long to be parsed, or was."""
    return text == TOO_LONG or _length(text) > LONGEST.get(key, LONGEST_WORD)


def kept(key: str, text: str, containers: int) -> str:
    """Return a value on a pod as programs keep it, so that the owner of the pod cannot fill their memory.

    `containers` is the number of the pod's containers that may have devices: none without a node.
    """
    each = LONGEST_OF_CONTAINER.get(key)
    if len(text) <= LONGEST_WORD and (containers or each is None) and text.isascii():
        return text  # nearly all are as short as any key allows
    most = None if each is None else each * containers + _BESIDE.get(key, 0)
    return TOO_LONG if too_long(key, text) or (most is not None and _length(text) > most) else text


def _length(text: str) -> int:
    return len(text) if text.isascii() else 4 * len(text)


compact = json.JSONEncoder(separators=(",", ":")).encode
"""Returns a document as JSON without blanks; `json.dumps` would make an encoder for every text."""


def text_in(fields: Mapping[str, Any], key: str) -> str:
    """Return a printable text among the fields of a document; empty if there is none."""
    value = fields.get(key)
    # JSON can hold lone surrogates, which answers in UTF-8 cannot.
    return value if isinstance(value, str) and value.isprintable() else ""


AGENT_NAMESPACE = "gpushare"
"""The namespace of our manifests."""


LARGEST_ANSWER = 4 << 20
"""Bytes of an answer: 300 containers of one GPU take some 2 MB."""
