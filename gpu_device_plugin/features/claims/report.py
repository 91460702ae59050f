"""The doctor's checks of nodes that give their GPUs to ResourceClaims (DRA); silent where none does or shall."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpu_device_plugin.features.claims.claimed_gpus import pools
from gpu_device_plugin.features.claims.contract import DRIVER, MIG_CLASS, SHARED_CLASS, WHOLE_CLASS, Claim
from gpu_device_plugin.model.contract.keys import SERVE_LABEL
from gpu_device_plugin.report.rules.finding import Unknown, error, grouped, note, ok, warning

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gpu_device_plugin.features.claims.rules.pool import Present
    from gpu_device_plugin.report.rules.finding import Finding
    from gpu_device_plugin.report.rules.node_view import ExaminedNode

_CLASSES = frozenset({SHARED_CLASS, WHOLE_CLASS, MIG_CLASS})
BY_CLAIMS = "dra"
"""The value of `SERVE_LABEL` that has a node give its GPUs to claims."""

_CONTAINERD = re.compile(r"containerd://v?(\d+)\.(\d+)\.(\d+)", re.ASCII)
_FIRST_WITH_CDI = (1, 7, 2)
_FIRST_WITH_CDI_ON = (2, 0, 0)
_LOG = "see the log of its agent"


def claims(
    nodes: Sequence[ExaminedNode],
    present: Sequence[Claim] | Unknown,
    slices: Sequence[Present] | Unknown,
    classes: Mapping[str, str] | Unknown,
    *,
    resources: tuple[str, str],
    version: str,
) -> Iterator[Finding]:
    """Yield what keeps claims from being served.

    `slices` are those of our driver: its pools have the names of their nodes, and of each the newest generation is
    valid. `classes` has the extended resource of each DeviceClass, empty if it has none; `resources` are memory and
    count, and `version` is that of the API server.
    """
    serving = [node for node in nodes if node.gpus.claims]
    asked_to = [node for node in nodes if node.labels.get(SERVE_LABEL) == BY_CLAIMS]
    if not_yet := tuple(node.name for node in asked_to if not node.gpus.claims):
        text = f"{{nodes}}: labelled {SERVE_LABEL}={BY_CLAIMS}, and no claims are served yet"
        advice = "an agent changes over when no pod of its node holds a GPU by its limits; its log names those that do"
        yield warning("not-serving-yet", text, advice, nodes=not_yet)
    yield from _orphans(present, {node.name for node in serving})
    known = () if isinstance(present, Unknown) else present
    ours = [claim for claim in known if any(request.device_class in _CLASSES for request in claim.requests)]
    if pending := tuple(str(claim) for claim in ours if not claim.allocated):
        text = "{claims:ResourceClaim waits|ResourceClaims wait} for GPUs: {claims}"
        advice = (
            "kubectl inspect gpushare why POD, with a pod that uses it, names the reason; without a pod it stays so"
        )
        yield note("claims-pending", text, advice, claims=pending)
    if not serving:
        return
    found = [
        *([slices] if isinstance(slices, Unknown) else _slices(slices, serving, version)),
        *([classes] if isinstance(classes, Unknown) else _classes(classes, serving, resources[1])),
        *_runtimes(serving),
        *_remembered(serving, *resources),
    ]
    yield from found
    if not found:
        yield ok("claims", "{nodes:node serves|nodes serve} claims, with complete ResourceSlices", nodes=len(serving))


def _slices(present: Iterable[Present], serving: Sequence[ExaminedNode], version: str) -> Iterator[Finding]:
    by_pool = grouped((each.pool, each) for each in present)
    if missing := tuple(node.name for node in serving if node.name not in by_pool):
        text = f"{{nodes}}: no ResourceSlice of {DRIVER}, so kube-scheduler knows none of the GPUs"
        advice = f"{_LOG}: it publishes them within seconds, unless a right of deploy/optional/dra.yaml is missing"
        yield error("no-slices", text, advice, nodes=missing)
    cut: list[str] = []
    for node in serving:
        slices = by_pool.get(node.name, ())
        newest = max((each.generation for each in slices), default=0)
        current = [each for each in slices if each.generation == newest]
        offered = [device for each in current for device in each.content["devices"]]
        wanted = max((each.count for each in current), default=0)
        if len(current) != wanted:
            yield error(
                "slices-incomplete",
                "{node}: {slices} of {of} ResourceSlices of generation {generation}, and kube-scheduler allocates "
                "nothing of a pool that is not complete",
                _LOG,
                node=node.name,
                slices=len(current),
                of=wanted,
                generation=newest,
            )
        elif node.gpus.gpus and offered and not any(device.get("allowMultipleAllocations") for device in offered):
            cut.append(node.name)
    if cut:
        text = "{nodes}: no ResourceSlice has devices that claims can share, so there are only whole GPUs"
        advice = (
            "an API server older than 1.36, or without the feature gate DRAConsumableCapacity, drops what makes a "
            f"device shared{' (this one is {version})' if version else ''}; for parts of GPUs use limits of pods "
            f"({SERVE_LABEL}=device-plugin)"
        )
        yield warning("devices-not-shared", text, advice, nodes=tuple(cut), version=version)


def _classes(known: Mapping[str, str], serving: Iterable[ExaminedNode], count: str) -> Iterator[Finding]:
    instances = any(gpu.instance is not None for node in serving for gpu in node.gpus.all)
    wanted = (SHARED_CLASS, WHOLE_CLASS, *([MIG_CLASS] if instances else ()))
    if missing := tuple(name for name in wanted if name not in known):
        text = "{classes:DeviceClass is|DeviceClasses are} missing: {classes}"
        yield error("no-device-class", text, "kubectl apply -f deploy/optional/dra.yaml", classes=missing)
    elif known[WHOLE_CLASS] != count:
        text = (
            f"the DeviceClass {WHOLE_CLASS} does not serve {{resource}}: pods that ask for it by their limits get no "
            "GPU on nodes that serve claims"
        )
        advice = "its extendedResourceName would have to be {resource}; API servers older than 1.36 drop it"
        yield note("class-without-resource", text, advice, resource=count)


def _runtimes(serving: Iterable[ExaminedNode]) -> Iterator[Finding]:
    for runtime, names in sorted(grouped((node.runtime, node.name) for node in serving).items()):
        release = _CONTAINERD.match(runtime)
        version = tuple(map(int, release.groups())) if release else _FIRST_WITH_CDI_ON
        if version < _FIRST_WITH_CDI:
            text = "{nodes}: {runtime} knows no CDI, so containers with claims get neither GPU nor variables"
            advice = "upgrade containerd to 1.7.2 with enable_cdi = true, or to 2.0"
            yield error("runtime-without-cdi", text, advice, nodes=names, runtime=runtime)
        elif version < _FIRST_WITH_CDI_ON:
            text = "{nodes}: {runtime} has CDI only with enable_cdi = true in its configuration"
            yield note("runtime-cdi-optional", text, nodes=names, runtime=runtime)


def _remembered(serving: Iterable[ExaminedNode], memory: str, count: str) -> Iterator[Finding]:
    """Yield the nodes whose kubelets still know a resource of a device plugin (Kubernetes' pull request 141426).

    That is no fault where the agent itself was that plugin: its last registration keeps containers from failing.
    """
    if remembering := tuple(node.name for node in serving if not {memory, count}.isdisjoint(node.capacity)):
        yield note(
            "kubelet-remembers-plugin",
            "{nodes}: the kubelet has known {memory} or {count} of a device plugin: if containers with {count} do not "
            "start there (no devices found allocated in local cache), it still does",
            "drain the node, and 5 minutes after the plugin has ended restart its kubelet (1.36.3 and older)",
            nodes=remembering,
            memory=memory,
            count=count,
        )


def _orphans(present: Sequence[Claim] | Unknown, serving: set[str]) -> Iterator[Finding]:
    """Yield the claims with devices of nodes that do not serve claims (any more)."""
    if isinstance(present, Unknown):
        if serving:
            yield present
        return
    left = grouped((node, str(claim)) for claim in present for node in pools(claim) - serving)
    for node, names in sorted(left.items()):
        text = "{claims:ResourceClaim has|ResourceClaims have} GPUs of {node}, which serves no claims: {claims}"
        advice = "no other agent there can prepare or release them: end their pods, and delete claims that stay"
        yield error("claims-orphaned", text, advice, claims=names, node=node)
