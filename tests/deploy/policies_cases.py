"""What the admission policies let through, and what each of them refuses with which words."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpu_device_plugin.model.contract import keys as wire
from tests.builders import container, pod
from tests.cluster_double import owned as owned_objects
from tests.deploy.manifests import Json
from tests.deploy.policies_world import (
    AGENT_A,
    AGENT_B,
    AGENT_UNBOUND,
    CONTROLLER,
    EXTENDER,
    KUBELET,
    MERGE,
    MOVER,
    PERSON,
    PLACED,
    SCHEDULER,
    SHORT_NAMES,
    STRATEGIC,
    TENANT,
    Request,
    User,
    annotate,
    annotate_node,
    bind,
    create,
    debug,
    end,
    event,
    evict,
    notes,
    patch,
    setting,
    tell,
    tell_again,
)

VARIABLES = "gpushare-variables"
SIZE = "gpushare-size"
DEVICES = "gpushare-devices"
ONE_RESOURCE = "gpushare-one-resource"
NO_ZERO = "gpushare-no-zero"
UNITS = "gpushare-units"
NODE_NAME = "gpushare-node-name"
MIRROR_PODS = "gpushare-mirror-pods"
PLACEMENT = "gpushare-placement"
OWN_NODE = "gpushare-own-node"
OWN_EVENTS = "gpushare-own-events"
GUARANTEE = "gpushare-guarantee"
OWN_PROMISE = "gpushare-own-promise"
OWN_SCHEDULING = "gpushare-own-scheduling"
OWN_EVICTIONS = "gpushare-own-evictions"
MOVES = "gpushare-moves"

SMALL, LARGE = "aliyun.com/mig-1g.10gb", "aliyun.com/mig-3g.40gb"


def instances(name: str = "main", **amounts: object) -> dict[str, Any]:
    """Return a container that asks for whole MIG instances, and for what else is named."""
    known = {"small": SMALL, "large": LARGE, "mem": "aliyun.com/gpu-mem", "count": "aliyun.com/gpu-count"}
    return {**container(name), "resources": {"limits": {known[key]: amount for key, amount in amounts.items()}}}


SHARING = container(mem=4)
WHOLE = container(count=1)
CUDA = container("cuda")


@dataclass(frozen=True)
class Case:
    """One request, and what refuses it: each policy that would, with its words. The API server names one of them."""

    name: str
    request: Request
    refusals: Mapping[str, str] = field(default_factory=dict)
    user: User = PERSON

    @property
    def accepted(self) -> bool:
        return not self.refusals


def new(*containers: dict[str, Any], **more: Any) -> Request:
    """Create a pod with these containers."""
    return create(pod("a", *containers, **more))


MANY = tuple(f"VARIABLE_{number}" for number in range(100))


def env_from_a_field(name: str) -> dict[str, Any]:
    source = {"fieldRef": {"fieldPath": "metadata.name"}}
    return {**SHARING, "env": [{"name": name, "valueFrom": source}]}


def mirror(*containers: dict[str, Any], **annotations: str) -> dict[str, Any]:
    """Return a static pod as its kubelet shows it to the API."""
    return owned_objects.mirror(
        pod("static", *containers, node="node-a", annotations=annotations), "0123456789abcdef" * 2
    )


def claiming(body: dict[str, Any], *users: str) -> dict[str, Any]:
    """Return a pod of whose containers these use a ResourceClaim, by default the first."""
    spec = body["spec"]
    users = users or (spec["containers"][0]["name"],)

    def using(each: dict[str, Any]) -> dict[str, Any]:
        return {**each, "resources": {**each.get("resources", {}), "claims": [{"name": "gpu"}]}}

    lists = {
        key: [using(each) if each["name"] in users else each for each in spec[key]]
        for key in ("containers", "initContainers")
        if key in spec
    }
    claims = [{"name": "gpu", "resourceClaimName": "a-gpu"}]
    return {**body, "spec": {**spec, **lists, "resourceClaims": claims}}


def limits(body: dict[str, Any], **quantities: object) -> dict[str, Any]:
    return {**body, "resources": {"limits": {f"aliyun.com/gpu-{name}": value for name, value in quantities.items()}}}


def mounting(path: str, *asking: dict[str, Any], init: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    """Return a pod whose first container (one that shares a GPU, if none is given) has /dev/null at `path`."""
    first, *others = asking or (SHARING,)
    body = pod("a", {**first, "volumeMounts": [{"name": "null", "mountPath": path}]}, *others, init=init)
    return {**body, "spec": {**body["spec"], "volumes": [{"name": "null", "hostPath": {"path": "/dev/null"}}]}}


VARIABLE_CASES = (
    Case("a pod that shares a GPU", new(SHARING)),
    Case("a pod with whole GPUs", new(WHOLE)),
    Case("a pod without GPUs may set what it likes", new(setting(CUDA, NVIDIA_VISIBLE_DEVICES="all"))),
    Case("other variables, near misses",
         new(setting(SHARING, NVIDIA_DRIVER_CAPABILITIES="all", nvidia_visible_devices="all"))),
    Case("twenty containers with a hundred variables each",
         new(*(setting(container(f"c{i}", mem=1), **dict.fromkeys(MANY, "x")) for i in range(20)))),
    Case("all GPUs beside a share", new(setting(SHARING, NVIDIA_VISIBLE_DEVICES="all")),
         {VARIABLES: "container 'main' sets NVIDIA_VISIBLE_DEVICES: its own value would win over the node's"}),
    Case("a variable from elsewhere", new(env_from_a_field("NVIDIA_VISIBLE_DEVICES")),
         {VARIABLES: "container 'main' sets NVIDIA_VISIBLE_DEVICES:"}),
    Case("all GPUs by AMD's runtime beside a share", new(setting(SHARING, AMD_VISIBLE_DEVICES="all")),
         {VARIABLES: "container 'main' sets AMD_VISIBLE_DEVICES: its own value would win over the node's"}),
    Case("a neighbour that wants none of AMD's GPUs", new(SHARING, setting(CUDA, AMD_VISIBLE_DEVICES="none"))),
    Case("a choice among the allocated GPUs",
         new(setting(SHARING, ROCR_VISIBLE_DEVICES="0", HIP_VISIBLE_DEVICES="0", CUDA_VISIBLE_DEVICES="0"))),
    Case("all of AMD's GPUs by an annotation", new(SHARING, annotations={"cdi.k8s.io/x": "amd.com/gpu=all"}),
         {DEVICES: "cdi.k8s.io/x: an annotation that begins with cdi.k8s.io/ asks the container runtime"}),
    Case("a greater limit",
         new(setting(SHARING, NVIDIA_GPU_MEMORY_LIMIT="999", ALIYUN_COM_GPU_MEM_CONTAINER="9", MINE="1")),
         {VARIABLES: "container 'main' sets NVIDIA_GPU_MEMORY_LIMIT, ALIYUN_COM_GPU_MEM_CONTAINER: "}),
    Case("an MPS of its own on whole GPUs",
         new(setting(WHOLE, CUDA_MPS_PIPE_DIRECTORY="/tmp/mps", CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="50"))),
    Case("an init container asks, another sets",
         new(setting(CUDA, NVIDIA_VISIBLE_DEVICES="0"), init=(container("prepare", mem=2),)),
         {VARIABLES: "container 'cuda' sets NVIDIA_VISIBLE_DEVICES:"}),
    Case("a neighbour of the same pod that wants no GPU", new(SHARING, setting(CUDA, NVIDIA_VISIBLE_DEVICES="void"))),
    Case("a neighbour that wants the driver alone", new(SHARING, setting(CUDA, NVIDIA_VISIBLE_DEVICES="none"))),
    Case("no GPU for the one that asks", new(setting(SHARING, NVIDIA_VISIBLE_DEVICES="void")),
         {VARIABLES: "container 'main' sets NVIDIA_VISIBLE_DEVICES:"}),
    Case("debugging a pod that shares a GPU", debug("placed", [])),
    Case("debugging without GPUs", debug("placed", [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}])),
    Case("debugging with all GPUs", debug("placed", [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]),
         {VARIABLES: "container 'debugger' sets NVIDIA_VISIBLE_DEVICES:"}),
    Case("debugging a pod without GPUs", debug("plain", [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])),
    Case("debugging a pod from before the policy", debug("older", [])),
)  # fmt: skip


def containers(number: int, mem: int | None = None) -> tuple[dict[str, Any], ...]:
    return tuple(container(f"c{each}", mem=mem) for each in range(number))


SIZE_CASES = (
    Case("as many containers as are looked through", new(*containers(250, mem=1))),
    Case("one container more", new(*containers(251, mem=1)),
         {SIZE: "the pod has 251 containers, and the policies on GPUs look through 250; remove some"}),
    # Whether one of them asks for GPUs would have to be looked for.
    Case("one container more, none of which asks for GPUs", new(*containers(251)),
         {SIZE: "the pod has 251 containers"}),
    Case("debugging in one container more", debug("crowded", []), {SIZE: "the pod has 251 containers"}),
    Case("one variable more than are looked through",
         new(*(setting(container(f"c{i}", mem=1), **dict.fromkeys(MANY, "x")) for i in range(20)),
             setting(CUDA, ONE="more")),
         {SIZE: "the pod has 2001 variables and mounts, and the policies on GPUs look through 2000; remove some"}),
    Case("one variable more, without GPUs",
         new(*(setting(container(f"c{i}"), **dict.fromkeys(MANY, "x")) for i in range(20)), setting(CUDA, ONE="more"))),
    Case("a mount too many",
         create(mounting("/data", setting(SHARING, **{f"V{number}": "x" for number in range(2000)}))),
         {SIZE: "the pod has 2001 variables and mounts"}),
    Case("one annotation more", new(SHARING, annotations=notes(1001)),
         {SIZE: "the pod has 1001 annotations, and the policies on GPUs look through 1000; remove some"}),
    Case("lists of names that nobody reads",
         new(SHARING, annotations={wire.USE_MODEL: "x" * 4097, wire.AVOID_UUID: "x" * 65_000}),
         {SIZE: "gpu-device-plugin/use-model has 4097 characters, gpu-device-plugin/avoid-uuid has 65000 characters; "
                "no program reads more than 4096"}),
    Case("a list of names that nobody reads, later", annotate("placed", {wire.AVOID_MODEL: "x" * 4097}),
         {SIZE: "gpu-device-plugin/avoid-model has 4097 characters"}),
    Case("a label beside a list of names from before", patch("wordy", {"metadata": {"labels": {"app": "y"}}})),
    Case("one annotation more, later", annotate("noted", {"note": "x"}), {SIZE: "the pod has 1001 annotations"}),
    Case("a label beside thousands of annotations", patch("overloaded", {"metadata": {"labels": {"app": "y"}}})),
    Case("one annotation more among thousands", annotate("overloaded", {"note": "x"}),
         {SIZE: "the pod has 5001 annotations"}),
    Case("the agent's annotations beside all others", annotate("noted", PLACED), user=AGENT_A),
    # Its node's kubelet could, through the status.
    Case("an agent with one annotation for another among thousands", annotate("overloaded", {"note-7": "x"}),
         user=AGENT_A),
)  # fmt: skip

BY_OTHERS = "on which GPUs a pod is are written by the scheduler and by the agent of the pod's node alone, not by "
NEW = "the annotations of a new pod say on which GPUs it is"
AGENT = "system:serviceaccount:gpushare:gpushare-node"
NO_SCHEDULER = " is no scheduler that may"


EXTREME_CASES = (
    Case("the agent on a pod with as many annotations as fit", annotate("endless", PLACED), user=AGENT_A),
    Case("the agent beyond its annotations there", annotate("endless", {"note": "x"}),
         {OWN_NODE: "metadata.annotations: a node agent writes", SIZE: "the pod has 30001 annotations"},
         user=AGENT_A),
    Case("a kubelet reports such a pod", patch("endless", {"status": {"phase": "Running"}}, "status", STRATEGIC),
         user=KUBELET),
    Case("a person takes such a pod's annotations away", annotate("endless", dict.fromkeys(SHORT_NAMES))),
    Case("a person writes where such a pod is", annotate("endless", PLACED), {PLACEMENT: BY_OTHERS}),
    Case("as many annotations as fit", new(SHARING, annotations=dict.fromkeys(SHORT_NAMES, "")),
         {SIZE: "the pod has 30000 annotations"}),
    Case("as many variables", new(setting(SHARING, **{f"V{name}": "" for name in SHORT_NAMES})),
         {SIZE: "the pod has 30000 variables and mounts"}),
    Case("thousands of containers", new(*containers(5000, mem=1)), {SIZE: "the pod has 5000 containers"}),
    Case("thousands of debugging containers",
         patch("placed", {"spec": {"ephemeralContainers": [
             {"name": f"d{name}", "image": "example.com/tools:1"} for name in SHORT_NAMES[:5000]]}},
             "ephemeralcontainers", STRATEGIC),
         {SIZE: "the pod has 5001 containers"}),
    Case("the agent on a node with as many labels", annotate_node("node-b"), user=AGENT_B),
    Case("the agent among as many labels of a node",
         Request("PATCH", "/api/v1/nodes/node-b", {"metadata": {"labels": {f"{wire.NODE_LABELS}count": "2"}}}, MERGE),
         {OWN_NODE: "metadata.labels: a node agent writes"}, user=AGENT_B),
)  # fmt: skip

TOOLKIT = "/var/run/nvidia-container-devices"
CDI = {"cdi.k8s.io/x": "nvidia.com/gpu=all"}
BY_MOUNT = "a mount at /var/run/nvidia-container-devices asks the container toolkit for GPUs past the node's agent"
BY_ANNOTATION = "cdi.k8s.io/x: an annotation that begins with cdi.k8s.io/ asks the container runtime for devices"

DEVICE_CASES = (
    Case("all GPUs by a mount", create(mounting(f"{TOOLKIT}/all")), {DEVICES: f"container 'main': {BY_MOUNT}"}),
    Case("all GPUs by a mount on a longer way", create(mounting("/var//run/./lib/../nvidia-container-devices/all")),
         {DEVICES: BY_MOUNT}),
    Case("all GPUs by a mount of a debugging container",
         debug("older", [], volumeMounts=[{"name": "null", "mountPath": f"{TOOLKIT}/all"}]),
         {DEVICES: f"container 'debugger': {BY_MOUNT}"}),
    Case("a mount elsewhere", create(mounting("/var/run/devices"))),
    Case("all GPUs by a mount, without asking for any", create(mounting(f"{TOOLKIT}/all", CUDA))),
    Case("all GPUs by an annotation", new(SHARING, annotations=CDI), {DEVICES: BY_ANNOTATION}),
    Case("all GPUs by an annotation, later", annotate("waiting", CDI), {DEVICES: BY_ANNOTATION}),
    Case("all GPUs by an annotation through the status", annotate("waiting", CDI, "status"), {DEVICES: BY_ANNOTATION}),
    Case("a note beside an annotation from before", annotate("older", {"note": "x"})),
    Case("an annotation that begins alike",
         new(SHARING, annotations={"cdi.k8s.io.example.com/x": "1", "cdi.k8s.io": "1"})),
    Case("all GPUs by an annotation, without asking for any", new(annotations=CDI)),
)  # fmt: skip

BOTH = "aliyun.com/gpu-mem and for aliyun.com/gpu-count"

AMOUNT_CASES = (
    Case("one resource in each container", new(SHARING, container("other", count=1))),
    Case("both in one container", new(container(mem=4, count=1)),
         {ONE_RESOURCE: f"container 'main': asking for {BOTH} at once would give different GPUs"}),
    Case("both in two containers",
         new(container(mem=4, count=1), SHARING | {"name": "fine"}, container("z", mem=1, count=2)),
         {ONE_RESOURCE: f"container 'main': asking for {BOTH}; container 'z': asking for {BOTH} at once"}),
    Case("a number that is no text", new(limits(CUDA, mem=4))),
    Case("0 of gpu-mem", new(container(mem=0)),
         {NO_ZERO: "container 'main' asks for 0 of aliyun.com/gpu-mem, which fails"}),
    Case("0 of both", new(container(mem=0, count=0)),
         {NO_ZERO: "container 'main' asks for 0 of aliyun.com/gpu-mem and aliyun.com/gpu-count, which fails"}),
    Case("0 with a unit", new(limits(CUDA, mem="0Ki")), {NO_ZERO: "container 'cuda' asks for 0 of"}),
    Case("0 with an exponent", new(limits(CUDA, count="0e3")), {NO_ZERO: "container 'cuda' asks for 0 of"}),
    Case("0 of what others offer", new(container(limits={"nvidia.com/gpu": "0"}))),
    Case("memory in GiB", new(limits(CUDA, mem="4Gi")),
         {UNITS: "container 'cuda' asks for 4Gi of aliyun.com/gpu-mem, which is an amount of bytes"}),
    Case("memory in GB, in an init container", new(SHARING, init=(limits(CUDA, mem="10G"),)),
         {UNITS: "container 'cuda' asks for 10G of aliyun.com/gpu-mem"}),
    Case("whole GPUs in KiB", new(limits(CUDA, count="1Ki")),
         {UNITS: "container 'cuda' asks for 1Ki of aliyun.com/gpu-count"}),
    Case("0 of the one beside GiB of the other", new(limits(CUDA, mem="4Gi", count=0)),
         {UNITS: "container 'cuda' asks for 4Gi of aliyun.com/gpu-mem, which", NO_ZERO: "container 'cuda' asks for 0"}),
    Case("memory in GiB of what is not ours", new(container(limits={"memory": "4Gi"}, mem=4))),
)  # fmt: skip

OTHERS_MIG = {"resources": {"limits": {"nvidia.com/mig-1g.10gb": "1"}}}
GIVEN = '{"main":["MIG-6f1c2f4e-0d2b-5f0c-9a57-0a2f0b0c1d2e"]}'
ENDLESS = {f"example.com/r{number}": "1" for number in range(3000)}
CROWD = {f"example.com/r{number}": "1" for number in range(32)}

INSTANCE_CASES = (
    Case("an instance in each container", new(instances(small=1), instances("other", large=1))),
    Case("an instance and memory in one container", new(instances(mem=4, small=1)),
         {ONE_RESOURCE: f"container 'main': asking for aliyun.com/gpu-mem and for {SMALL} at once would give"}),
    Case("an instance and a whole GPU in an init container",
         new(SHARING, init=(instances("prepare", count=1, large=1),)),
         {ONE_RESOURCE: f"container 'prepare': asking for aliyun.com/gpu-count and for {LARGE} at once"}),
    Case("a whole instance on a node that is named", new(instances(small=1), node="node-a")),
    Case("all GPUs beside an instance", new(setting(instances(small=1), NVIDIA_VISIBLE_DEVICES="all")),
         {VARIABLES: "container 'main' sets NVIDIA_VISIBLE_DEVICES:"}),
    Case("a neighbour of an instance that wants no GPU",
         new(instances(small=1), setting(CUDA, NVIDIA_VISIBLE_DEVICES="void"))),
    Case("all GPUs by a mount beside an instance", create(mounting(f"{TOOLKIT}/all", instances(small=1))),
         {DEVICES: f"container 'main': {BY_MOUNT}"}),
    Case("all GPUs by an annotation beside an instance", new(instances(small=1), annotations=CDI),
         {DEVICES: BY_ANNOTATION}),
    Case("an instance of NVIDIA's plugin", new(setting({**CUDA, **OTHERS_MIG}, NVIDIA_VISIBLE_DEVICES="all"))),
    Case("more resources than are looked through", new({**CUDA, "resources": {"limits": {**CROWD, SMALL: "1"}}}),
         {SIZE: "container 'cuda': limits of more than 32 resources are more than the policies on GPUs look through"}),
    Case("one resource more, without GPUs", new({**CUDA, "resources": {"limits": {**CROWD, "example.com/one": "1"}}}),
         {SIZE: "container 'cuda': limits of more than 32 resources"}),
    Case("as many containers as are looked through, with as many resources each",
         new(*({**each, "resources": {"limits": CROWD}} for each in containers(249)), instances(small=1))),
    Case("thousands of resources in each of many containers",
         new(*({**each, "resources": {"limits": ENDLESS}} for each in containers(9))),
         {SIZE: "container 'c0', container 'c1', container 'c2'"}),
    Case("an owner says which instances a pod of its own has",
         new(instances(small=1), annotations={wire.INSTANCES: GIVEN}), {PLACEMENT: f"{wire.INSTANCES}: {NEW}"}),
    Case("an owner says so on a pod with instances", annotate("sliced", {wire.INSTANCES: GIVEN}),
         {PLACEMENT: f"{wire.INSTANCES}: the annotations"}),
    Case("the agent says so on a pod with instances", annotate("sliced", {wire.INSTANCES: GIVEN}), user=AGENT_A),
    Case("an owner says so of a pod without GPUs", annotate("plain", {wire.INSTANCES: GIVEN})),
    Case("the agent of another node says so", annotate("placed", {wire.INSTANCES: GIVEN}),
         {OWN_NODE: "a node agent writes on its own node and the pods there", PLACEMENT: BY_OTHERS}, user=AGENT_B),
)  # fmt: skip

CLAIM_CASES = (
    Case("a pod with a claim", create(claiming(pod("a", CUDA)))),
    Case("all GPUs beside a claim", create(claiming(pod("a", setting(CUDA, NVIDIA_VISIBLE_DEVICES="all")))),
         {VARIABLES: "container 'cuda' sets NVIDIA_VISIBLE_DEVICES:"}),
    Case("an init container has a claim, another sets",
         create(claiming(pod("a", setting(CUDA, NVIDIA_VISIBLE_DEVICES="0"), init=(container("prepare"),)), "prepare")),
         {VARIABLES: "container 'cuda' sets NVIDIA_VISIBLE_DEVICES:"}),
    Case("a neighbour of a claim that wants no GPU",
         create(claiming(pod("a", container(), setting(CUDA, NVIDIA_VISIBLE_DEVICES="void"))))),
    Case("debugging a pod with a claim with all GPUs",
         debug("claiming", [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]),
         {VARIABLES: "container 'debugger' sets NVIDIA_VISIBLE_DEVICES:"}),
    Case("all GPUs by a mount beside a claim", create(claiming(mounting(f"{TOOLKIT}/all", CUDA))),
         {DEVICES: f"container 'cuda': {BY_MOUNT}"}),
    Case("all GPUs by an annotation beside a claim", create(claiming(pod("a", CUDA, annotations=CDI))),
         {DEVICES: BY_ANNOTATION}),
    Case("more annotations than are looked through, beside a claim",
         create(claiming(pod("a", CUDA, annotations=notes(1001)))), {SIZE: "the pod has 1001 annotations"}),
)  # fmt: skip

NODE_CASES = (
    Case("a node chosen by label",
         create({**(body := pod("a", SHARING)),
                 "spec": {**body["spec"], "nodeSelector": {"kubernetes.io/hostname": "node-a"}}})),
    Case("a node named", new(SHARING, node="node-a"),
         {NODE_NAME: "spec.nodeName puts the pod on node 'node-a' without a scheduler"}),
    Case("a static pod, shown by its kubelet", create(mirror(SHARING)), user=KUBELET),
    Case("a static pod, pretended", create(mirror(SHARING)),
         {NODE_NAME: "spec.nodeName", MIRROR_PODS: "which a kubelet alone may say"}),
    Case("a static pod without GPUs, pretended", create(mirror()),
         {MIRROR_PODS: "which a kubelet alone may say, and 'ada' is not in the group system:nodes; remove"}),
    Case("a mirror pod of another's pod",
         new(node="node-a", annotations={wire.STATIC_POD: "0b5d1f3a-0000-4000-8000-000000000001"}),
         {MIRROR_PODS: "the annotation kubernetes.io/config.mirror says"}, user=CONTROLLER),
    Case("a node named for a claim", create(claiming(pod("a", CUDA, node="node-a"))),
         {NODE_NAME: "spec.nodeName puts the pod on node 'node-a'"}),
    Case("a pod that a node makes and that is no static one", new(SHARING, node="node-a"), {NODE_NAME: "spec.nodeName"},
         user=KUBELET),
)  # fmt: skip

ANSWERS = {wire.MEMORY_PROMISED, wire.MEMORY_HELD}

PLACEMENT_CASES = (
    *(
        Case(f"a new pod with {key}", new(SHARING, annotations={key: "0"}), {PLACEMENT: f"{key}: {NEW}"})
        for key in sorted(wire.POD_ANNOTATIONS | ANSWERS)
    ),
    *(
        Case(f"{key} written by a person", annotate("waiting", {key: "0"}), {PLACEMENT: f"{key}: the annotations"})
        for key in sorted(wire.POD_ANNOTATIONS | ANSWERS)
    ),
    Case("a new pod with wishes", new(SHARING, annotations=dict.fromkeys(sorted(wire.WISHES), "x"))),
    Case("a new pod of the extender's with a promise", new(SHARING, annotations=PLACED), {PLACEMENT: NEW},
         user=EXTENDER),
    Case("a static pod with a promise", create(mirror(SHARING, **PLACED)), {PLACEMENT: NEW}, user=KUBELET),
    Case("a new pod without GPUs", new(annotations=PLACED)),
    Case("another annotation edited", annotate("placed", {"note": "mine", wire.GPU_POLICY: "spread"})),
    Case("a placement written as it stands", annotate("placed", PLACED)),
    Case("a placement moved", annotate("placed", {wire.IDX: "1"}),
         {PLACEMENT: f"{wire.IDX}: the annotations that say {BY_OTHERS}'ada'"}),
    Case("a placement taken away", annotate("placed", dict.fromkeys(PLACED)), {PLACEMENT: BY_OTHERS}),
    Case("a placement by a kubelet through the status", annotate("placed", {wire.IDX: "1"}, "status"),
         {PLACEMENT: f"{BY_OTHERS}'system:node:node-a'"}, user=KUBELET),
    Case("a kubelet reports", patch("placed", {"status": {"phase": "Running"}}, "status", STRATEGIC), user=KUBELET),
    Case("bound by the extender", bind("waiting", PLACED), user=EXTENDER),
    Case("bound by the extender on the old path", bind("waiting", PLACED, old_path=True), user=EXTENDER),
    Case("bound by another scheduler without a promise", bind("waiting"), user=SCHEDULER),
    Case("bound by a person with a promise", bind("waiting", PLACED),
         {PLACEMENT: f"on which GPUs the pod is, and 'ada'{NO_SCHEDULER}"}),
    Case("bound by a person on the old path", bind("waiting", PLACED, old_path=True), {PLACEMENT: NO_SCHEDULER}),
    Case("bound by another scheduler with a promise", bind("waiting", {wire.IDX: "0"}),
         {PLACEMENT: f"'system:kube-scheduler'{NO_SCHEDULER}"}, user=SCHEDULER),
    # What the pod asks for cannot be seen from its Binding.
    Case("bound with a promise that means nothing", bind("free", PLACED), {PLACEMENT: NO_SCHEDULER}),
    Case("promised by the extender before the Binding", annotate("waiting", PLACED), user=EXTENDER),
    Case("promised anew by the extender before the Binding", annotate("promised", {wire.IDX: "1"}), user=EXTENDER),
    Case("moved by the extender after the Binding", annotate("placed", {wire.IDX: "1"}), {PLACEMENT: BY_OTHERS},
         user=EXTENDER),
    Case("promised more by the extender after the Binding", annotate("placed", {wire.MEMORY_PROMISED: "{}"}),
         user=EXTENDER),
    Case("promised more and moved by the extender", annotate("placed", {wire.MEMORY_PROMISED: "{}", wire.IDX: "1"}),
         {PLACEMENT: BY_OTHERS}, user=EXTENDER),
    Case("held by the node's agent", annotate("placed", {wire.MEMORY_HELD: "{}"}), user=AGENT_A),
    Case("held by the extender", annotate("placed", {wire.MEMORY_HELD: "{}"}),
         {PLACEMENT: BY_OTHERS, OWN_PROMISE: f"{wire.MEMORY_HELD}: the scheduler writes"}, user=EXTENDER),
    Case("promised more by the node's agent", annotate("placed", {wire.MEMORY_PROMISED: "{}"}),
         {PLACEMENT: BY_OTHERS, OWN_NODE: f"{wire.MEMORY_PROMISED}: a node agent writes"}, user=AGENT_A),
    Case("another annotation by the extender", annotate("placed", {"note": "mine"}),
         {OWN_PROMISE: "note: the scheduler writes what it assigns to a pod"}, user=EXTENDER),
    Case("another image by the extender",
         patch("placed", {"spec": {"containers": [{"name": "main", "image": "example.com/other:1"}]}}, "", STRATEGIC),
         {OWN_PROMISE: "spec: the scheduler writes"}, user=EXTENDER),
    Case("a label by the extender", patch("placed", {"metadata": {"labels": {"app": "y"}}}),
         {OWN_PROMISE: "metadata.labels: the scheduler writes"}, user=EXTENDER),
    Case("a promise by the extender where an owner wrote very much", annotate("endless", {wire.MEMORY_PROMISED: "{}"}),
         {OWN_PROMISE: "metadata.annotations: the scheduler writes"}, user=EXTENDER),
    Case("promised through the status", annotate("waiting", PLACED, "status"), {PLACEMENT: BY_OTHERS}, user=EXTENDER),
    Case("assigned by the node's agent", annotate("placed", {wire.ASSIGNED: "true"}), user=AGENT_A),
    Case("corrected by the node's agent",
         annotate("placed", {wire.ASSIGNED: "true", wire.IDX: "1", wire.ALLOCATION: '{"0":{"1":4}}'}),
         user=AGENT_A),
    Case("assigned by another node's agent", annotate("placed", {wire.ASSIGNED: "true"}),
         {PLACEMENT: f"{BY_OTHERS}'{AGENT}' on node 'node-b'; leave",
          OWN_NODE: "this is of node 'node-a', the token of node 'node-b'"},
         user=AGENT_B),
    Case("promised by an agent", annotate("waiting", {wire.IDX: "0"}),
         {PLACEMENT: BY_OTHERS, OWN_NODE: "this is of node '', the token of node 'node-a'"}, user=AGENT_A),
)  # fmt: skip

BEYOND_ON_NODES: dict[str, Json] = {
    "spec": {"spec": {"unschedulable": True}},
    "gpushare": {"metadata": {"labels": {"gpushare": "true"}}},
    "gpu-device-plugin/config": {"metadata": {"labels": {"gpu-device-plugin/config": "large"}}},
    "gpu-device-plugin/other": {"metadata": {"annotations": {"gpu-device-plugin/other": "x"}}},
    "kubernetes.io/hostname": {"metadata": {"labels": {"kubernetes.io/hostname": None}}},
    "node-role.kubernetes.io/control-plane": {"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}},
    "metadata.finalizers": {"metadata": {"finalizers": ["example.com/held"]}},
}
BEYOND_ON_PODS: dict[str, Json] = {
    "spec": {"spec": {"activeDeadlineSeconds": 1}},
    "metadata.labels": {"metadata": {"labels": {"app": None}}},
    "gpu-device-plugin/gpu-policy": {"metadata": {"annotations": {"gpu-device-plugin/gpu-policy": "spread"}}},
    "note": {"metadata": {"annotations": {"note": "x"}}},
    "metadata.ownerReferences": {
        "metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "1"}]}
    },
}
"""What RBAC lets an agent change and it has no use for."""

HEALTHY: Json = {"type": "GPUHealthy", "status": "True", "reason": "GPUsHealthy", "message": "1 of 1 GPUs are healthy"}
BEYOND_IN_STATUS: dict[str, Json] = {
    "status.conditions": {"conditions": [HEALTHY, {"type": "Ready", "status": "False"}]},
    "status.capacity": {"capacity": {"aliyun.com/gpu-mem": "1000"}},
    "status.addresses": {"addresses": [{"type": "InternalIP", "address": "10.0.0.9"}]},
    "status.allocatable": {"allocatable": {"cpu": None}},
}
"""What the right to patch nodes/status lets an agent change besides."""


def state(node: str, **status: object) -> Request:
    return Request("PATCH", f"/api/v1/nodes/{node}/status", {"status": status}, STRATEGIC)


AGENT_CASES = (
    Case("an agent on its own node", annotate_node("node-a"), user=AGENT_A),
    Case("an agent on another node", annotate_node("node-b"),
         {OWN_NODE: "this is of node 'node-b', the token of node 'node-a'"}, user=AGENT_A),
    Case("an agent in no pod", annotate_node("node-a"), {OWN_NODE: "the token of node ''"}, user=AGENT_UNBOUND),
    Case("an agent on a pod of its node", annotate("plain", dict.fromkeys(sorted(wire.POD_ANNOTATIONS), "1")),
         user=AGENT_A),
    Case("an agent on a pod of another node", annotate("plain", {"note": "x"}),
         {OWN_NODE: "a node agent writes on its own node and the pods there"}, user=AGENT_B),
    # The answer to a patch is the whole pod.
    Case("an agent that changes nothing on a pod of another node", patch("plain", {}),
         {OWN_NODE: "this is of node 'node-a', the token of node 'node-b'"}, user=AGENT_B),
    Case("an agent that changes nothing on another node", Request("PATCH", "/api/v1/nodes/node-a", {}, MERGE),
         {OWN_NODE: "this is of node 'node-a', the token of node 'node-b'"}, user=AGENT_B),
    *(
        Case(f"an agent with {what} of its node", Request("PATCH", "/api/v1/nodes/node-a", body, MERGE),
         {OWN_NODE: f"{what}: a node agent writes what it has to say of GPUs"}, user=AGENT_A)
        for what, body in BEYOND_ON_NODES.items()
    ),
    *(
        Case(f"an agent with {what} of a pod", patch("placed", body), {OWN_NODE: f"{what}: a node agent"}, user=AGENT_A)
        for what, body in BEYOND_ON_PODS.items()
    ),
    Case("an agent with labels and an annotation of its own",
         Request("PATCH", "/api/v1/nodes/node-a", {"metadata": {
             "annotations": dict.fromkeys((wire.NODE_GPUS, wire.NODE_LIMITS, wire.NODE_USE, wire.CORDONS), "{}"),
             "labels": {f"{wire.NODE_LABELS}{name}": "2" for name in ("count", "limits", "product.Tesla-T4")}}}, MERGE),
         user=AGENT_A),
    Case("an agent with the condition of its node", state("node-a", conditions=[HEALTHY]), user=AGENT_A),
    *(
        Case(f"an agent with {what} of its node", state("node-a", **status), {OWN_NODE: f"{what}: a node agent writes"},
         user=AGENT_A)
        for what, status in BEYOND_IN_STATUS.items()
    ),
    Case("an agent that labels its node through the status",
         Request("PATCH", "/api/v1/nodes/node-a/status", {"metadata": {"labels": {"gpushare": "true"}}}, MERGE),
         {OWN_NODE: "gpushare: a node agent writes"}, user=AGENT_A),
    Case("a kubelet with the status of its node", state("node-a", capacity={"aliyun.com/gpu-mem": "9"}), user=KUBELET),
    Case("an agent that was given the right evicts a pod",
         Request("POST", "/api/v1/namespaces/default/pods/plain/eviction",
                 {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "plain"}}), user=AGENT_A),
    Case("an agent marks a pod of its node", annotate("plain", {wire.OVER_USE: "it uses too much"}), user=AGENT_A),
    Case("an agent marks an idle pod of its node", annotate("plain", {wire.IDLE_SINCE: "2026-01-02T03:04:05Z"}),
         user=AGENT_A),
    Case("an agent tells what it holds", annotate("plain", {wire.MEMORY_HELD: "{}"}), user=AGENT_A),
    Case("a person on any node", annotate_node("node-b")),
    Case("a kubelet on its node", annotate_node("node-a"), user=KUBELET),
)  # fmt: skip

FORGED = (
    "a node agent writes Events about its own node and the GPUs of pods, as 'gpu-device-plugin' of that "
    "node; this token is of node 'node-a'"
)
A_POD = {"apiVersion": "v1", "kind": "Pod", "name": "plain", "namespace": "default", "uid": "1"}

EVENT_CASES = (
    Case("an agent tells of its node", tell(event("node-a")), user=AGENT_A),
    Case("an agent tells of its node again", tell_again("ours"), user=AGENT_A),
    Case("an agent tells of another node", tell(event("node-b")),
         {OWN_EVENTS: f"Node 'node-b' as 'gpu-device-plugin' of 'node-b': {FORGED}"}, user=AGENT_A),
    Case("an agent rewrites what another told", tell_again("theirs"), {OWN_EVENTS: "Node 'node-b'"}, user=AGENT_A),
    Case("an agent tells of a pod in the kubelet's words", tell(event("node-a", regarding=A_POD, reason="Killing")),
         {OWN_EVENTS: f"Pod 'plain' as 'gpu-device-plugin' of 'node-a': {FORGED}"}, user=AGENT_A),
    *(
        Case(f"an agent tells of a pod: {reason}", tell(event("node-a", regarding=A_POD, reason=reason)), user=AGENT_A)
        for reason in ("GPUMemoryExceeded", "GPUTrespass", "GPUMemoryEvicted", "GPUEvictionBlocked",
                       "GPUFailureEvicted", "GPULimitNotHeld", "GPUMemoryAsked", "GPUMemoryWaits",
                       "GPUMemoryNotReturned", "GPUMemoryResized", "GPUMemoryNotResized", "MigInstanceGone",
                       "GPUIdle", "GPUIncident")
    ),
    Case("an agent speaks as the kubelet", tell(event("node-a", reportingController="kubelet")),
         {OWN_EVENTS: "Node 'node-a' as 'kubelet' of 'node-a': a node agent"}, user=AGENT_A),
    Case("an agent in no pod tells of a node", tell(event("node-a")), {OWN_EVENTS: "this token is of node ''"},
         user=AGENT_UNBOUND),
)  # fmt: skip

UNLABELLED = "namespace default has no label gpu-device-plugin/resize-bound, and ResourceQuota does not see"


def bounded(wish: str, *containers: dict[str, Any]) -> Request:
    """Create a pod with a wish in a namespace whose bound is 8."""
    return create(pod("a", *(containers or (SHARING,)), namespace="bounded", annotations={wire.MEMORY_GUARANTEE: wish}))


def allowed_only(more: int) -> dict[str, str]:
    return {GUARANTEE: f"the pod asks for {more} shares beyond its requests, and the label {wire.RESIZE_BOUND} of "
                       "namespace bounded allows 8 to all its pods together"}  # fmt: skip


TWO = (container("a", mem=4), container("b", mem=2))

GUARANTEE_CASES = (
    Case("a wish where the namespace has no bound", annotate("placed", {wire.MEMORY_GUARANTEE: "5"}),
         {GUARANTEE: UNLABELLED}),
    Case("a new pod with a wish there", new(SHARING, annotations={wire.MEMORY_GUARANTEE: "5"}),
         {GUARANTEE: UNLABELLED}),
    Case("a wish for no more than the request", annotate("placed", {wire.MEMORY_GUARANTEE: "4"})),
    Case("a wish taken back", annotate("placed", {wire.MEMORY_GUARANTEE: None})),
    Case("a wish on a pod without GPUs", annotate("plain", {wire.MEMORY_GUARANTEE: "5"})),
    Case("a limit, of which there may be none", annotate("placed", {wire.MEMORY_LIMIT: "12"})),
    Case("a wish within the bound", bounded(" 12 ")),
    Case("a wish beyond the bound", bounded("13"), allowed_only(9)),
    Case("a wish by container", bounded('{"b": 3, "a" : "11"}', *TWO)),
    Case("wishes that are together beyond it", bounded('{"b": 4, "a" : "11"}', *TWO), allowed_only(9)),
    Case("one wish for two containers", bounded("8", *TWO), allowed_only(10)),
    Case("a wish of very many digits", bounded("9" * 40), allowed_only(999_999_999)),
    Case("a wish that is malformed, which the extender answers", bounded("6 GiB")),
    Case("a wish for another container", bounded('{"other": 60}')),
    Case("a wish within spaces, in quotes", bounded('{"b": " 4", "a" : "  11"}', *TWO), allowed_only(9)),
    Case("a wish whose container is named by an escape", bounded('{"\\u0062": 60}', *TWO),
         {GUARANTEE: "names a container twice, or holds a backslash, and no program reads it"}),
    Case("two wishes for one container", bounded('{"b": 2, "b" :60}', *TWO), {GUARANTEE: "names a container twice"}),
    Case("a wish of the container's own name", bounded('{"4": "4"}', container("4", mem=4))),
    Case("a wish that no program reads", bounded(" ".join("1" * 9000)),
         {GUARANTEE: "has more than 512 characters, which no program reads"}),
    Case("whole GPUs with a wish", bounded("60", WHOLE)),
)  # fmt: skip

ELSEWHERE = '{"node": "node-b", "gpus": {"0": 4}}'
MAY_NOT_EVICT = "the annotation gpu-device-plugin/move-to has the pod evicted, which 'eve' may not: it needs the right"

MOVE_CASES = (
    Case("a move by one who may evict", annotate("placed", {wire.MOVE_TO: ELSEWHERE}), user=MOVER),
    Case("a move by the administrator", annotate("placed", {wire.MOVE_TO: ELSEWHERE})),
    Case("a move by an owner of pods", annotate("placed", {wire.MOVE_TO: ELSEWHERE}), {MOVES: MAY_NOT_EVICT},
         user=TENANT),
    Case("another move by an owner of pods", annotate("moving", {wire.MOVE_TO: "{}"}), {MOVES: MAY_NOT_EVICT},
         user=TENANT),
    Case("a move through the status", annotate("placed", {wire.MOVE_TO: ELSEWHERE}, "status"), {MOVES: MAY_NOT_EVICT},
         user=TENANT),
    Case("a new pod with a move", new(SHARING, annotations={wire.MOVE_TO: ELSEWHERE}), {MOVES: MAY_NOT_EVICT},
         user=TENANT),
    Case("a move of a pod without GPUs", annotate("plain", {wire.MOVE_TO: ELSEWHERE}), {MOVES: MAY_NOT_EVICT},
         user=TENANT),
    Case("a move taken back by an owner of pods", annotate("moving", {wire.MOVE_TO: None}), user=TENANT),
    Case("a note beside a move by an owner of pods", annotate("moving", {"note": "x"}), user=TENANT),
    Case("a move refused by the extender", annotate("moving", {wire.MOVE_TO: None, wire.MOVE_REFUSED: "no room"}),
         user=EXTENDER),
    Case("a move refused by the extender where an owner wrote as much as he may",
         annotate("noted", {wire.MOVE_REFUSED: "no room"}), user=EXTENDER),
    Case("a move by the extender", annotate("placed", {wire.MOVE_TO: ELSEWHERE}),
         {OWN_PROMISE: "gpu-device-plugin/move-to: the scheduler writes"}, user=EXTENDER),
)  # fmt: skip


def status(**fields: object) -> Request:
    return patch("placed", {"status": fields}, "status", STRATEGIC)


def condition(kind: str) -> dict[str, object]:
    return {"conditions": [{"type": kind, "status": "False", "reason": "Tried", "message": "by a test"}]}


def bound_with(**labels: str) -> Request:
    """Bind a pod with labels on the Binding."""
    asked = bind("waiting", PLACED)
    return Request(asked.method, asked.path, {**asked.body, "metadata": {**asked.body["metadata"], "labels": labels}})


def on_volume(name: str, **body: object) -> Request:
    return Request("PATCH", f"/api/v1/persistentvolumes/{name}", dict(body), MERGE)


def on_claim(**body: object) -> Request:
    return Request("PATCH", "/api/v1/namespaces/default/persistentvolumeclaims/waiting", dict(body), MERGE)


def lease(namespace: str) -> Request:
    body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "kube-scheduler"}}
    return Request("POST", f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases", body)


TO_CLAIM = {"claimRef": {"namespace": "default", "name": "waiting", "uid": "0b5d1f3a-0000-4000-8000-000000000002"}}

SCHEDULER_CASES = (
    Case("a node nominated", patch("waiting", {"status": {"nominatedNodeName": "node-a"}}, "status"),
         user=EXTENDER),
    Case("a pod that fits nowhere", status(**condition("PodScheduled")), user=EXTENDER),
    Case("a pod that makes room", status(**condition("DisruptionTarget")), user=EXTENDER),
    Case("the scheduler says that a pod has failed", status(phase="Failed"),
         {OWN_PROMISE: "status.phase: the scheduler writes"}, user=EXTENDER),
    Case("the scheduler says that a pod is ready", status(**condition("Ready")),
         {OWN_PROMISE: "status.conditions: the scheduler"}, user=EXTENDER),
    Case("the scheduler gives a pod an address", status(podIP="10.0.0.9", podIPs=[{"ip": "10.0.0.9"}]),
         {OWN_PROMISE: "status.podIP"}, user=EXTENDER),
    Case("a label by the scheduler through the status",
         patch("placed", {"metadata": {"labels": {"app": "y"}}}, "status"),
         {OWN_PROMISE: "metadata.labels: the scheduler"}, user=EXTENDER),
    Case("an annotation by the scheduler through the status", annotate("placed", {"note": "x"}, "status"),
         {OWN_PROMISE: "note: the scheduler writes"}, user=EXTENDER),
    Case("finalizers by the scheduler through the status",
         patch("placed", {"metadata": {"finalizers": ["example.com/held"]}}, "status"),
         {OWN_PROMISE: "metadata.finalizers: the scheduler"}, user=EXTENDER),
    Case("a kubelet says that a pod has failed", status(phase="Failed"), user=KUBELET),
    Case("another annotation on the Binding", bind("waiting", {**PLACED, "cdi.k8s.io/x": "nvidia.com/gpu=all"}),
         {OWN_PROMISE: "cdi.k8s.io/x: the scheduler writes"}, user=EXTENDER),
    Case("another annotation on the Binding on the old path", bind("waiting", {"note": "x"}, old_path=True),
         {OWN_PROMISE: "note: the scheduler writes"}, user=EXTENDER),
    Case("a label on the Binding", bound_with(app="y"), {OWN_PROMISE: "metadata.labels: the scheduler"}, user=EXTENDER),
    Case("the zone of the node on the Binding", bound_with(**{"topology.kubernetes.io/zone": "a"}), user=EXTENDER),
    Case("a pod deleted by the scheduler to make room", end("placed"), user=EXTENDER),
    Case("a pod of the system deleted by the scheduler", end("critical", "kube-system"),
         {OWN_SCHEDULING: "the scheduler deletes pods that make room for others, and none with the priority of"},
         user=EXTENDER),
    Case("a pod of the system deleted by a person", end("critical", "kube-system")),
    Case("the scheduler's own lease", lease("gpushare"), user=EXTENDER),
    Case("the lease of the cluster's scheduler", lease("kube-system"),
         {OWN_SCHEDULING: "the scheduler has its leases in its own namespace"}, user=EXTENDER),
    Case("a volume bound by the scheduler",
         on_volume("free", spec=TO_CLAIM, metadata={"annotations": {"pv.kubernetes.io/bound-by-controller": "yes"}}),
         user=EXTENDER),
    Case("a volume given to another claim by the scheduler", on_volume("taken", spec=TO_CLAIM),
         {OWN_SCHEDULING: "spec.claimRef: the scheduler binds volumes that no claim has yet"}, user=EXTENDER),
    Case("a volume that the scheduler lets be deleted",
         on_volume("free", spec={"persistentVolumeReclaimPolicy": "Delete"}),
         {OWN_SCHEDULING: "spec.persistentVolumeReclaimPolicy: the scheduler"}, user=EXTENDER),
    Case("a volume without its protection", on_volume("free", metadata={"finalizers": None}),
         {OWN_SCHEDULING: "metadata.finalizers: the scheduler"}, user=EXTENDER),
    Case("a node chosen for a claim's volume",
         on_claim(metadata={"annotations": {"volume.kubernetes.io/selected-node": "node-a"}}), user=EXTENDER),
    Case("a claim's volume chosen by the scheduler", on_claim(spec={"volumeName": "taken"}),
         {OWN_SCHEDULING: "spec.volumeName: the scheduler"}, user=EXTENDER),
    Case("another annotation on a claim", on_claim(metadata={"annotations": {"note": "x"}}),
         {OWN_SCHEDULING: "note: the scheduler"}, user=EXTENDER),
    Case("a claim's volume chosen by a person", on_claim(spec={"volumeName": "free"})),
    Case("a pod evicted by the scheduler", evict("placed"), user=EXTENDER),
    Case("a pod of the system evicted by the scheduler", evict("critical", "kube-system"),
         {OWN_EVICTIONS: "agents and scheduler evict no pods of the system, nor of their own namespace"},
         user=EXTENDER),
    Case("a pod of the system evicted by an agent", evict("critical", "kube-system"),
         {OWN_EVICTIONS: "agents and scheduler evict no pods of the system"}, user=AGENT_A),
    Case("an agent evicted by another", evict("agent-node-a", "gpushare"),
         {OWN_EVICTIONS: "nor of their own namespace"}, user=AGENT_A),
    Case("a pod evicted without time to end", evict("placed", gracePeriodSeconds=0),
         {OWN_EVICTIONS: "agents and scheduler leave every pod time to end"}, user=AGENT_A),
    Case("a pod evicted with a second to end", evict("placed", gracePeriodSeconds=1), user=AGENT_A),
    Case("a pod of the system evicted by a person", evict("critical", "kube-system")),
)  # fmt: skip

CASES = (
    *VARIABLE_CASES,
    *SIZE_CASES,
    *EXTREME_CASES,
    *DEVICE_CASES,
    *AMOUNT_CASES,
    *INSTANCE_CASES,
    *CLAIM_CASES,
    *NODE_CASES,
    *PLACEMENT_CASES,
    *GUARANTEE_CASES,
    *MOVE_CASES,
    *SCHEDULER_CASES,
    *AGENT_CASES,
    *EVENT_CASES,
)
