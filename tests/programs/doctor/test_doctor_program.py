"""`gpu-device-plugin doctor` on a node made for the test: it tells what is there, and nothing holds it up."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_device_plugin import cli
from gpu_device_plugin.features.mps.rules.mps_admission import NOT_THERE
from gpu_device_plugin.features.node_features import NODE_SETTINGS
from gpu_device_plugin.kubernetes.client.api_client import Client
from gpu_device_plugin.kubernetes.client.config import ClusterConfig
from gpu_device_plugin.model.gpus import Gpu, Inventory
from gpu_device_plugin.programs.doctor import node_reading
from gpu_device_plugin.programs.doctor.doctor_program import (
    CLAIMS,
    CONDITION,
    EVICTING,
    RIGHTS,
    DoctorPlace,
    _with_node,
    below,
    device_nodes_of,
    examined,
    main,
    place,
    rights_of,
    settings_of,
)
from gpu_device_plugin.programs.doctor.node_reading import Running
from gpu_device_plugin.programs.doctor.rules.symptoms import ApiSeen, NodeSymptoms, Profiles
from gpu_device_plugin.report.rules.finding import Severity, Unknown, examine
from gpu_device_plugin.settings.knobs import UsageError
from gpu_device_plugin.settings.node import NodeSettings
from gpu_device_plugin.settings.sources import Sources
from tests.cluster_double.troubles import Answer, Garbage
from tests.configmap import mount
from tests.deploy.calls import AGENT, rights_needed
from tests.findings import told
from tests.names import COUNT, MEM
from tests.node.cluster_harness import NODE, Cluster, cluster
from tests.node.harness import NodeWorld, world
from tests.ports import free_port
from tests.reporting import NODE_CHECKS as CHECKS
from tests.reports import SINCE, part, written

NOWHERE = DoctorPlace(in_container=True, driver_s=120, answer_s=60)


def settings_in(node: NodeWorld, **changed: str) -> NodeSettings:
    return Sources(NODE_SETTINGS, flags={**node.settings, **changed}, environ={}).read()


def found(symptoms: NodeSymptoms, *checks: str, show: str = "") -> list[str]:
    """Return what these checks find, with the parameters that `show` names."""
    return told([finding for check in checks for finding in CHECKS[check](symptoms)], show)


@asynccontextmanager
async def sharing() -> AsyncIterator[Cluster]:
    """A node with an agent that serves its pages, labelled and registered."""
    port = free_port()
    async with cluster(node_labels={"gpushare": "true"}, http=f"127.0.0.1:{port}") as there:
        await there.start_agent()
        offered = {"aliyun.com/gpu-mem": "28", "aliyun.com/gpu-count": "2"}
        there.api.patch("nodes", NODE, {"status": {"allocatable": offered}}, subresource="status")
        yield there


async def test_a_node_on_which_everything_works_is_well() -> None:
    async with sharing() as there:
        seen = await examined(settings_in(there.node), NOWHERE, 1)
    wrong = [each for each in examine(CHECKS, seen) if each.severity in {Severity.WARNING, Severity.ERROR}]
    assert [each for each in wrong if each.check != "cgroups"] == [], "cgroups are this machine's"
    checks = ("driver", "shares", "registration", "rights", "allocatable", "clock")
    assert found(seen, *checks, show="gpus shares resource number amount") == [
        "ok driver gpus=2 x Tesla T4 (invented)",
        "ok shares gpus=2 GPUs shares=28",
        f"ok registered resource={MEM}",
        f"ok registered resource={COUNT}",
        "ok rights number=8",
        f"ok offered resource={MEM} amount=28",
        f"ok offered resource={COUNT} amount=2",
        "ok clock",
    ]


async def test_what_the_agent_reports_of_limits_and_use_is_examined(tmp_path: Path) -> None:
    async with sharing() as there:
        over = written(part("web", used=9000, over_since=SINCE))
        await there.node.stop_agent()  # it would write what it knows itself
        there.api.patch("nodes", NODE, {"metadata": {"annotations": over}})
        seen = await examined(settings_in(there.node, mps_dir=str(tmp_path), limits="mps"), NOWHERE, 1)
    assert found(seen, "memory use", "MPS", show="node containers why") == [
        f"warning over-use node={NODE} containers=default/web/main",
        f"error no-supervisor why={NOT_THERE}",
    ]


async def test_a_node_on_which_nothing_works_is_told_all_of_it(tmp_path: Path) -> None:
    settings = NODE_SETTINGS(
        gpus=str(tmp_path / "none.yaml"),
        device_plugin_dir=tmp_path / "none",
        pod_resources_socket=tmp_path / "none.sock",
        api="off",
    )
    seen = await examined(settings, NOWHERE, 0)
    assert found(seen, "driver", "kubelet directory", "kubelet", "kubelet's records", "agent", "API server") == [
        "error driver-unusable",
        "error directory-unusable",
        "error no-kubelet",
        "error pod-resources-unreadable",
        "error no-agent",
        "unknown api-off",
    ]


async def test_a_size_of_which_no_gpu_has_one_share_is_no_size_that_waits() -> None:
    """The agent before it had another size, and nobody holds shares of that."""
    async with world() as node:
        await node.start_agent(share_size="1GiB")
        await node.stop_agent()
        node.settings["share_size"] = "100GiB"
        agent = node.launch()
        await node.until(lambda: bool(agent.state.node.shares.why_none))
        seen = await examined(settings_in(node), NOWHERE)
    (finding,) = found(seen, "shares", show="problem")
    assert finding.startswith("error no-gpu-shared problem=no GPU is shared: 15 GiB, less than one share of 100 GiB")


async def test_the_condition_of_the_gpus_is_read_from_the_driver_as_the_settings_want(tmp_path: Path) -> None:
    gpus = tmp_path / "gpus.json"
    narrow = {"model": "T4", "pcie_width": 8, "temperature": 91, "persistence": False}
    gpus.write_text(json.dumps({"gpus": [narrow, "1xT4"]}))
    async with world() as node:
        every = await examined(settings_in(node, gpus=str(gpus)), NOWHERE)
        links = await examined(settings_in(node, gpus=str(gpus), condition="pcie"), NOWHERE)
        none = await examined(settings_in(node, gpus=str(gpus), condition="off"), NOWHERE)
    assert found(every, "GPU condition", show="temperature lanes") == [
        "warning too-hot temperature=91",
        "warning pcie-narrow lanes=8",
        "note persistence-off",
    ]
    assert found(links, "GPU condition") == ["warning pcie-narrow"]
    assert found(none, "GPU condition") == []


async def test_a_driver_that_hangs_is_given_up(tmp_path: Path) -> None:
    """NVML is asked by a process of its own, which is killed then."""
    gpus = tmp_path / "gpus.json"
    gpus.write_text(json.dumps({"gpus": ["1xT4"], "events": [{"at": "0s", "hang": "1h"}]}))
    async with world() as node:
        seen = await examined(settings_in(node, gpus=str(gpus)), replace(NOWHERE, driver_s=0.5))
    assert "the driver did not answer within 0.5 s" in seen.driver_problem


async def test_a_checkpoint_that_nobody_can_read_is_told() -> None:
    async with world() as node:
        node.kubelet.checkpoint.write_text("damaged")
        seen = await examined(settings_in(node), NOWHERE)
    assert "is damaged" in seen.checkpoint_problem


async def test_others_are_seen_by_their_sockets_and_by_what_the_node_offers() -> None:
    async with sharing() as there:
        there.api.patch("nodes", NODE, {"status": {"allocatable": {"nvidia.com/gpu": "2"}}}, subresource="status")
        seen = await examined(settings_in(there.node), NOWHERE, 1)
    assert [sighting.signs for sighting in seen.others] == [("the node offers 2 nvidia.com/gpu",)]


# --- The API server ---------------------------------------------------------------------------------------------------


async def test_rights_that_the_account_lacks_are_named() -> None:
    async with cluster(allowed={("get", "nodes")}) as there:
        seen = await examined(settings_in(there.node), NOWHERE)
    denied = "patch nodes, list pods, watch pods, patch pods, get namespaces, create events, patch events"
    (finding,) = found(seen, "rights", show="rights")
    assert finding.startswith(f"error rights-missing rights={denied}")


async def test_an_api_server_that_is_away_costs_a_moment_and_a_sentence() -> None:
    async with cluster() as there:
        there.api.black_hole()
        seen = await examined(settings_in(there.node), replace(NOWHERE, answer_s=0.2))
        there.api.heal()
    assert isinstance(seen.api, ApiSeen)
    assert seen.api.problem.startswith(there.api.url)


async def test_a_node_that_the_api_does_not_know_is_told() -> None:
    async with cluster(node_name="elsewhere") as there:
        seen = await examined(settings_in(there.node), NOWHERE)
    assert found(seen, "node") == ["error node-unreadable"]
    unnamed = await _with_node(ApiSeen(""), Client(ClusterConfig("http://127.0.0.1:1")), "")
    assert unnamed.node_problem.startswith("the name of this node is unknown; ")


async def test_a_server_that_says_nothing_of_rights_leaves_them_unknown() -> None:
    async with cluster() as there:
        there.api.fail(Answer(403), resources=["selfsubjectaccessreviews"])
        there.api.fail(Garbage(), resources=["nodes"])
        seen = await examined(settings_in(there.node), NOWHERE)
    assert isinstance(seen.api, ApiSeen)
    assert set(seen.api.rights.values()) == {None}
    assert "not a node" in seen.api.node_problem


async def test_where_there_is_no_account_the_api_is_not_asked(tmp_path: Path) -> None:
    async with world() as node:
        auto = await examined(settings_in(node, api="auto"), NOWHERE)
        broken = await examined(settings_in(node, api=str(tmp_path / "none.kubeconfig"), node_name=NODE), NOWHERE)
    assert isinstance(auto.api, Unknown)
    assert isinstance(broken.api, ApiSeen)
    assert "cannot be read" in broken.api.problem


def test_the_rights_that_are_asked_for_are_those_that_the_agent_uses() -> None:
    """Where pods are evicted, claims served and the node's condition kept: more than the default settings take."""
    most = rights_of(Sources(NODE_SETTINGS, {"over_use": "evict", "node_condition": "true", "serve": "dra"}, {}).read())
    asked = {(right.group, right.resource, right.verb) for right in most}
    assert asked == rights_needed(*AGENT)


