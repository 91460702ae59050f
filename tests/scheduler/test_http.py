"""The extender as others meet it: its addresses, its certificates, bad requests, signals."""

import asyncio
import errno
import json
import logging
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gpu_device_plugin import __version__
from gpu_device_plugin.features.extender_features import EXTENDER_SETTINGS
from gpu_device_plugin.programs.extender.extender_program import main
from gpu_device_plugin.settings.forms import Address
from gpu_device_plugin.settings.knobs import UsageError
from gpu_device_plugin.settings.sources import Sources
from tests import builders
from tests.builders import GPU_MEM, container
from tests.cluster_double.api_server import ApiServer
from tests.patience import eventually, patience
from tests.ports import free_port
from tests.scheduler.harness import PREFIX, SECRET, ExtenderWorld, world


async def get(w: ExtenderWorld, url: str) -> tuple[int, str]:
    async with w.http.get(url) as answer:
        return answer.status, await answer.text()


# --- Addresses -------------------------------------------------------------------------------------------------------


async def test_probes_and_metrics_have_an_address_of_their_own() -> None:
    """The kubelet and Prometheus cannot reach the pod's loopback, where the scheduler calls."""
    async with world() as w:
        w.node("a", 8)
        await w.start()
        w.pod("p", mem=3)
        await w.schedule()
        probes, verbs = w.only.probes, w.only.url
        for path in ("/healthz", "/livez", "/readyz"):
            assert (await get(w, probes + path))[0] == (await get(w, verbs + path))[0] == 200
        status, metrics = await get(w, f"{probes}/metrics")
        assert status == 200
        assert (await get(w, f"{verbs}/metrics"))[0] == 404
        assert (await get(w, f"{probes}{PREFIX}/inspect"))[0] == 404
        assert (await get(w, f"{verbs}/version")) == (200, f"{__version__}\n")
        values = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if not line.startswith("#"))
        bound = {name: value for name, value in values.items() if "bind" in name and "total" in name}
        assert list(bound.values()) == ["1.0"], bound


async def test_without_an_address_for_them_there_are_none() -> None:
    async with world(http="off") as w:
        w.node("a", 8)
        await w.start()
        assert w.only.extender.ports.keys() == {"listen"}
        assert (await get(w, f"{w.only.url}/readyz"))[0] == 200


async def test_e16_nobody_from_elsewhere_reaches_the_verbs_unless_told_so() -> None:
    assert Sources(EXTENDER_SETTINGS, {}, {}).read().listen.host == "127.0.0.1"
    async with world(listen="0.0.0.0:0") as w:
        await w.start()
        assert any("every client that reaches this address can bind pods" in line for line in w.logs)


