"""Read on this node what the doctor examines: the files of MPS, and the agent.

Of the running agent these are its command line, and the answers of its HTTP endpoints.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from gpu_device_plugin import metrics
from gpu_device_plugin.core.report.finding import Unknown
from gpu_device_plugin.core.report.findings.symptoms import AgentSeen
from gpu_device_plugin.core.report.gauges import STREAM_UP
from gpu_device_plugin.features.mps.contract import MpsStatus
from gpu_device_plugin.features.mps.rules.daemon_files import MPS_FILES
from gpu_device_plugin.features.mps.rules.mps_admission import BEAT_S, NOT_THERE, SILENT
from gpu_device_plugin.file_link import FileLink, HelperWords
from gpu_device_plugin.kubelet.procfs import boot_time
from gpu_device_plugin.settings.knobs import ENVIRONMENT_PREFIX, PROGRAM
from gpu_device_plugin.settings.node import NodeSettings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from gpu_device_plugin.features.mps.contract import MpsGpu
    from gpu_device_plugin.settings.forms import Address

_SUPERVISOR = HelperWords("the MPS supervisor", NOT_THERE, NOT_THERE, SILENT, BEAT_S)
_MODULE = PROGRAM.replace("-", "_")


# --- Memory limits ----------------------------------------------------------------------------------------------------


def mps_state(directory: Path) -> tuple[Mapping[str, MpsGpu] | str, tuple[str, ...]]:
    """Return the daemons of the node's MPS supervisor by the GPU's UUID, or why there is none; and what one has left.

    These are the GPUs (by UUID, sorted) that a supervisor which no longer runs did not give back.
    """
    link = FileLink(directory, MPS_FILES, _SUPERVISOR, boot_time)
    state = link.read_state()
    if not isinstance(state, str):
        return state.gpus, ()
    left = {} if link.last is None else link.last.gpus
    return state, tuple(sorted(uuid for uuid, gpu in left.items() if gpu.status is not MpsStatus.STOPPED))


# --- The running agent ------------------------------------------------------------------------------------------------


class Running(NamedTuple):
    """A running agent."""

    arguments: list[str]
    environ: dict[str, str]
    """Its environment variables that are settings."""
    root: Path
    """Its root directory, as seen from here."""


def agents(proc: Path) -> list[Running] | None:
    """Return the running agents, None if processes are not visible here."""
    try:
        folders = sorted((path for path in proc.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
    except OSError:
        return None
    found = []
    for folder in folders:
        words = _zero_separated(folder / "cmdline")
        arguments = _arguments(words)
        if arguments is not None:
            pairs = (each.partition("=") for each in _zero_separated(folder / "environ"))
            environ = {
                name: value for name, _, value in pairs if name == "NODE_NAME" or name.startswith(ENVIRONMENT_PREFIX)
            }
            found.append(Running(arguments, environ, folder / "root"))
    return found if folders else None


def _arguments(words: list[str]) -> list[str] | None:
    """Return the arguments of a `node` command line, from the command on; None for any other command line."""
    for at, word in enumerate(words[:4]):
        program = word.rpartition("/")[2] == PROGRAM or (word == _MODULE and words[at - 1] == "-m")
        if program and words[at + 1 : at + 2] == [NodeSettings.COMMAND]:
            return words[at + 1 :]
    return None


def _zero_separated(path: Path) -> list[str]:
    try:
        return [each.decode(errors="replace") for each in path.read_bytes().rstrip(b"\0").split(b"\0")]
    except OSError:
        return []


async def ask(http: Address | None, within_s: float) -> AgentSeen | Unknown:
    """Return the readiness and the metrics that the agent serves; each request may take `within_s` seconds."""
    if http is None:
        text = "the agent serves no HTTP endpoints, so its state is not visible"
        return Unknown("agent-without-http", text, "start it with --http=:9445")
    host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(http.host, http.host)  # noqa: S104 - read, not bound
    where = f"http://{host}:{http.port}"
    try:
        timeout = aiohttp.ClientTimeout(total=within_s)
        async with aiohttp.ClientSession(timeout=timeout, trust_env=False) as session:
            async with session.get(f"{where}/readyz") as answer:
                said = await answer.text()
                missing = () if answer.status == 200 else tuple(said.splitlines())
            async with session.get(f"{where}/metrics") as answer:
                metrics = await answer.text()
    except TimeoutError:
        return AgentSeen(
            where, (f"{where} does not answer within {within_s:g} s; see the agent's log, and restart it",)
        )
    except (aiohttp.ClientError, OSError, UnicodeDecodeError) as problem:
        text = "no agent answers at {address}: {problem}"
        advice = (
            "it answers inside its own pod: kubectl -n gpushare exec POD -- gpu-device-plugin doctor; or name the "
            "address with --http"
        )
        return Unknown("agent-unreachable", text, advice, address=where, problem=str(problem))
    return _seen(where, missing, metrics)


def _seen(where: str, missing: Iterable[str], text: str) -> AgentSeen:
    try:
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    except (ValueError, LookupError):
        samples = []  # something else than an agent answers there
    return AgentSeen(
        where,
        tuple(missing),
        streams={each.labels["resource"]: each.value > 0 for each in samples if each.name == STREAM_UP.name},
        version="".join(each.labels["version"] for each in samples if each.name == metrics.BUILD.name),
        api_errors=int(sum(each.value for each in samples if each.name == metrics.API_ERRORS.name)),
    )