def test_rights_that_the_settings_do_not_use_are_not_missed() -> None:
    assert rights_of(NODE_SETTINGS()) == RIGHTS
    for evicting in ({"over_use": "evict-when-short"}, {"on_gpu_failure": "evict"}, {"borrowers": "evict"}):
        assert rights_of(Sources(NODE_SETTINGS, evicting, {}).read()) == (*RIGHTS, EVICTING)
    assert rights_of(NODE_SETTINGS(node_condition=True)) == (*RIGHTS, CONDITION)
    assert rights_of(NODE_SETTINGS(serve="dra")) == (*RIGHTS, *CLAIMS)


# --- The node's files -------------------------------------------------------------------------------------------------


def test_in_a_pod_the_nodes_files_are_hidden_unless_they_are_mounted(tmp_path: Path) -> None:
    pod = {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}
    assert place("", pod) == DoctorPlace(None, in_container=True)
    folder = tmp_path / "usr/lib64"
    folder.mkdir(parents=True)
    assert place(str(tmp_path), pod) == DoctorPlace(tmp_path, dev=tmp_path / "dev")
    (folder / "libnvidia-ml.so.1").touch()
    assert place(str(tmp_path), pod).libraries == folder
    assert below(NODE_SETTINGS(), place(str(tmp_path), pod)).device_plugin_dir == (
        tmp_path / "var/lib/kubelet/device-plugins"
    )
    assert below(NODE_SETTINGS(), NOWHERE) == NODE_SETTINGS()


