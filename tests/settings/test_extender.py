"""Settings of the extender: what is its own, and what it shares with the node agent."""

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_device_plugin.features.extender_features import EXTENDER_SETTINGS
from gpu_device_plugin.features.node_features import NODE_SETTINGS
from gpu_device_plugin.settings.extender import ExtenderSettings
from gpu_device_plugin.settings.forms import Address
from gpu_device_plugin.settings.knobs import Reload, SettingsError, knobs_of, reload
from gpu_device_plugin.settings.sources import Sources


def read(flags: dict[str, str] | None = None, environ: dict[str, str] | None = None) -> ExtenderSettings:
    return Sources(EXTENDER_SETTINGS, flags or {}, environ or {}, knobs_of(NODE_SETTINGS)).read()


def complaint(flags: dict[str, str] | None = None, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(SettingsError) as caught:
        read(flags, environ)
    return str(caught.value)


def test_every_default_is_what_its_text_says() -> None:
    assert read() == read({knob.name: knob.default for knob in knobs_of(EXTENDER_SETTINGS)}) == EXTENDER_SETTINGS()


@pytest.mark.parametrize(
    "flags",
    [{"listen": ""}, {"listen": "off"}, {"api": "off"}, {"identity": "a\nb"}, {"lease_name": "My Lease"}],
)
def test_what_only_an_extender_refuses_is_told_in_one_line(flags: dict[str, str]) -> None:
    ((name, text),) = flags.items()
    said = complaint(flags)
    assert said.startswith(f"--{name.replace('_', '-')}: {text!r} ")
    assert "\n" not in said


# --- What goes together ----------------------------------------------------------------------------------------------


def test_clients_cannot_be_checked_without_tls() -> None:
    assert complaint({"client_ca": "/ca.crt"}) == (
        "--client-ca and tls_cert (by default): client certificates need TLS; give tls_cert and tls_key too"
    )


def test_an_election_needs_a_lease() -> None:
    assert complaint({"leader_election": "true", "lease_name": ""}) == (
        "--leader-election and --lease-name: leader election needs a lease_name; give one"
    )


TLS = {"tls_cert": "/tls.crt", "tls_key": "/tls.key"}


@pytest.mark.parametrize(
    ("flags", "exposed"),
    [
        ({}, False),
        ({"listen": "127.8.0.1:1"}, False),
        ({"listen": "[::1]:1"}, False),
        ({"listen": ":32766"}, True),
        ({"listen": "0.0.0.0:32766"}, True),
        ({"listen": "[::]:32766"}, True),
        ({"listen": "10.0.0.1:32766"} | TLS, True),  # nobody has to show who he is
        ({"listen": "10.0.0.1:32766", "client_ca": "/ca.crt"} | TLS, False),
    ],
)
def test_it_is_exposed_where_strangers_can_have_pods_bound(
    flags: dict[str, str],
    exposed: bool,  # noqa: FBT001 - a column of the table
) -> None:
    assert read(flags).exposed is exposed


# --- Who and where we are --------------------------------------------------------------------------------------------


def test_the_identity_is_the_pods_name_else_the_hosts() -> None:
    assert read({}, {"POD_NAME": "extender-0"}).holder() == "extender-0"
    assert read({}, {"POD_NAME": "extender-0", "GPUSHARE_IDENTITY": "me"}).holder() == "me"
    assert read().holder() == socket.gethostname()


def test_the_lease_is_in_the_pods_own_namespace(tmp_path: Path) -> None:
    (tmp_path / "namespace").write_text("gpu-system", encoding="utf-8")
    assert read().namespace(tmp_path) == "gpu-system"
    assert read({"lease_namespace": "other"}).namespace(tmp_path) == "other"
    assert read().namespace(tmp_path / "nothing") == "kube-system"


# --- Beside the node agent -------------------------------------------------------------------------------------------


def test_one_environment_and_one_file_can_serve_both_programs(tmp_path: Path) -> None:
    """Each takes what is its own, and what both have."""
    file = tmp_path / "both.yaml"
    file.write_text("share_size: 256MiB\ngpu_policy: spread\nexclude_gpus: [0, 1]\n", encoding="utf-8")
    environ = {"GPUSHARE_CONFIG": str(file), "GPUSHARE_DOMAIN": "example.com", "GPUSHARE_POLICY": "spread"}
    extender = read({}, environ | {"GPUSHARE_LEASE_NAME": "l", "NODE_NAME": "n"})
    agent = Sources(
        NODE_SETTINGS, {}, environ | {"GPUSHARE_LEASE_NAME": "l", "NODE_NAME": "n"}, knobs_of(EXTENDER_SETTINGS)
    ).read()
    assert extender == EXTENDER_SETTINGS(domain="example.com", gpu_policy="spread", lease_name="l")
    assert agent == NODE_SETTINGS(
        domain="example.com", policy="spread", share_size_mib=256, exclude_gpus=("0", "1"), node_name="n"
    )


@pytest.mark.parametrize(
    ("variable", "hint"),
    [
        ("GPUSHARE_LISTN", "did you mean GPUSHARE_LISTEN?"),
        ("GPUSHARE_SHARE_SIZ", "did you mean GPUSHARE_SHARE_SIZE?"),  # the agent's
        ("GPUSHARE_X", "unset it, or see gpu-device-plugin extender --help"),
    ],
)
def test_a_variable_that_means_nothing_to_either_is_not_passed_over(variable: str, hint: str) -> None:
    assert complaint({}, {variable: "x"}) == f"{variable}: there is no such setting; {hint}"


def test_what_both_have_means_the_same() -> None:
    """One variable, one form, and one default but for where they listen."""
    agents = {knob.name: knob for knob in knobs_of(NODE_SETTINGS)}
    both = [(agents[knob.name], knob) for knob in knobs_of(EXTENDER_SETTINGS) if knob.name in agents]
    assert {knob.name for _, knob in both} == {
        *("http", "api", "domain", "memory_resource", "count_resource", "log_level", "log_format")
    }
    assert [knob.name for agents_, knob in both if agents_.default != knob.default] == ["http"]
    assert [knob.name for agents_, knob in both if agents_.form != knob.form] == ["api"]


# --- The former name of 0.1.0 ----------------------------------------------------------------------------------------


def test_the_name_of_0_1_0_is_not_read_any_more(tmp_path: Path) -> None:
    file = tmp_path / "extender.yaml"
    file.write_text("drain: 1s\n", encoding="utf-8")
    assert "drain: there is no such setting" in complaint({"config": str(file)})


def test_a_hint_has_present_names_only() -> None:
    assert complaint({}, {"GPUSHARE_DRAINS": "1s"}) == (
        "GPUSHARE_DRAINS: there is no such setting; did you mean GPUSHARE_DOMAIN?"
    )


# --- Reading them again, and the one description ---------------------------------------------------------------------


def test_policies_and_times_change_at_once_and_the_rest_waits() -> None:
    running = ExtenderSettings()
    wanted = replace(running, node_policy="spread", gpu_policy="spread", vanished_grace_s=1.0, listen=Address("::1", 1))
    assert reload(running, wanted) == Reload(
        settings=replace(wanted, listen=running.listen),
        applied=("node_policy", "gpu_policy", "vanished_grace"),
        waiting=("listen",),
    )
    assert {knob.name for knob in knobs_of(EXTENDER_SETTINGS) if knob.live} == {
        *("node_policy", "gpu_policy", "vanished_grace", "bind_timeout", "idle_warning", "node_start", "log_level")
    }


def test_every_setting_explains_itself_in_a_sentence() -> None:
    assert [
        knob.name for knob in knobs_of(EXTENDER_SETTINGS) if not knob.help[0].isupper() or not knob.help.endswith(".")
    ] == []
