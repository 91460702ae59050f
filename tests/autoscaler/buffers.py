"""The CapacityBuffer API of the Cluster Autoscaler, as far as we write it and the autoscaler answers it."""

_TEXT = {"type": "string"}
_NAMED = {"type": "object", "properties": {"name": _TEXT}}
_NUMBER = {"type": "integer"}

CAPACITY_BUFFER = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "capacitybuffers.autoscaling.x-k8s.io"},
    "spec": {
        "group": "autoscaling.x-k8s.io",
        "names": {
            "kind": "CapacityBuffer",
            "listKind": "CapacityBufferList",
            "plural": "capacitybuffers",
            "singular": "capacitybuffer",
        },
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1beta1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "required": ["spec"],
                        "properties": {
                            "spec": {
                                "type": "object",
                                "properties": {
                                    "podTemplateRef": _NAMED,
                                    "provisioningStrategy": {
                                        **_TEXT,
                                        "default": "buffer.x-k8s.io/active-capacity",
                                    },
                                    "replicas": {**_NUMBER, "minimum": 0},
                                },
                            },
                            "status": {
                                "type": "object",
                                "properties": {
                                    "conditions": {
                                        "type": "array",
                                        "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                                    },
                                    "podTemplateGeneration": _NUMBER,
                                    "podTemplateRef": _NAMED,
                                    "provisioningStrategy": _TEXT,
                                    "replicas": _NUMBER,
                                },
                            },
                        },
                    }
                },
            }
        ],
    },
}
"""A definition that drops every other field, as the real one does."""