async def test_device_nodes_and_files_are_looked_at_where_the_node_is(tmp_path: Path) -> None:
    """Our own /dev/null stands for a device; /dev/char does not know it."""
    (tmp_path / "dev/char").mkdir(parents=True)
    (tmp_path / "dev/nvidiactl").symlink_to("/dev/null")
    (tmp_path / "dev/nvidia-uvm").write_text("")
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    where = replace(NOWHERE, host_root=tmp_path, in_container=False, dev=tmp_path / "dev")
    async with world() as node:
        settings = replace(settings_in(node), gpus="nvml")
        seen = await examined(settings, where)
    assert {path: seen.device_nodes[path] for path in ("/dev/nvidiactl", "/dev/nvidia-uvm")} == {
        "/dev/nvidiactl": "",
        "/dev/nvidia-uvm": "is no device",
    }
    assert seen.unlinked_nodes == ("/dev/nvidiactl",)
    assert (seen.cgroup, seen.runtimes, seen.toolkit) == (1, (), "")
    empty = await examined(settings, replace(NOWHERE, host_root=tmp_path, in_container=False, dev=tmp_path / "none"))
    assert empty.device_nodes["/dev/nvidiactl"] == "is missing"
    (tmp_path / "dev/dxg").write_text("")
    assert "/dev/nvidiactl" in (await examined(settings, where)).device_nodes


