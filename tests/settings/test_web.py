"""The settings of the page's server in a cluster."""

from pathlib import Path

import pytest

from gpu_device_plugin.settings.forms import Address
from gpu_device_plugin.settings.knobs import SettingsError
from gpu_device_plugin.settings.sources import Sources
from gpu_device_plugin.settings.web import WebSettings


def read(**flags: str) -> WebSettings:
    return Sources(WebSettings, flags, {}).read()


def test_without_settings_every_address_is_served_without_encryption() -> None:
    found = read()
    assert found.http == Address("", 9404)
    assert found.exposed


def test_a_certificate_or_loopback_keeps_tokens_from_the_network() -> None:
    assert not read(tls_cert="/c.pem", tls_key="/k.pem").exposed
    assert not read(http="127.0.0.1:1234").exposed
    assert read(http="0.0.0.0:1234").exposed


@pytest.mark.parametrize("flag", ["tls_cert", "tls_key"])
def test_a_certificate_and_its_key_go_together(flag: str) -> None:
    with pytest.raises(SettingsError, match="a certificate and its key go together"):
        read(**{flag: "/x.pem"})


def test_agents_are_where_the_setting_says_else_beside_the_server(tmp_path: Path) -> None:
    assert read().home(tmp_path) == "gpushare"
    (tmp_path / "namespace").write_text("gpus\n")
    assert read().home(tmp_path) == "gpus"
    assert read(agents_namespace="others").home(tmp_path) == "others"


@pytest.mark.parametrize("address", ["grafana.example", "javascript:alert(1)", "https://a b"])
def test_the_page_links_to_pages_only(address: str) -> None:
    assert read(dashboard="https://grafana.example/d/gpushare").dashboard == "https://grafana.example/d/gpushare"
    with pytest.raises(SettingsError, match="begin it with http:// or https://"):
        read(dashboard=address)
