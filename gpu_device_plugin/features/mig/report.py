"""Which MIG instances pods have or get, and why no node gives a pod what it asks for."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from gpu_device_plugin.model.contract.keys import MIG_LABEL
from gpu_device_plugin.model.gpus import Gpu
from gpu_device_plugin.model.mig import MigMode, is_mig_resource, resource_name
from gpu_device_plugin.model.pods import Container
from gpu_device_plugin.report.rules.finding import Finding, few, grouped, note, ok, warning
from gpu_device_plugin.report.rules.held_instances import Instances
from gpu_device_plugin.report.rules.node_answers import closed
from gpu_device_plugin.report.rules.node_view import NodeView
from gpu_device_plugin.report.rules.pod_causes import out_of_service

_MOST_NODES = 20
"""Nodes that are explained one by one."""


def asks_for_several(containers: Iterable[Container]) -> Iterator[Finding]:
    """Yield a correction for each container whose MIG instances hide other devices of it, or one another.

    The kubelet sets each variable once, so that of two resources with NVIDIA_VISIBLE_DEVICES one is lost; and many
    drivers show a CUDA program only one of several instances.
    """
    for container in containers:
        asked = {name: number for name, number in container.limits.items() if number}
        instances = [name for name in asked if is_mig_resource(name)]
        if instances and len(asked) > 1:
            text = (
                "Container {container} asks for {resources}: each of them sets NVIDIA_VISIBLE_DEVICES, and the "
                "container sees one of them. Ask for each in a container of its own."
            )
            yield note(
                "several-resources",
                text,
                container=repr(container.name),
                resources=note("asks", "{asks:+ and }", asks=tuple(sorted(asked))),
            )
        elif instances and asked[instances[0]] > 1:
            yield note(
                "several-instances",
                "Container {container} asks for {number} of {resource}: drivers before R570 show a CUDA program only "
                "one of several MIG instances. Ask for a larger profile, or for one instance in each container.",
                container=repr(container.name),
                number=asked[instances[0]],
                resource=instances[0],
            )


def instance_facts(
    asked: Mapping[str, int], nodes: Sequence[NodeView], kept: Mapping[str, tuple[Finding, ...]]
) -> Iterator[Finding]:
    """Yield why no node gives a pod its MIG instances: first of all of them together, then node by node.

    `asked` has the number by resource; `kept` has by node why kube-scheduler does not consider it for the pod.
    """
    text = "it allocates them to ResourceClaims (DRA), or through a DeviceClass with this extendedResourceName"
    by_claims = note("gives-to-claims", text)
    away: dict[str, list[Finding]] = {}
    for node in nodes:
        gpus = node.candidate.gpus
        away[node.name] = [*kept.get(node.name, ())]
        if gpus.claims and not gpus.away:
            away[node.name].append(by_claims)
        elif gpus.problem:
            away[node.name].append(note("gpus-problem", "{problem}", problem=gpus.problem))
    for resource, number in sorted(asked.items()):
        offers = [(node.name, each) for node in nodes for each in node.instances() if each.resource == resource]
        if not offers:
            yield from _offered_nowhere(resource, nodes)
            continue
        # The nearest first: those with the most free instances.
        offers.sort(key=lambda offer: (bool(away[offer[0]]), -offer[1].free, offer[0]))
        free = sum(each.free >= number and not away[name] for name, each in offers)
        few_free = note("nodes-have-free", "{nodes:has|have} {number:free one}", nodes=free, number=number)
        text = "{nodes:node offers|nodes offer} {resource}, and {has}."
        has = few_free if free else note("none-has", "none has enough free")
        yield note("instances", text, nodes=len(offers), resource=resource, free=free, has=has)
        for name, each in offers[:_MOST_NODES]:
            yield note("instances-of-node", "  {node}: {use:+; }", node=name, use=(in_use(each), *away[name]))
        if (more := len(offers) - _MOST_NODES) > 0:
            yield note("more-nodes", "  and {nodes} more.", nodes=more)


def in_use(offer: Instances) -> Finding:
    """Return how many instances of a node are in use, by which pods, and which give none."""
    facts = [note("used-of", "{used}/{all} in use", used=offer.used, all=len(offer.instances))]
    for gpu in offer.closed:
        place = gpu.instance.label if gpu.instance else ""
        if gpu.unhealthy:
            facts.append(note("instance-out", "{instance} unhealthy ({why})", instance=place, why=gpu.unhealthy))
        else:
            facts.append(note("instance-closed", "{instance} {why}", instance=place, why=closed(gpu)))
    text = "{facts:+, }" + (": {pods}" if offer.by_pod else "")
    return note("in-use-by", text, facts=tuple(facts), pods=holders(offer))


def holders(offer: Instances) -> Finding:
    """Return the pods that have instances of a resource: ``shop/web (0:0, 0:1), shop/api (not known which)``."""
    pods = []
    for pod, instances in offer.by_pod.items():
        labels = tuple(gpu.instance.label for gpu in instances if gpu.instance is not None)
        facts: tuple[str | Finding, ...] = labels or (note("which-unknown", "not known which"),)
        ending = (note("being-deleted", "being deleted"),) if pod.terminating else ()
        pods.append(note("pod-has", "{pod} ({facts:+, })", pod=str(pod), facts=(*facts, *ending)))
    return few(pods)


def _offered_nowhere(resource: str, nodes: Collection[NodeView]) -> Iterator[Finding]:
    short = resource.partition("/")[2]
    offers = [(each.resource, len(each.instances), node.name) for node in nodes for each in node.instances()]
    offered = grouped((resource, note("n-on-node", "{n} on {node}", n=n, node=name)) for resource, n, name in offers)
    places = ((node.name, gpu.instance) for node in nodes for gpu in node.candidate.gpus.gpus)
    shared = dict.fromkeys(name for name, place in places if place and resource_name(place.profile) == short)
    yield note("not-offered", "No node that shares its GPUs offers {resource}.", resource=resource)
    if same := sorted(each for each in offered if each.partition("/")[2] == short):
        text = "Did you mean {resource}, which is offered ({where})?"
        yield note("offered-under", text, resource=same[0], where=few(offered[same[0]]))
        return
    if offered:
        text, every = "{resource} ({where})", sorted(offered.items())
        told = tuple(note("offer", text, resource=each, where=few(where)) for each, where in every)
        yield note("offered-instead", "The nodes offer {offers}.", offers=note("reasons", "{why:+; }", why=told))
    how = f"the setting mig: whole, or kubectl label node NODE {MIG_LABEL}=whole"
    if shared:
        text = (
            "Instances of this profile are shared by memory ({nodes}): ask for gpu-mem instead, or have them "
            f"allocated whole ({how})."
        )
        yield note("instances-shared", text, nodes=tuple(shared))
    else:
        yield note(
            "instances-by-setting",
            "A node offers it once a GPU of it has such an instance (nvidia-mig-parted, or nvidia-smi mig -cgi "
            f"PROFILE -C) and instances are allocated whole: {how}.",
        )


def held_instances(pod: str, uid: str, node: NodeView | None) -> Iterator[Finding]:
    """Yield the MIG instances that a pod, ``namespace/name``, has on its node, in sentences."""
    for offer in () if node is None else node.instances():
        for holder, gpus in offer.by_pod.items():
            if holder.uid != uid:
                continue
            for gpu in gpus:
                place = "" if gpu.instance is None else f"MIG {gpu.instance.label} {gpu.instance.profile}"
                text, ill = "  GPU {gpu} ({instance}, {uuid}): the whole instance{ill}", out_of_service(gpu)
                yield note("has-instance", text, gpu=gpu.position, instance=place, uuid=gpu.uuid, ill=ill)
            if not gpus:
                text = "  Which instances of {resource} {pod} has is not known yet: its node's agent writes it."
                yield note("instance-unknown", text, resource=offer.resource, pod=pod)


# --- The doctor -------------------------------------------------------------------------------------------------------

_GIVEN = {
    MigMode.WHOLE: "pods get them one by one, each profile by its own resource",
    MigMode.SHARE: "pods get their memory in shares",
}

_SEEING = (
    "deploy/patches/mig-agent.yaml (chart: agent.migMonitor) gives the agent NVIDIA_MIG_MONITOR_DEVICES=all and the "
    "capability SYS_ADMIN, without which the driver hides instances from a container"
)


def mig(  # noqa: PLR0917 - what a check reads
    gpus: Sequence[Gpu],
    names: Mapping[str, str],
    labels: Mapping[str, str],
    mode: MigMode,
    node: str,
    present: Mapping[str, int],
) -> Iterator[Finding]:
    """Check each GPU of a node in MIG mode, if it has one: its instances, and how pods get them.

    `names` are those of GPUs and instances for people, by UUID; `labels` are the node's, and `mode` is in force;
    the kernel module lists to everybody how many GPU instances are `present` on each GPU.
    """
    label = labels.get(MIG_LABEL, "")
    parents = [gpu for gpu in gpus if gpu.mig]
    if parents and label and label not in list(MigMode):
        text = "the node label {label} is ignored: its value is none of {modes}"
        advice = "correct the label, or remove it"
        yield warning("mig-label-ignored", text, advice, label=f"{MIG_LABEL}={label}", modes=tuple(MigMode))
    for parent in parents:
        instances = [gpu for gpu in gpus if gpu.instance is not None and gpu.card == parent.uuid]
        if instances:
            yield from _instances(parent, instances, names, label, mode, node=node)
        else:
            yield _no_instance(names[parent.uuid], parent.index, present.get(parent.uuid, 0))


def _instances(
    parent: Gpu, instances: Sequence[Gpu], names: Mapping[str, str], label: str, mode: MigMode, *, node: str
) -> Iterator[Finding]:
    numbers = ", ".join(
        f"{gpu.label} {gpu.instance.profile}" for gpu in instances if gpu.instance is not None and gpu.instance.alone
    )
    if numbers and mode is MigMode.OFF:
        text = "{gpu} is in MIG mode: {instances}; no pod gets them, as mig is off"
        advice = (
            "the setting mig, or kubectl label node {node} gpu-device-plugin/mig=..., with whole (one by one, a "
            "resource for each profile) or share (their memory in shares)"
        )
        yield note("mig-off", text, advice, gpu=names[parent.uuid], instances=numbers, node=node or "NODE")
    elif numbers:
        source = "node label gpu-device-plugin/mig" if label == mode else "setting mig"
        text = f"{{gpu}} is in MIG mode: {{instances}}; {_GIVEN[mode]} (the {{source}}={{mode}})"
        yield ok("mig", text, gpu=names[parent.uuid], instances=numbers, source=source, mode=mode)
    for gpu in instances:
        if gpu.instance is not None and not gpu.instance.alone:
            yield note(
                "compute-instance",
                "{gpu} is a compute instance, {profile}, which shares the memory of GPU instance {instance} with "
                "others, and no pod gets it",
                "make one compute instance of each GPU instance (nvidia-smi mig -cgi PROFILE -C does)",
                gpu=names[gpu.uuid],
                profile=gpu.instance.profile,
                instance=gpu.instance.gi,
            )


def _no_instance(name: str, index: int, present: int) -> Finding:
    if present:
        text = "{gpu} is in MIG mode, and none of its {instances:GPU instance} can be seen from here"
        advice = f"{_SEEING}; and see whether they have compute instances: nvidia-smi -L on the node"
        return warning("mig-instances-hidden", text, advice, gpu=name, instances=present)
    text = "{gpu} is in MIG mode, and no instance of it can be seen: no pod can use it"
    advice = (
        "create instances (nvidia-mig-parted, or nvidia-smi mig -cgi PROFILE -C), or end MIG mode (nvidia-smi -i "
        f"{{index}} -mig 0); if nvidia-smi -L on the node lists some, {_SEEING}"
    )
    return warning("no-mig-instance", text, advice, gpu=name, index=index)