def test_of_a_kernels_device_nodes_the_group_is_read_and_no_link_for_systemd_is_missed(tmp_path: Path) -> None:
    """Our own /dev/null is open to everybody."""
    (tmp_path / "dev/dri").mkdir(parents=True)
    (tmp_path / "dev/kfd").symlink_to("/dev/null")
    (tmp_path / "dev/dri/renderD128").touch(mode=0o660)
    where = replace(NOWHERE, host_root=tmp_path, in_container=False, dev=tmp_path / "dev")
    paths = ("/dev/kfd", "/dev/dri/renderD128", "/dev/dri/card0")
    gpu = Gpu("GPU-a", 0, "AMD Instinct MI210", 65_520, device_paths=paths, driver="amdgpu")
    nodes, unlinked, groups = device_nodes_of(where, Inventory((gpu,)), ("envvar", "card"))
    assert nodes == {"/dev/kfd": "", "/dev/dri/renderD128": "is no device", "/dev/dri/card0": "is missing"}
    without, *_ = device_nodes_of(where, Inventory((gpu,)), ("envvar",))
    assert without.keys() == {"/dev/kfd", "/dev/dri/renderD128"}
    assert device_nodes_of(where, Inventory(), ("envvar",), without_nvidia=True) == ({}, (), {})
    assert (unlinked, groups) == ((), {"/dev/dri/renderD128": (tmp_path / "dev/dri/renderD128").stat().st_gid})


