"""Where the API server is, and how we log in."""
# ruff: noqa: S106 - these tokens are made up

import base64
import json
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_device_plugin.kubernetes.client.config import (
    ClusterConfig,
    ClusterConfigError,
    config_for,
    from_kubeconfig,
    in_cluster,
)

ENVIRON = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}


@pytest.fixture
def account(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text("t\n")
    (tmp_path / "ca.crt").write_text("c\n")
    return tmp_path


def test_a_pod_uses_its_service_account(account: Path) -> None:
    assert in_cluster(ENVIRON, account) == ClusterConfig(
        "https://10.0.0.1:443", ca_file=account / "ca.crt", token_file=account / "token"
    )


def test_an_address_of_ipv6_is_bracketed(account: Path) -> None:
    assert in_cluster({**ENVIRON, "KUBERNETES_SERVICE_HOST": "fd00::1"}, account).url == "https://[fd00::1]:443"


def test_outside_a_cluster_it_says_so(account: Path) -> None:
    with pytest.raises(ClusterConfigError, match="not a pod of a cluster"):
        in_cluster({}, account)


def test_a_pod_without_an_account_is_told_what_to_set(tmp_path: Path) -> None:
    with pytest.raises(ClusterConfigError, match=r"token is missing; set automountServiceAccountToken: true"):
        in_cluster(ENVIRON, tmp_path)


def kubeconfig(tmp_path: Path, *, user: dict[str, Any] | None = None, cluster: dict[str, Any] | None = None) -> Path:
    path = tmp_path / "config"
    path.write_text(
        yaml.safe_dump(
            {
                "current-context": "here",
                "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": {"server": "https://example.test:6443/", **(cluster or {})}}],
                "users": [{"name": "u", "user": {"token": "t"} if user is None else user}],
            }
        )
    )
    return path


def test_a_kubeconfig_with_a_token(tmp_path: Path) -> None:
    config = from_kubeconfig(kubeconfig(tmp_path, cluster={"certificate-authority": "ca.crt"}))
    assert config == ClusterConfig("https://example.test:6443", ca_file=tmp_path / "ca.crt", token="t")


def test_a_kubeconfig_with_a_client_certificate(tmp_path: Path) -> None:
    data = {f"client-{what}-data": base64.b64encode(what.encode()).decode() for what in ("certificate", "key")}
    config = from_kubeconfig(kubeconfig(tmp_path, user=data, cluster={"insecure-skip-tls-verify": True}))
    assert (config.cert_pem, config.key_pem, config.verify, config.token) == ("certificate", "key", False, "")


def test_a_kubeconfig_with_files(tmp_path: Path) -> None:
    files = {"client-certificate": "c.pem", "client-key": "/k.pem", "tokenFile": "token"}
    config = from_kubeconfig(kubeconfig(tmp_path, user=files))
    assert (config.cert_file, str(config.key_file)) == (tmp_path / "c.pem", "/k.pem")
    assert config.token_file == tmp_path / "token"


@pytest.mark.parametrize(
    "user", [{"exec": {"command": "aws"}}, {"auth-provider": {"name": "gcp"}}, {"username": "a", "password": "hunter2"}]
)
def test_a_login_that_we_do_not_do_is_named(tmp_path: Path, user: dict[str, Any]) -> None:
    with pytest.raises(ClusterConfigError, match=r"user 'u' logs in .* not supported; make a kubeconfig") as refused:
        from_kubeconfig(kubeconfig(tmp_path, user=user))
    assert "hunter2" not in str(refused.value)


def test_a_current_context_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path)
    path.write_text(path.read_text().replace("current-context: here", "current-context: there"))
    with pytest.raises(ClusterConfigError, match="has no context named 'there'"):
        from_kubeconfig(path)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"token: [hunter2", r"is not YAML, line 1"),
        (b"just text", "names no context to use; choose one with kubectl config use-context"),
        (b"", "names no context to use; choose one with kubectl config use-context"),
        (b"\xff", "cannot be read"),
    ],
)
def test_a_broken_kubeconfig_is_named_and_not_quoted(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "config"
    path.write_bytes(content)
    with pytest.raises(ClusterConfigError, match=complaint) as refused:
        from_kubeconfig(path)
    assert str(path) in str(refused.value)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/nowhere", r"/nowhere cannot be read: No such file or directory; is it the path"),
        ("~/.kube/config", "a shell replaces ~ only at the beginning of a word, not after ="),  # --api=~/.kube/config
    ],
)
def test_a_missing_kubeconfig_is_named(path: str, said: str) -> None:
    with pytest.raises(ClusterConfigError, match=said):
        from_kubeconfig(Path(path))


@pytest.mark.parametrize(
    ("cluster", "said"),
    [
        ({"server": ""}, "has no https:// server"),
        ({"proxy-url": "http://proxy"}, "proxy-url"),
        ({"certificate-authority-data": "%%%"}, "certificate-authority-data is not a certificate in base64"),
    ],
)
def test_a_cluster_that_cannot_be_reached_by_us_is_refused(tmp_path: Path, cluster: dict[str, Any], said: str) -> None:
    with pytest.raises(ClusterConfigError, match=said):
        from_kubeconfig(kubeconfig(tmp_path, cluster=cluster))


