"""The CDI file of a claim."""

from __future__ import annotations

from gpu_device_plugin.core.dra.cdi import cdi_spec, device_id, file_name, uid_of
from gpu_device_plugin.core.node.extra_grant import Mount
from gpu_device_plugin.core.node.grants import Grant


def test_variables_device_nodes_and_mounts_are_one_device_of_the_claim() -> None:
    grant = Grant(
        {"B": "2", "A": "1"},
        ("/dev/nvidia0",),
        mounts=(Mount("/run/x", "/dev/shm", read_only=False), Mount("/lib/y", "/y")),
    )
    assert cdi_spec("u-1", grant) == {
        "cdiVersion": "0.5.0",
        "kind": "gpu-device-plugin/claim",
        "devices": [
            {
                "name": "u-1",
                "containerEdits": {
                    "env": ["A=1", "B=2"],
                    "deviceNodes": [{"path": "/dev/nvidia0", "permissions": "rw"}],
                    "mounts": [
                        {
                            "hostPath": "/run/x",
                            "containerPath": "/dev/shm",
                            "options": ["rw", "nosuid", "nodev", "rbind"],
                        },
                        {"hostPath": "/lib/y", "containerPath": "/y", "options": ["ro", "nosuid", "nodev", "rbind"]},
                    ],
                },
            }
        ],
    }
    assert cdi_spec("u-1", Grant({"A": "1"}))["devices"][0]["containerEdits"] == {"env": ["A=1"]}


def test_names_lead_from_the_claim_to_its_file_and_back() -> None:
    assert device_id("u-1") == "gpu-device-plugin/claim=u-1"
    assert uid_of(file_name("u-1")) == "u-1"
    for other in ("nvidia.yaml", "gpu-device-plugin-claim_u-1.json.new", "x-gpu-device-plugin-claim_u-1.json"):
        assert uid_of(other) == ""