async def test_wsl_has_one_device_node_for_all_gpus(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/dxg").write_text("")
    async with world() as node:
        settings = replace(settings_in(node), gpus="nvml")
        seen = await examined(settings, replace(NOWHERE, host_root=tmp_path, in_container=False, dev=tmp_path / "dev"))
    assert (seen.device_nodes, seen.unlinked_nodes) == ({"/dev/dxg": ""}, ())


async def test_instances_that_the_kernel_module_lists_are_counted_where_the_node_is(tmp_path: Path) -> None:
    """NVML hides them from processes without the right to them; the GPU's device is /dev/nvidia0."""
    for instance in ("gi7", "gi8"):
        (tmp_path / "proc/driver/nvidia/capabilities/gpu0/mig" / instance).mkdir(parents=True)
    gpus = tmp_path / "gpus.json"
    gpus.write_text(json.dumps({"gpus": [{"model": "H100", "mig": True}]}))
    settings = NODE_SETTINGS(gpus=str(gpus), device_plugin_dir=tmp_path, api="off")
    seen = await examined(settings, replace(NOWHERE, host_root=tmp_path, in_container=False, dev=tmp_path / "dev"))
    assert list(seen.mig_present.values()) == [2]
    assert found(seen, "MIG", show="instances") == ["warning mig-instances-hidden instances=2"]


async def test_instances_that_are_given_whole_have_resources_of_their_own(tmp_path: Path) -> None:
    """Of NVIDIA's domain too, whose resources are those of another plugin elsewhere."""
    settings = NODE_SETTINGS(
        gpus="fake:1xH100:mig=1g.10gb*2/2g.20gb",
        device_plugin_dir=tmp_path,
        api="off",
        mig="whole",
        mig_domain="nvidia.com",
    )
    seen = await examined(settings, replace(NOWHERE, host_root=tmp_path, in_container=False, dev=tmp_path / "dev"))
    assert [resource.name for resource in seen.resources][-2:] == ["nvidia.com/mig-1g.10gb", "nvidia.com/mig-2g.20gb"]
    assert found(seen, "MIG", "shares", "GPUs", show="mode gpus") == [
        "ok mig mode=whole",
        "ok whole-instances",
        "ok gpus-healthy gpus=1",
    ]


# --- The program ------------------------------------------------------------------------------------------------------


def test_what_is_found_is_printed_and_the_worst_is_the_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = NODE_SETTINGS(
        gpus="fake:1xT4", device_plugin_dir=tmp_path, pod_resources_socket=tmp_path / "no.sock", api="off"
    )
    assert main(settings, NOWHERE, agents_running=0, as_json=False, profiles=Profiles()) == 4
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "ok       driver             driver 580.65.06, 1 x Tesla T4 (invented)"
    assert "error    agent              no agent runs here" in printed
    assert main(settings, NOWHERE, agents_running=0, as_json=True, profiles=Profiles()) == 4
    assert json.loads(capsys.readouterr().out)["severity"] == "error"


@pytest.mark.skipif(any(Path("/usr/lib").rglob("libnvidia-ml.so.1")), reason="this machine has NVML")
@pytest.mark.parametrize("in_container", [True, False])
async def test_without_a_driver_that_is_said_first(tmp_path: Path, *, in_container: bool) -> None:
    settings = NODE_SETTINGS(device_plugin_dir=tmp_path, pod_resources_socket=tmp_path / "none.sock", api="off")
    seen = await examined(settings, DoctorPlace(in_container=in_container, libraries=tmp_path, answer_s=2), 0)
    first = examine(CHECKS, seen)[0]
    where = "this container has no NVIDIA driver" if in_container else "no NVIDIA driver is installed on this machine"
    assert f"{first.check}: {first}" == f"driver: {where} (libnvidia-ml.so.1 is not there)"
    assert found(seen, "device nodes") == []


async def test_of_several_agents_it_is_told_whose_settings_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ["--gpus=fake:1xT4", "--api=off", f"--device-plugin-dir={tmp_path}"]
    running = [
        Running(["node", "--no-such-flag"], {}, Path("/proc/4/root")),
        Running(["node", *given], {"NODE_NAME": "a"}, Path("/proc/5/root")),
        Running(["node"], {}, Path("/proc/6/root")),
    ]
    monkeypatch.setattr(node_reading, "agents", lambda _: running)
    assert await asyncio.to_thread(cli.main, ["doctor"]) == 4
    said = "note     settings           those of the agent that runs on this machine: process 5 of node a "
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith(said))
    assert line.endswith("; 1 other agent runs here")


def test_the_doctor_looks_where_the_agent_was_told_to_unless_it_is_told_otherwise() -> None:
    arguments = cli.parse(["doctor", "--share-size=2GiB", "--json"])
    running = [
        Running(["node", "--no-such-flag"], {}, Path("/none")),
        Running(["node", "--share-size=1GiB", "--policy=spread"], {"NODE_NAME": "a"}, Path("/none")),
    ]
    settings, _ = settings_of(*cli.sources_of_the_agent(arguments, running), NOWHERE)
    assert (settings.share_size_mib, settings.policy, settings.node_name) == (2048, "spread", "a")
    settings, _ = settings_of(*cli.sources_of_the_agent(arguments, []), NOWHERE)
    assert settings.policy == "fit"