def test_certificates_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    missing = tmp_path / "ca.crt"
    with pytest.raises(ClusterConfigError, match=r"ca\.crt\) cannot be used"):
        ClusterConfig("https://example.test", ca_file=missing).tls()
    missing.write_text("no certificate")
    with pytest.raises(ClusterConfigError, match=r"ca\.crt\) cannot be used"):
        ClusterConfig("https://example.test", ca_file=missing).tls()


def test_no_secret_is_in_the_repr() -> None:
    config = ClusterConfig("https://example.test", token="hunter2", key_pem="hunter2", cert_pem="hunter2")
    assert "hunter2" not in repr(config)


# --- In every form that kubectl reads ---------------------------------------------------------------------------------


PEM = "# Zertifikat f\u00fcr Tests\n-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n" * 3
CODED = base64.b64encode(PEM.encode()).decode()
WRAPPED = "\n".join(textwrap.wrap(CODED, 76))


def with_data(data: str) -> str:
    return f"""
current-context: x
contexts: [{{name: x, context: {{cluster: c, user: u}}}}]
users: [{{name: u, user: {{token: t}}}}]
clusters:
- name: c
  cluster:
    server: https://example.test
    certificate-authority-data: {data}
"""


def block(text: str) -> str:
    return textwrap.indent(f"\n{text}", " " * 6)


@pytest.mark.parametrize(
    "content",
    [
        with_data(CODED),
        with_data(f"|{block(WRAPPED)}"),
        with_data(f"|-{block(WRAPPED)}"),
        with_data('"' + WRAPPED.replace("\n", "\\r\\n") + '"'),
        with_data(f"!!binary |{block(base64.encodebytes(WRAPPED.encode()).decode())}"),
        with_data(f"!!binary {base64.b64encode(CODED.encode()).decode()}"),
        with_data(CODED) + "---\nanother: document\n",
        json.dumps(yaml.safe_load(with_data(CODED)), indent="\t"),
    ],
    ids=[
        "plain",
        "wrapped",
        "stripped",
        "escaped",
        "binary of wrapped",
        "binary",
        "of two documents",
        "JSON with tabs",
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_data_are_read_in_every_form_that_kubectl_reads(tmp_path: Path, content: str, encoding: str) -> None:
    path = tmp_path / "config"
    path.write_bytes(content.encode(encoding))
    assert from_kubeconfig(path).ca_pem == PEM.replace("\u00fc", "")


@pytest.mark.parametrize("data", [f">{block(WRAPPED)}", f'"{WRAPPED.replace(chr(10), " ")}"', CODED[:-1] + "\u00fc"])
def test_data_that_kubectl_refuses_are_refused(tmp_path: Path, data: str) -> None:
    path = tmp_path / "config"
    path.write_text(with_data(data))
    with pytest.raises(ClusterConfigError, match="certificate-authority-data is not a certificate in base64"):
        from_kubeconfig(path)


def test_data_count_before_files(tmp_path: Path) -> None:
    """As for kubectl, also where the file is not there."""
    names = ("client-certificate", "client-key")
    user = {**dict.fromkeys(names, "absent.pem"), **{f"{name}-data": CODED for name in names}}
    cluster = {"certificate-authority": "absent.pem", "certificate-authority-data": CODED}
    config = from_kubeconfig(kubeconfig(tmp_path, user=user, cluster=cluster))
    assert (config.ca_file, config.cert_file, config.key_file) == (None, None, None)
    assert all([config.ca_pem, config.cert_pem, config.key_pem])


def test_a_certificate_may_be_a_file_and_its_key_data(tmp_path: Path) -> None:
    certificate, key = keypair(tmp_path)
    coded = {name: base64.b64encode(path.read_bytes()).decode() for name, path in (("c", certificate), ("k", key))}
    for user in (
        {"client-certificate": certificate.name, "client-key-data": coded["k"]},
        {"client-certificate-data": coded["c"], "client-key": str(key)},
        {"client-certificate-data": coded["c"], "client-key-data": coded["k"]},
        {"client-certificate": str(certificate), "client-key": key.name},
    ):
        from_kubeconfig(kubeconfig(tmp_path, user=user)).tls()
    with pytest.raises(ClusterConfigError, match="cannot be used"):
        from_kubeconfig(kubeconfig(tmp_path, user={"client-key-data": coded["k"]})).tls()


def keypair(folder: Path) -> tuple[Path, Path]:
    certificate, key = folder / "c.pem", folder / "k.pem"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=a"]
    subprocess.run([*words, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    return certificate, key


def test_of_two_entries_of_one_name_the_first_counts(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(
        "{clusters: null, current-context: c, contexts: [{name: c, context: {cluster: k, user: u}}],"
        " users: [{name: u, user: {tokenFile: token}}, {name: u, user: {token: other}}]}"
    )
    with pytest.raises(ClusterConfigError, match=f"kubeconfig {path} has no cluster named 'k'"):
        config_for(str(path), {})
    path.write_text(path.read_text().replace("null", "[{name: k, cluster: {server: https://a}}]"))
    config = config_for(str(path), {})
    assert (config.token_file, config.token) == (tmp_path / "token", "")


def test_an_address_may_end_with_a_slash() -> None:
    assert config_for("http://localhost:8001/k8s/", {}) == ClusterConfig("http://localhost:8001/k8s")