@pytest.mark.parametrize(("setting", "other"), [("listen", {"http": "off"}), ("http", {"listen": "127.0.0.1:0"})])
def test_an_address_that_is_taken_is_one_sentence_about_its_setting(setting: str, other: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        flags = {setting: address, "api": "http://127.0.0.1:1", **other}
        sources = Sources(EXTENDER_SETTINGS, flags, {})
        with pytest.raises(UsageError) as caught:
            main(sources, sources.texts(), sources.read())
    assert str(caught.value).startswith(f"{setting}: cannot listen on {address}: another program listens there already")
    assert str(caught.value).count(address) == 1


class Failing(EXTENDER_SETTINGS):  # type: ignore[valid-type,misc]
    """Settings at which the system fails."""

    @property
    def exposed(self) -> bool:
        raise OSError(errno.EIO, "Input/output error", "/dev/sda")


def test_an_error_of_the_system_is_no_misuse_and_its_cause_is_told(caplog: pytest.LogCaptureFixture) -> None:
    settings = Failing(listen=Address("127.0.0.1", 0), http=None, api="http://127.0.0.1:1")
    sources = Sources(EXTENDER_SETTINGS, {}, {})
    assert main(sources, sources.texts(), settings) == 1
    (record,) = (each for each in caplog.records if each.levelno == logging.CRITICAL)
    assert record.getMessage() == "exits for a restart"
    assert record.why == "[Errno 5] Input/output error: '/dev/sda'"  # type: ignore[attr-defined]
    assert record.exc_info is not None


# --- Certificates ----------------------------------------------------------------------------------------------------

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made with openssl")


def certificate(folder: Path, who: str) -> None:
    """Write ``who.crt`` and ``who.key``; the certificate signs itself."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-keyout", folder / f"{who}.key", "-out", folder / f"{who}.crt", "-subj", f"/CN={who}",
         "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"],
        check=True, capture_output=True,
    )  # fmt: skip


def client(folder: Path, who: str = "") -> ssl.SSLContext:
    tls = ssl.create_default_context(cafile=folder / "server.crt")
    if who:
        tls.load_cert_chain(folder / f"{who}.crt", folder / f"{who}.key")
    return tls


@needs_openssl
async def test_e16_with_certificates_only_the_scheduler_is_answered(tmp_path: Path) -> None:
    for who in ("server", "scheduler", "stranger"):
        certificate(tmp_path, who)
    files = {
        "tls_cert": f"{tmp_path}/server.crt",
        "tls_key": f"{tmp_path}/server.key",
        "client_ca": f"{tmp_path}/scheduler.crt",
    }
    async with world(files) as w:
        w.node("a", 8)
        await w.start()
        w.pod("p", mem=3)
        assert (await w.schedule(tls=client(tmp_path, "scheduler")))["p"].node == "a"
        w.pod("q", mem=3)
        for who in ("stranger", ""):
            found = (await w.schedule(tls=client(tmp_path, who)))["q"]
            assert (found.node, found.reason) == ("", "SchedulerError")
        # The kubelet's probes need no certificate.
        assert (await get(w, f"{w.only.probes}/readyz"))[0] == 200


# --- Bad requests ----------------------------------------------------------------------------------------------------


async def test_what_no_scheduler_sends_is_answered_with_a_sentence_and_changes_nothing() -> None:
    """Every verb, with a body that is no JSON, no UTF-8, without end, or of a pod with an absurd limit."""
    pod = builders.pod("p", container(limits={GPU_MEM: SECRET}), uid="u")
    bodies = (
        b'{"Pod": "hunter2',
        b'{"Pod": "\xff\xfehunter2"}',
        b'{"Pod":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        json.dumps({"Pod": pod, "NodeNames": ["a"]}).encode(),
    )
    async with world() as w:
        w.node("a", 8)
        await w.start()
        for body in bodies:
            said: dict[str, Any] = {}
            for verb in ("filter", "prioritize", "bind", "preempt"):
                async with w.http.post(f"{w.only.url}{PREFIX}/{verb}", data=body) as answer:
                    assert answer.status == 200
                    text = await answer.text()
                    assert SECRET not in text
                    said[verb] = json.loads(text)
            assert said["filter"]["Error"]
            assert said["bind"]["Error"]
        assert w.only.free("a") == [8]
        assert w.only.extender.fleet.entries == {}
        assert not [line for line in w.logs if "Traceback" in line]


async def test_names_from_the_outside_do_not_lead_elsewhere() -> None:
    """Names become parts of a path of the API server."""
    async with world() as w:
        w.node("a", 8)
        await w.start()
        w.pod("p", mem=1)
        for name in ("../../nodes/a", "p/status", "p?x=1", "p%2fstatus", "", "\x00", "p\r\nX: y"):
            body = {"PodName": name, "PodNamespace": "default", "PodUID": "u", "Node": "a"}
            assert (await w.ask("bind", body))["Error"]
        allowed = {("list", "pods"), ("watch", "pods"), ("list", "nodes"), ("watch", "nodes"), ("get", "pods")}
        allowed.add(("list", "capacitybuffers"))  # whether a former setting left any
        assert {(request.verb, request.resource) for request in w.api.requests} <= allowed
        assert not [line for line in w.logs if "Traceback" in line]


async def test_other_paths_and_methods_are_refused() -> None:
    async with world() as w:
        await w.start()
        assert (await get(w, f"{w.only.url}{PREFIX}/filter"))[0] == 405
        assert (await get(w, f"{w.only.url}/debug/pprof/"))[0] == 404
        async with w.http.post(f"{w.only.url}{PREFIX}/inspect") as answer:
            assert answer.status == 405


async def test_too_large_a_body_is_not_even_read() -> None:
    async with world() as w:
        w.node("a", 8)
        await w.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", w.only.extender.ports["listen"])
        writer.write(f"POST {PREFIX}/filter HTTP/1.1\r\nHost: x\r\nContent-Length: {1 << 40}\r\n\r\n".encode())
        assert b" 413 " in await reader.readline()
        writer.close()
        w.pod("p", mem=8)
        assert (await w.schedule())["p"].node == "a"


# --- Settings that change, and the end -------------------------------------------------------------------------------


async def test_settings_that_are_read_again_take_effect() -> None:
    async with world() as w:
        w.node("a", 8, 8)
        await w.start()
        w.pod("p", mem=1)
        await w.schedule()
        w.only.extender.reload(
            Sources(EXTENDER_SETTINGS, w.settings | {"gpu_policy": "spread", "vanished_grace": "0s"}, {}).read()
        )
        w.pod("q", mem=1)
        await w.schedule()
        assert w.only.free("a") == [7, 7]
        w.run("q")
        await w.seen()
        w.force_delete("q")
        await w.until(lambda: w.only.free("a") == [7, 8])


async def test_e17_the_program_reads_its_settings_again_on_sighup_and_ends_on_sigterm(tmp_path: Path) -> None:
    """A file that cannot be used changes nothing."""
    config, log = tmp_path / "config.yaml", tmp_path / "log"
    config.write_text("gpu_policy: binpack\n")
    port = free_port()
    async with ApiServer() as api, aiohttp.ClientSession() as http:
        api.add(builders.node("a", mem=8, count=1))
        command = [
            Path(sys.executable).with_name("gpu-device-plugin"),
            "extender",
            "--config",
            config,
            "--api",
            api.url,
        ]
        environment = {name: text for name, text in os.environ.items() if not name.startswith("GPUSHARE_")}
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *map(str, command), f"--listen=127.0.0.1:{port}", "--http=off", "--log-format=json",
                stdout=output, stderr=output, env=environment,
            )  # fmt: skip

        async def said(words: str) -> None:
            await eventually(lambda: words in log.read_text() or process.returncode is not None, f"{words!r} is logged")
            assert words in log.read_text()

        try:
            await said("the cluster has been read")
            pod = builders.pod("p", container(mem=1), uid="u")
            args = {"Pod": pod, "Nodes": None, "NodeNames": ["a"]}
            async with http.post(f"http://127.0.0.1:{port}{PREFIX}/filter", json=args) as answer:
                assert (await answer.json())["NodeNames"] == ["a"]
            config.write_text("gpu_policy: best\n")
            process.send_signal(signal.SIGHUP)
            await said("the configuration stays as it was")
            config.write_text("gpu_policy: spread\nlisten: 127.0.0.1:1\n")
            await said("the configuration was read again")  # by itself
            process.send_signal(signal.SIGTERM)
            async with patience(process):
                assert await process.wait() == 0, log.read_text()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    assert GPU_MEM not in log.read_text()