def test_the_files_of_the_agent_are_read_as_it_sees_them_with_the_profile_that_it_had(tmp_path: Path) -> None:
    """On the node they are below /proc/PID/root; and where they are not to be seen, what else is known of it stands."""
    folder = tmp_path / "root" / "etc"
    folder.mkdir(parents=True)
    mount(folder / "gpushare", default="policy: spread", big="share_size: 2GiB")
    (tmp_path / "gpushare").mkdir()
    agent = Running(["node", "--config=/etc/gpushare", f"--device-plugin-dir={tmp_path}"], {}, tmp_path / "root")
    arguments = cli.parse(["doctor"])
    settings, profiles = settings_of(*cli.sources_of_the_agent(arguments, [agent]), NOWHERE)
    assert (settings.policy, settings.share_size_mib) == ("spread", 1024)
    assert profiles == Profiles("/etc/gpushare", ("big",))
    (tmp_path / "gpushare" / "profile").write_text("big\n")
    settings, profiles = settings_of(*cli.sources_of_the_agent(arguments, [agent]), NOWHERE)
    assert (settings.share_size_mib, profiles.last) == (2048, "big")
    unseen = agent._replace(root=tmp_path / "none")
    settings, profiles = settings_of(*cli.sources_of_the_agent(arguments, [unseen]), NOWHERE)
    assert (settings.policy, settings.device_plugin_dir, profiles) == ("fit", tmp_path, Profiles())
    mine = cli.parse(["doctor", f"--config={mount(tmp_path / 'mine', default='share_size: 4GiB')}"])
    settings, _ = settings_of(*cli.sources_of_the_agent(mine, [agent]), NOWHERE)
    assert settings.share_size_mib == 4096


def test_files_that_cannot_be_used_keep_the_doctor_from_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "config"
    flags = [f"--config={folder}", f"--device-plugin-dir={tmp_path}", "--reserve=2GiB"]
    (tmp_path / "gpushare").mkdir()
    (tmp_path / "gpushare" / "profile").write_text("big\n")

    def seen() -> tuple[NodeSettings, Profiles]:
        return settings_of(*cli.sources_of_the_agent(cli.parse(["doctor", *flags]), []), NOWHERE)

    mount(folder, default="policy: spread", big="polcy: spread", small="")
    settings, profiles = seen()
    assert (settings.policy, settings.reserve_mib) == ("spread", 2048)
    assert profiles.last == "big"
    assert list(profiles.problems) == ["big"]
    assert profiles.problems["big"].startswith(f"{folder}/big.yaml, line 1, polcy: there is no such setting")
    mount(folder, default="policy: [", big="")
    settings, profiles = seen()
    assert (settings.policy, settings.reserve_mib) == ("fit", 2048)
    assert list(profiles.problems) == ["", "big"]
    flags.append("--policy=sideways")
    with pytest.raises(UsageError, match="--policy: 'sideways' is unknown"):
        seen()


def test_the_command_line_reaches_it(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """On this machine, whatever there is, but for the agents of other tests, whose settings may be wrong on purpose."""
    monkeypatch.setattr(node_reading, "agents", lambda _proc: [])
    code = cli.main(["doctor", "--gpus=fake:1xT4", "--api=off", "--json", "--http=off", f"--host-root={Path('/')}"])
    document = json.loads(capsys.readouterr().out)
    assert code == {"error": 4, "warning": 3}.get(document["severity"], 0)
    assert document["findings"][0]["check"] == "driver"


def test_a_host_root_that_is_not_there_is_the_only_thing_that_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    for wrong in (tmp_path / "nope", tmp_path / "file"):
        assert cli.main(["doctor", f"--host-root={wrong}"]) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        assert printed.err == (
            f"gpu-device-plugin: --host-root: {wrong} is not a directory; name the root of the node's own file system: "
            "/ on the node itself, /host in a pod that kubectl debug node/NODE created\n"
        )
