"""Settings: where they may be written, what they accept, and what a person reads who wrote something else."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_device_plugin.features.history import HistorySettings
from gpu_device_plugin.features.limits import LimitSettings
from gpu_device_plugin.features.node_features import NODE_SETTINGS
from gpu_device_plugin.model.contract.variables import COMPUTE_LIMIT, LIMITS, MEMORY_GUARANTEED, MEMORY_LIMIT
from gpu_device_plugin.model.resources import Kind, Resource
from gpu_device_plugin.model.telemetry import TelemetryGroup
from gpu_device_plugin.settings.extender import ExtenderSettings
from gpu_device_plugin.settings.forms import Address
from gpu_device_plugin.settings.knobs import Reload, SettingsError, knobs_of, reload
from gpu_device_plugin.settings.node import NodeSettings
from gpu_device_plugin.settings.sources import Sources, settings_for
from tests.configmap import mount


def read(flags: dict[str, str] | None = None, environ: dict[str, str] | None = None) -> NodeSettings:
    return Sources(NODE_SETTINGS, flags or {}, environ or {}).read()


def complaint(flags: dict[str, str] | None = None, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(SettingsError) as caught:
        read(flags, environ)
    return str(caught.value)


def in_file(tmp_path: Path, text: str, name: str = "node.yaml") -> dict[str, str]:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return {"config": str(path)}


# --- Where they are written ------------------------------------------------------------------------------------------


def test_nothing_written_gives_the_defaults() -> None:
    assert read() == NODE_SETTINGS()


def test_a_flag_beats_the_environment_which_beats_the_file(tmp_path: Path) -> None:
    """Each source sets what the weaker ones set too, and one thing more."""
    flags = in_file(tmp_path, "policy: spread\nshare_size: 2GiB\nreserve: 1GiB\n") | {"share_size": "256MiB"}
    settings = read(flags, {"GPUSHARE_SHARE_SIZE": "512MiB", "GPUSHARE_RESERVE": "300MiB"})
    assert (settings.share_size_mib, settings.reserve_mib, settings.policy) == (256, 300, "spread")


def test_the_file_can_be_named_in_the_environment(tmp_path: Path) -> None:
    assert read({}, {"GPUSHARE_CONFIG": in_file(tmp_path, "policy: spread")["config"]}).policy == "spread"


def test_the_node_name_comes_from_node_name_unless_our_own_variable_says_otherwise() -> None:
    assert read({}, {"NODE_NAME": "a"}).node_name == "a"
    assert read({}, {"NODE_NAME": "a", "GPUSHARE_NODE_NAME": "b"}).node_name == "b"


def test_a_stronger_source_hides_an_error_in_a_weaker_one() -> None:
    """Whoever corrects a setting by a flag need not touch the environment."""
    assert read({"policy": "spread"}, {"GPUSHARE_POLICY": "nonsense"}).policy == "spread"


def test_the_sources_are_read_again_when_asked_again(tmp_path: Path) -> None:
    sources = Sources(NODE_SETTINGS, in_file(tmp_path, "policy: spread"), {})
    assert sources.read().policy == "spread"
    in_file(tmp_path, "policy: binpack")
    assert sources.read().policy == "binpack"


def test_variables_that_kubernetes_makes_of_services_are_none_of_ours() -> None:
    """The Service of the original extender is called gpushare-schd-extender."""
    links = {
        "GPUSHARE_SCHD_EXTENDER_SERVICE_HOST": "10.0.0.1",
        "GPUSHARE_SCHD_EXTENDER_SERVICE_PORT": "12345",
        "GPUSHARE_SCHD_EXTENDER_SERVICE_PORT_HTTP": "12345",
        "GPUSHARE_SCHD_EXTENDER_PORT": "tcp://10.0.0.1:12345",
        "GPUSHARE_SCHD_EXTENDER_PORT_12345_TCP": "tcp://10.0.0.1:12345",
        "GPUSHARE_SCHD_EXTENDER_PORT_12345_TCP_PROTO": "tcp",
        "GPUSHARE_SCHD_EXTENDER_PORT_12345_TCP_PORT": "12345",
        "GPUSHARE_SCHD_EXTENDER_PORT_12345_TCP_ADDR": "10.0.0.1",
    }
    assert read({}, links) == NODE_SETTINGS()


def test_what_a_container_is_told_of_its_memory_is_no_setting() -> None:
    """Somebody runs one of our programs where a part of a GPU is."""
    assert (
        read({}, {MEMORY_LIMIT: "4096", MEMORY_GUARANTEED: "2048", COMPUTE_LIMIT: "25", LIMITS: "mps"})
        == NODE_SETTINGS()
    )


def test_in_a_file_off_is_a_word_and_lists_are_lists(tmp_path: Path) -> None:
    """YAML itself takes off for false and 0 for a number."""
    settings = read(in_file(tmp_path, "api: off\nexclude_gpus: [0, 2]\nresources: memory\npre_start: true\n"))
    assert settings.api == "off"
    assert settings.exclude_gpus == ("0", "2")
    assert settings.resources == (Kind.MEMORY,)
    assert settings.pre_start


def test_a_file_may_be_json_with_tabs(tmp_path: Path) -> None:
    settings = read(in_file(tmp_path, '{\n\t"refusal_limit": 3,\n\t"fatal_xids": [31, 13]\n}\n', "node.json"))
    assert (settings.refusal_limit, settings.fatal_xids) == (3, (31, 13))


# --- What they accept ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("share_size", "256MiB", "share_size_mib", 256),
        ("reserve", "0GiB", "reserve_mib", 0),
        ("probe_interval", "200ms", "probe_interval_s", 0.2),
        ("blind_after", "2m", "blind_after_s", 120.0),
        ("process_wait", "0s", "process_wait_s", 0.0),
        ("reconcile_interval", "1.5h", "reconcile_interval_s", 5400.0),
        ("http", "", "http", None),
        ("http", "off", "http", None),
        ("http", "0.0.0.0:9445", "http", Address("0.0.0.0", 9445)),  # noqa: S104 - an address to read, not to bind
        ("http", ":9445", "http", Address("", 9445)),
        ("http", "[::]:0", "http", Address("::", 0)),
        ("devices", "cdi, envvar", "devices", ("envvar", "cdi")),
        ("exclude_gpus", "0,GPU-0c2a3b4d-0000-1111-2222-333344445555,0", "exclude_gpus", None),
        ("gpus", "fake:4xT4", "gpus", "fake:4xT4"),
        ("gpus", "./gpus.yaml", "gpus", "./gpus.yaml"),
        ("cdi_kind", "example.com/gpu-x_y", "cdi_kind", "example.com/gpu-x_y"),
        ("pre_start", "TRUE", "pre_start", True),
        ("policy", "Spread", "policy", "spread"),
        ("ignored_xids", "13,31", "ignored_xids", (13, 31)),
        ("device_plugin_dir", "/run/kubelet/", "device_plugin_dir", Path("/run/kubelet")),
    ],
)
def test_what_people_write_becomes_a_value(name: str, text: str, field: str, value: object) -> None:
    if name == "exclude_gpus":  # too long for a row
        value = ("0", "GPU-0c2a3b4d-0000-1111-2222-333344445555")
    assert getattr(read({name: text}), field) == value


@pytest.mark.parametrize("partition", ["", "-p7"])
def test_the_unique_id_of_a_gpu_may_have_small_letters_as_rocminfo_writes_them(partition: str) -> None:
    settings = read({"exclude_gpus": f"GPU-8d10ac5e0000000f{partition}"})
    assert settings.exclude_gpus == (f"GPU-8D10AC5E0000000F{partition}",)


@pytest.mark.parametrize("api", ["auto", "off", "in-cluster", "/etc/kube/config", "./config", "http://127.0.0.1:8001"])
def test_the_api_is_a_word_a_path_or_an_address(api: str) -> None:
    assert read({"api": api, "node_name": "n"}).api == api


def test_the_condition_of_gpus_is_read_in_all_groups_or_some_or_not_at_all(tmp_path: Path) -> None:
    assert read().of(HistorySettings).condition == tuple(TelemetryGroup)
    assert read({"condition": "power, Thermal"}).of(HistorySettings).condition == (
        TelemetryGroup.THERMAL,
        TelemetryGroup.POWER,
    )
    for off in ("condition: off\n", "condition: 'OFF'\n"):
        assert read(in_file(tmp_path, off)).of(HistorySettings).condition == ()


def test_resources_have_full_names_in_a_fixed_order() -> None:
    settings = read({"resources": "count,memory", "domain": "example.com", "count_resource": "gpus"})
    assert settings.offered == (
        Resource(Kind.MEMORY, "example.com/gpu-mem"),
        Resource(Kind.COUNT, "example.com/gpus"),
    )


def test_one_resource_alone_may_have_the_other_ones_name() -> None:
    """For pods that were written for a plugin with a name of its own."""
    settings = read({"resources": "memory", "memory_resource": "gpu-count"})
    assert [resource.name for resource in settings.offered] == ["aliyun.com/gpu-count"]


def test_every_default_is_what_its_text_says() -> None:
    assert read({knob.name: knob.default for knob in knobs_of(NODE_SETTINGS)}) == NODE_SETTINGS()


@pytest.mark.parametrize(
    ("name", "accepted", "refused"),
    [
        # Its rule is IsExtendedResourceName: 253 characters with "requests." before them, and not Kubernetes' own.
        (
            "domain",
            ("a", "aliyun.com", "a-b.c", "a" * 244, "kubernetes.io.example.com", "x.requests.io"),
            (
                "",
                "A.com",
                "a..b",
                "-a",
                "a-",
                "a_b",
                "a/b",
                "a" * 245,
                "kubernetes.io",
                "x.kubernetes.io",
                "requests.io",
            ),
        ),
        (
            "memory_resource",
            ("g", "gpu-mem", "GPU.mem_2", "a" * 63),
            ("", "-g", "g-", "gpu/mem", "aliyun.com/gpu-mem", "a" * 64, "gpu mem", "gpü"),
        ),
    ],
)
def test_names_are_those_that_the_kubelet_accepts(
    name: str, accepted: tuple[str, ...], refused: tuple[str, ...]
) -> None:
    assert [getattr(read({name: text}), name) for text in accepted] == list(accepted)
    for text in refused:
        assert complaint({name: text}).startswith(f"--{name.replace('_', '-')}: {text!r} ")


# --- What one reads otherwise ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({"policy": "spred"}, "--policy: 'spred' is unknown; did you mean spread?"),
        ({"policy": "x"}, "--policy: 'x' is unknown; write fit or binpack or spread"),
        ({"share_size": "1GB"}, "--share-size: '1GB' is not an amount of memory; did you mean 1GiB?"),
        ({"share_size": "0GiB"}, "--share-size: '0GiB' is too little; the least is 1MiB"),
        ({"nvml_timeout": "5"}, "--nvml-timeout: '5' is not a duration; write it like 5s, 200ms or 2m"),
        ({"nvml_timeout": "0s"}, "--nvml-timeout: '0s' is too short; it has to be longer than 0s"),
        ({"refusal_limit": "-1"}, "--refusal-limit: '-1' is not a whole number from 0 to 1000000"),
        ({"fatal_xids": "13,x"}, "--fatal-xids: 'x' is not a whole number from 1 to 9999"),
        ({"pre_start": "yes"}, "--pre-start: 'yes' is neither true nor false"),
        ({"resources": ""}, "--resources: the list is empty; choose from memory, count"),
        ({"resources": "gpu-mem"}, "--resources: 'gpu-mem' is unknown; write memory or count"),
        ({"condition": "thermall"}, "--condition: 'thermall' is unknown; did you mean thermal?"),
        ({"condition": "off,power"}, "--condition: off stands alone; leave out off or the others"),
        ({"api": "in-cluser"}, "--api: 'in-cluser' does not name an API server; did you mean in-cluster?"),
        ({"exclude_gpus": "GPU-1"}, None),
        ({"gpus": "4xT4"}, None),
        ({"http": "9445"}, None),
        ({"http": "localhost:9445"}, None),
        ({"http": "::1:9445"}, None),
        ({"http": "1.2.3:9445"}, None),
        ({"http": "[fe80::1%eth0]:9445"}, None),
        ({"http": ":65536"}, None),
        ({"api": "ftp://x"}, None),
        ({"api": "http:///x"}, None),
        ({"cdi_kind": "nvidia.com"}, None),
        ({"node_name": "Node_1"}, None),
        ({"device_plugin_dir": "device-plugins"}, None),
    ],
)
def test_a_wrong_value_is_one_line_that_says_where_and_what_to_do(flags: dict[str, str], sentence: str | None) -> None:
    said = complaint(flags)
    ((name, text),) = flags.items()
    assert said == sentence if sentence else said.startswith(f"--{name.replace('_', '-')}: {text!r} ")
    assert "\n" not in said


@pytest.mark.parametrize(
    ("variable", "hint"),
    [
        ("GPUSHARE_POLCY", "did you mean GPUSHARE_POLICY?"),
        ("GPUSHARE_X", "unset it, or see gpu-device-plugin node --help"),
    ],
)
def test_a_variable_that_means_nothing_is_not_passed_over(variable: str, hint: str) -> None:
    assert complaint({}, {variable: "spread"}) == f"{variable}: there is no such setting; {hint}"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("policy: binpack\npolcy: spread\n", "line 2, polcy: there is no such setting; did you mean policy?"),
        (
            "share-size: 1GiB",
            "line 1, share-size: there is no such setting; did you mean share_size?",
        ),
        ("policy: spread\npolicy: binpack\n", "line 2, policy: this file sets it twice; remove one of the lines"),
        ("policy: [spread]", "line 1, policy: a single value is needed here, written like fit|binpack|spread"),
        (
            "fatal_xids: {79: yes}",
            "line 1, fatal_xids: text or a list of texts is needed here, written like XID,...",
        ),
        ("fatal_xids: [[79]]", "line 1, fatal_xids: text or a list of texts is needed here, written like XID,..."),
        ("\n\npolicy: spred", "line 3, policy: 'spred' is unknown; did you mean spread?"),
        ("reserve:", "line 1, reserve: '' is not an amount of memory; write it like 256MiB or 1GiB"),
    ],
)
def test_a_wrong_line_of_a_file_is_named(tmp_path: Path, text: str, sentence: str) -> None:
    flags = in_file(tmp_path, text)
    assert complaint(flags) == f"{flags['config']}, {sentence}"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"- policy", ": this is not a file of settings; write lines like policy: spread"),
        (b"apiVersion: v1\nkind: ConfigMap\ndata:\n  default.yaml: x\n", ": this is an object of the Kubernetes API; "),
        (b"policy: spread\ndevices: [cdi\n", ", line 3: this is not valid YAML: "),
        (b"policy: \x01", ": this is not valid YAML: "),
        # What the parser itself stumbles over: a code that is no character, and more brackets than it can count.
        (b'policy: "\\U0011FFFF"', ": this is not valid YAML: the text cannot be parsed; correct it there"),
        (b"policy: " + b"[" * 3000, ": this is not valid YAML: the text cannot be parsed; correct it there"),
        (b"\xff\xfe", ": this is not UTF-8 text"),
    ],
)
def test_a_file_that_is_none_of_settings_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "node.yaml"
    path.write_bytes(content)
    assert complaint({"config": str(path)}).startswith(f"{path}{said}")


def test_a_missing_file_is_named_with_where_it_was_asked_for(tmp_path: Path) -> None:
    path = str(tmp_path / "none.yaml")
    why = f"cannot read {path}: No such file or directory; name a YAML or JSON file, or a directory with default.yaml"
    assert complaint({"config": path}) == f"--config: {why}"
    assert complaint({}, {"GPUSHARE_CONFIG": path}) == f"GPUSHARE_CONFIG: {why}"


def test_two_resources_of_one_name_are_refused_with_both_places() -> None:
    assert complaint({"count_resource": "gpu"}, {"GPUSHARE_MEMORY_RESOURCE": "gpu"}) == (
        "GPUSHARE_MEMORY_RESOURCE and --count-resource: both resources would be called aliyun.com/gpu; "
        "give them different names"
    )


def test_an_xid_cannot_be_ignored_and_fatal() -> None:
    assert complaint({"ignored_xids": "31,48", "fatal_xids": "48,79"}) == (
        "--ignored-xids and --fatal-xids: XID 48 is both ignored and fatal; name it in one of them only"
    )


def test_custom_limits_need_a_file_that_says_what_they_are() -> None:
    assert complaint({"limits": "custom"}) == (
        "--limits and extra_grant (by default): limits is custom, and no file says what containers get for that; name "
        "it in extra_grant, or choose another value of limits"
    )
    assert read({"limits": "custom", "extra_grant": "/etc/gpushare/extra.grant"}).of(LimitSettings).limits == "custom"


def test_a_gpu_is_not_given_up_between_two_questions() -> None:
    """The default, 10 s, stands on the other side."""
    assert complaint({"blind_after": "10s"}).startswith("probe_interval (by default) and --blind-after: ")


@pytest.mark.parametrize("api", ["in-cluster", "/etc/kube/config", "https://10.0.0.1"])
def test_an_api_without_a_node_name_is_refused(api: str) -> None:
    assert complaint({"api": api}).startswith("--api and node_name (by default): ")


# --- A directory of them ---------------------------------------------------------------------------------------------


def in_folder(folder: Path, **files: str) -> dict[str, str]:
    return {"config": str(mount(folder, **files))}


def of_profile(flags: dict[str, str], label: str, environ: dict[str, str] | None = None) -> NodeSettings:
    sources = Sources(NODE_SETTINGS, flags, environ or {})
    return settings_for(sources, sources.texts(), label)


def complaint_about(flags: dict[str, str], label: str) -> str:
    with pytest.raises(SettingsError) as caught:
        of_profile(flags, label)
    return str(caught.value)


def test_a_profile_beats_the_default_of_its_directory_and_nothing_else(tmp_path: Path) -> None:
    """Four things are set, each by one source more than the one before."""
    written = "policy: {0}\nshare_size: {1}\nreserve: {1}\nrefusal_limit: {2}\n"
    flags = in_folder(tmp_path, default=written.format("spread", "1GiB", 1), big=written.format("binpack", "2GiB", 2))
    environ = {"GPUSHARE_REFUSAL_LIMIT": "3", "GPUSHARE_RESERVE": "3GiB"}
    settings = of_profile({**flags, "reserve": "4GiB"}, "big", environ)
    assert (settings.policy, settings.share_size_mib) == ("binpack", 2048)
    assert (settings.refusal_limit, settings.reserve_mib) == (3, 4096)


@pytest.mark.parametrize("label", ["", "default"])
def test_without_a_profile_the_default_applies_alone(tmp_path: Path, label: str) -> None:
    flags = in_folder(tmp_path, default="share_size: 512MiB", big="share_size: 4GiB")
    assert of_profile(flags, label).share_size_mib == 512
    assert read(flags).share_size_mib == 512


def test_an_absent_default_is_an_empty_one(tmp_path: Path) -> None:
    flags = in_folder(tmp_path, big="share_size: 4GiB")
    assert read(flags) == NODE_SETTINGS()
    assert of_profile(flags, "big").share_size_mib == 4096


@pytest.mark.parametrize("names", [(), ("node.yml", "README"), (".hidden.yaml",)])
def test_a_directory_without_a_file_of_settings_is_refused(tmp_path: Path, names: tuple[str, ...]) -> None:
    """It is the wrong one, or the file in it has a wrong name, and all that is written there would not count."""
    for name in names:
        (tmp_path / name).write_text("share_size: 2GiB", encoding="utf-8")
    assert complaint({"config": str(tmp_path)}) == (
        f"--config: there is no file of settings in {tmp_path}; create default.yaml there, which may be empty, or "
        "name the right directory"
    )
    (tmp_path / "default.yaml").touch()
    assert read({"config": str(tmp_path)}) == NODE_SETTINGS()


def test_hidden_files_and_those_of_other_names_are_none(tmp_path: Path) -> None:
    flags = in_folder(tmp_path, big="")
    for name in (".hidden.yaml", "..yaml", "README", "default.yaml~", "small.yml"):
        (tmp_path / name).write_text("nonsense", encoding="utf-8")
    assert list(Sources(NODE_SETTINGS, flags, {}).texts().profiles) == ["big"]
    assert read(flags) == NODE_SETTINGS()


def test_a_name_that_leads_to_nothing_is_none(tmp_path: Path) -> None:
    """A file that is taken out of a mounted ConfigMap goes a moment before its link."""
    flags = in_folder(tmp_path, default="policy: spread")
    (tmp_path / "gone.yaml").symlink_to("..data/gone.yaml")
    assert read(flags).policy == "spread"
    assert Sources(NODE_SETTINGS, flags, {}).texts().profiles == {}


def test_what_is_read_of_a_mounted_configmap_is_of_one_moment(tmp_path: Path) -> None:
    """While it is swapped again and again, the share size stands now in the one file and now in the other."""
    flags = in_folder(tmp_path, default="share_size: 2GiB", big="")
    enough = threading.Event()

    def swap() -> None:
        while not enough.is_set():
            mount(tmp_path, default="", big="share_size: 2GiB")
            mount(tmp_path, default="share_size: 2GiB", big="")

    with ThreadPoolExecutor() as threads:
        swapping = threads.submit(swap)
        try:
            sizes = {of_profile(flags, "big").share_size_mib for _ in range(300)}
        finally:
            enough.set()
        swapping.result()
    assert sizes == {2048}


def test_a_link_that_leads_to_nothing_is_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / "default.yaml").symlink_to("elsewhere.yaml")
    assert complaint({"config": str(tmp_path)}).startswith(
        f"--config: cannot read {tmp_path}/default.yaml: No such file or directory"
    )


@pytest.mark.parametrize("name", ["default.yml", "default.json", "Default.yaml", "DEFAULT.YML"])
def test_a_default_under_a_name_that_nobody_reads_is_refused(tmp_path: Path, name: str) -> None:
    """Its share size would silently not count."""
    (tmp_path / name).write_text("share_size: 2GiB", encoding="utf-8")
    assert complaint({"config": str(tmp_path)}) == (
        f"{tmp_path}/{name}: a file of this name is ignored; rename it to default.yaml"
    )


def test_another_nodes_profile_may_be_wrong(tmp_path: Path) -> None:
    flags = in_folder(tmp_path, default="", big="share_size: much", small="share_size: 256MiB")
    assert of_profile(flags, "small").share_size_mib == 256
    path = tmp_path / "big.yaml"
    assert complaint_about(flags, "big").startswith(f"{path}, line 1, share_size: 'much' is not an amount of memory")


@pytest.mark.parametrize(
    ("label", "hint"), [("bigg", "did you mean big?"), ("x", "correct the label, or add the file")]
)
def test_a_label_that_names_no_profile_is_an_error(tmp_path: Path, label: str, hint: str) -> None:
    flags = in_folder(tmp_path, default="", big="")
    assert complaint_about(flags, label) == (
        f"the node label gpu-device-plugin/config={label} names no profile: there is no {label}.yaml in {tmp_path}; "
        f"{hint}"
    )


def test_without_a_directory_the_label_means_nothing(tmp_path: Path) -> None:
    assert of_profile(in_file(tmp_path, "policy: spread"), "big").policy == "spread"
    assert of_profile({}, "big") == NODE_SETTINGS()


def test_what_an_agent_needs_before_it_knows_its_profile_stands_in_none(tmp_path: Path) -> None:
    apart = [knob.name for knob in knobs_of(NODE_SETTINGS) if not knob.in_profile]
    assert apart == [
        "log_format",
        "device_plugin_dir",
        "pod_resources_socket",
        "node_name",
        "api",
        "http",
        "memory_dir",
        "mps_dir",
        "cdi_dir",
    ]
    for name in apart:
        in_folder(tmp_path, default=f"{name}: ''" if name == "http" else "", big=f"policy: spread\n{name}: x")
        assert complaint_about({"config": str(tmp_path)}, "big") == (
            f"{tmp_path}/big.yaml, line 2, {name}: an agent needs this before it knows its profile; "
            "write it in default.yaml"
        )


def test_a_profile_may_speak_of_what_only_the_extender_knows(tmp_path: Path) -> None:
    """As any other file."""
    sources = Sources(NODE_SETTINGS, in_folder(tmp_path, big="node_policy: spread"), {}, knobs_of(ExtenderSettings))
    assert settings_for(sources, sources.texts(), "big") == NODE_SETTINGS()


def test_two_places_that_contradict_each_other_are_both_named(tmp_path: Path) -> None:
    flags = in_folder(tmp_path, default="count_resource: gpu", big="\nmemory_resource: gpu")
    assert complaint_about(flags, "big").startswith(
        f"{tmp_path}/big.yaml, line 2, memory_resource and {tmp_path}/default.yaml, line 1, count_resource: both "
    )


@pytest.mark.parametrize("kind", ["a folder", "a pipe", "a file without end"])
@pytest.mark.parametrize("folder", [True, False])
def test_what_is_no_file_of_settings_is_named_and_holds_nobody_up(tmp_path: Path, kind: str, *, folder: bool) -> None:
    path = tmp_path / "big.yaml"
    match kind:
        case "a folder":
            path.mkdir()
            (path / "default.yaml").mkdir()
            why = f"{'' if folder else '/default.yaml'}: it is no regular file"
        case "a pipe":
            os.mkfifo(path)
            why = ": it is no regular file"
        case _:
            with path.open("wb") as file:
                file.truncate(1 << 40)
            why = ": it has more than 65536 bytes, the limit for such a file"
    assert complaint({"config": str(tmp_path if folder else path)}) == (
        f"--config: cannot read {path}{why}; name a YAML or JSON file, or a directory with default.yaml"
    )


# --- Several things at once -------------------------------------------------------------------------------------------


def test_everything_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    """A file with four mistakes, a variable, a flag, and two settings that contradict each other."""
    path = tmp_path / "node.yaml"
    path.write_text("polcy: spread\nreserve: 1\npolicy: [spread]\nprobe_interval: 2m\nreserve: 2GiB\n")
    with pytest.raises(SettingsError) as caught:
        read({"config": str(path), "fatal_xids": "x"}, {"GPUSHARE_POLCY": "spread"})
    error = caught.value
    assert [sentence.partition(": ")[0] for sentence in error.sentences] == [
        f"{path}, line 1, polcy",
        f"{path}, line 3, policy",
        f"{path}, line 5, reserve",
        "GPUSHARE_POLCY",
        f"{path}, line 2, reserve",
        "--fatal-xids",
        f"{path}, line 4, probe_interval and blind_after (by default)",
    ]
    assert str(error).startswith(
        f"7 errors in the settings: (1) {path}, line 1, polcy: there is no such setting; did you"
    )
    assert "\n" not in str(error)


def test_what_cannot_be_read_contradicts_nothing() -> None:
    assert complaint({"probe_interval": "2x", "blind_after": "1s"}).startswith("--probe-interval: '2x' is not a dur")


def test_a_file_of_nothing_but_mistakes_is_not_told_whole(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        read(in_file(tmp_path, "".join(f"xyz{number}: 1\n" for number in range(5000))))
    assert len(caught.value.sentences) == 11
    assert caught.value.sentences[-1] == "4990 more errors; correct these first"


@pytest.mark.parametrize("name", ["GPUSHARE_LOG_LEVEL", "log-level", "--log-level", "LOG_LEVEL", "LogLevel"])
def test_a_setting_that_is_named_as_elsewhere_is_told_its_name_in_a_file(tmp_path: Path, name: str) -> None:
    assert complaint(in_file(tmp_path, f"{name}: debug")).endswith(
        f"{name}: there is no such setting; did you mean log_level?"
    )


# --- Reading them again ----------------------------------------------------------------------------------------------


def test_what_can_change_at_once_does_and_the_rest_waits() -> None:
    running = NODE_SETTINGS()
    wanted = replace(running, policy="spread", share_size_mib=512, http=Address("", 1), log_level="debug")
    assert reload(running, wanted) == Reload(
        settings=replace(running, policy="spread", log_level="debug"),
        applied=("log_level", "policy"),
        waiting=("share_size", "http"),
    )


@pytest.mark.parametrize(
    ("written", "sentence", "changes"),
    [
        ({}, "the configuration was read again, and nothing in it has changed", {}),
        ({"policy": "spread"}, "the configuration was read again", {"applied": ["policy"]}),
        ({"share_size": "2GiB"}, "the configuration was read again", {"waiting": ["share_size"]}),
    ],
)
def test_a_log_says_what_became_of_changes_and_that_there_were_none(
    written: dict[str, str], sentence: str, changes: dict[str, list[str]]
) -> None:
    outcome = reload(read(), read(written))
    assert (outcome.sentence, outcome.changes) == (sentence, changes)


def test_what_the_kubelet_was_told_waits_for_a_restart() -> None:
    """Device IDs, resource names, options, directories, the API: all were used to set up what is running."""
    assert {knob.name for knob in knobs_of(NODE_SETTINGS) if not knob.live} == {
        *("gpus", "exclude_gpus", "share_size", "reserve", "domain", "memory_resource", "count_resource", "resources"),
        "unified_memory",
        *("pre_start", "device_plugin_dir", "pod_resources_socket", "node_name", "api", "http", "log_format"),
        *("mps_dir", "memory_dir", "extra_grant", "cdi_dir", "mig_domain"),
    }


# --- The one description ---------------------------------------------------------------------------------------------


def test_every_setting_explains_itself_in_a_sentence() -> None:
    assert [
        knob.name for knob in knobs_of(NODE_SETTINGS) if not knob.help[0].isupper() or not knob.help.endswith(".")
    ] == []
