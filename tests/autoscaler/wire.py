"""The messages of the Cluster Autoscaler's provider ``externalgrpc``, and the few of Kubernetes that go with them.

Numbers and types of the fields are facts of the protocol; only the fields that a cloud sends or reads are here.
"""

from typing import Any

from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

SERVICE = "clusterautoscaler.cloudprovider.v1.externalgrpc.CloudProvider"
_PACKAGE = "cloud"  # the wire has no names of messages

_TYPES = {
    "string": Field.TYPE_STRING, "bytes": Field.TYPE_BYTES, "int32": Field.TYPE_INT32, "double": Field.TYPE_DOUBLE,
}  # fmt: skip

_MESSAGES = {
    # The provider's
    "Nothing": "",
    "NodeGroup": "id=1 string, minSize=2 int32, maxSize=3 int32, debug=4 string",
    "NodeGroups": "nodeGroups=1 *NodeGroup",
    "Node": "providerID=1 string, name=2 string",
    "ForNode": "node=1 Node",
    "OfNode": "nodeGroup=1 NodeGroup",
    "Label": "label=1 string",
    "Group": "id=1 string",
    "Size": "targetSize=1 int32",
    "Resize": "delta=1 int32, id=2 string",
    "Delete": "nodes=1 *Node, id=2 string",
    "Error": "errorCode=1 string, errorMessage=2 string, instanceErrorClass=3 int32",
    "Status": "instanceState=1 int32, errorInfo=2 Error",
    "Instance": "id=1 string, status=2 Status",
    "Instances": "instances=1 *Instance",
    "Template": "nodeBytes=2 bytes",
    # Kubernetes' Node
    "Quantity": "string=1 string",
    "Label_": "key=1 string, value=2 string",
    "Amount": "key=1 string, value=2 Quantity",
    "Meta": "name=1 string, labels=11 *Label_, annotations=12 *Label_",
    "Condition": "type=1 string, status=2 string",
    "NodeSpec": "providerID=3 string",
    "NodeStatus": "capacity=1 *Amount, allocatable=2 *Amount, conditions=4 *Condition",
    "KubeNode": "metadata=1 Meta, spec=2 NodeSpec, status=3 NodeStatus",
}
"""Fields by message; a star: repeated. A map is a repeated pair."""


def _classes() -> dict[str, Any]:
    file = FileDescriptorProto(name="cloud.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        made = file.message_type.add(name=name)
        for each in filter(None, fields.split(", ")):
            named, kind = each.split()
            field, number = named.split("=")
            label = Field.LABEL_REPEATED if kind.startswith("*") else Field.LABEL_OPTIONAL
            kind = kind.removeprefix("*")
            added = made.field.add(name=field, number=int(number), label=label)
            if kind in _TYPES:
                added.type = _TYPES[kind]
            else:
                added.type, added.type_name = Field.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
    pool = DescriptorPool()
    pool.Add(file)
    return {name: GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _MESSAGES}


MESSAGES = _classes()
"""The class of each message by its name."""

CALLS = {
    "NodeGroups": ("Nothing", "NodeGroups"),
    "NodeGroupForNode": ("ForNode", "OfNode"),
    "GPULabel": ("Nothing", "Label"),
    "GetAvailableGPUTypes": ("Nothing", "Nothing"),
    "Cleanup": ("Nothing", "Nothing"),
    "Refresh": ("Nothing", "Nothing"),
    "NodeGroupTargetSize": ("Group", "Size"),
    "NodeGroupIncreaseSize": ("Resize", "Nothing"),
    "NodeGroupDeleteNodes": ("Delete", "Nothing"),
    "NodeGroupDecreaseTargetSize": ("Resize", "Nothing"),
    "NodeGroupNodes": ("Group", "Instances"),
    "NodeGroupTemplateNodeInfo": ("Group", "Template"),
}
"""Request and answer of each call. A call that is not here is not implemented, which the autoscaler allows of it."""


def template(node: dict[str, Any]) -> bytes:
    """Return a node in the encoding in which a group tells what its nodes are like."""
    meta, status = node["metadata"], node["status"]
    amounts = {
        each: [{"key": name, "value": {"string": amount}} for name, amount in status[each].items()]
        for each in ("capacity", "allocatable")
    }
    labels = [{"key": key, "value": value} for key, value in meta.get("labels", {}).items()]
    annotations = [{"key": key, "value": value} for key, value in meta.get("annotations", {}).items()]
    ready = [{"type": "Ready", "status": "True"}]
    encoded: bytes = MESSAGES["KubeNode"](
        metadata={"name": meta["name"], "labels": labels, "annotations": annotations},
        spec={},
        status={**amounts, "conditions": ready},
    ).SerializeToString()
    return encoded
