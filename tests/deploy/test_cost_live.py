"""`gpu-device-plugin cost` over a real Prometheus, compared with figures worked out by hand."""

import asyncio
import csv
import io
import json
import shutil
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack
from decimal import Decimal
from typing import Any, TypeAlias

import pytest

from gpu_device_plugin.model.times import rfc3339
from tests.deploy.test_dashboard_live import prometheus

GIB = 1 << 30
HOURS = 4
Value: TypeAlias = "float | Callable[[int], float]"
"""A number, or one by minute."""
START = int(time.time()) // 3600 * 3600 - 24 * 3600
T4 = 'gpu="GPU-a",node="n1"'
WEB, JOB = 'namespace="ml",pod="web-1"', 'namespace="hpc",pod="train-x"'
A100 = 'gpu="GPU-b",node="n2"'


def lines(name: str, labels: str, value: Value, minutes: Iterable[int]) -> list[str]:
    """Return samples of a series, one a minute."""
    at = value if callable(value) else lambda _: value
    return [f"{name}{{{labels}}} {at(minute)} {START + 60 * minute}" for minute in minutes]


def openmetrics() -> str:
    """A T4 of 16 GiB, of which web has a quarter for 4 h; and an A100 of 80 GiB, whole in use for 2 h by a job.

    The agent of the A100's node is away in the last hour. The extender says that 2 GiB of the T4 are stranded.
    """
    every = range(60 * HOURS)
    # Prometheus shows a sample for five minutes more; only a scrape that fails ends a series at once.
    seen = range(60 * (HOURS - 1) - 5)
    web, job = (
        'namespace="ml",pod="web-1",container="main",gpu="GPU-a"',
        'namespace="hpc",pod="train-x",container="m",gpu="GPU-b"',
    )
    families: dict[str, list[tuple[str, Value, range]]] = {
        "gpushare_gpu_memory_bytes": [(T4, 16 * GIB, every), (A100, 80 * GIB, seen)],
        "gpushare_gpu_memory_allocated_bytes": [
            (T4, 4 * GIB, every), (A100, lambda minute: 80 * GIB if minute < 120 else 0, seen),
        ],
        "gpushare_gpu_info": [
            ('gpu="GPU-a",model="Tesla T4"', 1, every), ('gpu="GPU-b",model="NVIDIA A100-SXM4-80GB"', 1, seen),
        ],
        "gpushare_container_gpu_memory_allocated_bytes": [(web, 4 * GIB, every), (job, 80 * GIB, range(120))],
        "gpushare_container_gpu_memory_used_bytes": [(web, 5 * GIB, every), (job, 20 * GIB, range(120))],
        "gpushare_container_gpu_memory_borrowed_bytes": [(web, 1 * GIB, every)],
        "gpushare_extender_node_memory_bytes": [('node="n1"', 16 * GIB, every), ('node="n2"', 80 * GIB, every)],
        "gpushare_extender_node_memory_stranded_bytes": [('node="n1"', 2 * GIB, every)],
        "gpushare_gpu_power_watts": [('gpu="GPU-a"', 64, every)],
        "gpushare_gpu_energy_joules_total": [('gpu="GPU-b"', lambda minute: 6000 * minute, seen)],
        "kube_pod_owner": [
            (f'{WEB},owner_kind="ReplicaSet",owner_name="web-7d9",owner_is_controller="true"', 1, every),
            (f'{JOB},owner_kind="Job",owner_name="train",owner_is_controller="true"', 1, range(120)),
        ],
        "kube_replicaset_owner": [
            ('namespace="ml",replicaset="web-7d9",owner_kind="Deployment",owner_name="web"', 1, every),
        ],
    }  # fmt: skip
    text = []
    for name, series in families.items():
        text.append(f"# TYPE {name} gauge")
        for labels, value, minutes in series:
            text += lines(name, labels, value, minutes)
    return "\n".join([*text, "# EOF", ""])


@pytest.fixture(scope="module")
async def url(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """Return the address of a Prometheus that has these series."""
    home = tmp_path_factory.mktemp("cost")
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not on the PATH (Debian's package prometheus has it)")
    (home / "metrics").write_text(openmetrics(), encoding="utf-8")
    await run("promtool", "tsdb", "create-blocks-from", "openmetrics", str(home / "metrics"), str(home / "data"))
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(prometheus(home, {}))
        yield server.url


async def run(*command: str) -> str:
    """Run a program that succeeds, and return what it prints."""
    piped = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=piped, stderr=piped)
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode()


async def cost(*arguments: str) -> str:
    """Return what the program prints about the four hours."""
    period = ("--from", rfc3339(START), "--to", rfc3339(START + 3600 * HOURS), "--step", "10m")
    return await run(sys.executable, "-m", "gpu_device_plugin", "cost", *period, *arguments)


PRICES = ("--rate", "NVIDIA A100*=2.00", "--rate", "Tesla T4=0.35", "--currency", "EUR")


async def test_the_figures_are_those_worked_out_by_hand(url: str) -> None:
    """The T4: 1 of 4 GPU-hours web's, 0.5 stranded, 2.5 free. The A100: 2 of 4 the job's, 1 free, 1 not observed."""
    said = json.loads(await cost("--prometheus", url, *PRICES, "-o", "json"))
    job, web = said["rows"]
    assert (job["namespace"], job["ownerKind"], job["owner"]) == ("hpc", "Job", "train")
    assert (job["usedGpuHours"], job["idleGpuHours"], job["totalCost"]) == ("0.500000", "1.500000", "4.00")
    assert (web["namespace"], web["ownerKind"], web["owner"]) == ("ml", "Deployment", "web")
    assert (web["usedGpuHours"], web["borrowedGpuHours"], web["totalCost"]) == ("1.000000", "0.250000", "0.35")
    assert "idleGpuHours" not in web
    nobody = said["nobody"]
    assert (nobody["freeGpuHours"], nobody["strandedGpuHours"], nobody["unobservedGpuHours"]) == (
        "3.500000", "0.500000", "1.000000",
    )  # fmt: skip
    # Of 2.875 and 0.175 one half cent is rounded up and the other down.
    assert nobody["cost"] == {"free": "2.87", "stranded": "0.18", "unobserved": "2.00"}
    assert said["total"]["totalCost"] == "9.40"  # 4 h of 0.35 and 4 h of 2.00
    # 64 W for 4 h: a quarter of the memory is web's. A counter of 100 W: known from its second step of 10 minutes on.
    assert (web["energyKwh"], job["energyKwh"]) == ("0.064000", "0.183333")
    assert said["total"]["energyKwh"] == "0.539333"  # 0.256, and 170 minutes of 100 W
    assert said["notes"] == []


async def test_the_table_adds_up(url: str) -> None:
    text = await cost("--prometheus", url, *PRICES, "--by", "namespace")
    rows = {line.split()[0]: line.split() for line in text.splitlines()[2:]}
    assert rows["NAMESPACE"] == ["NAMESPACE", "GPU-HOURS", "USED", "IDLE", "BORROWED", "COST", "(EUR)", "KWH"]
    assert rows["hpc"] == ["hpc", "2.00", "0.50", "1.50", "0.00", "4.00", "0.18"]
    assert rows["ml"] == ["ml", "1.00", "1.00", "0.00", "0.25", "0.35", "0.06"]
    assert rows["total"][1] == "8.00"
    assert rows["total"][-2] == "9.40"


async def test_the_charges_of_focus_add_up_and_have_its_mandatory_columns(url: str) -> None:
    found: list[dict[str, Any]] = list(
        csv.DictReader(io.StringIO(await cost("--prometheus", url, *PRICES, "-o", "focus")))
    )
    assert sum(Decimal(row["BilledCost"]) for row in found) == Decimal("9.40")
    assert set(found[0]) >= {
        "BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency", "BillingPeriodEnd",
        "BillingPeriodStart", "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargePeriodEnd",
        "ChargePeriodStart", "ContractedCost", "EffectiveCost", "InvoiceIssuerName", "ListCost", "PricingQuantity",
        "PricingUnit", "ProviderName", "PublisherName", "ServiceCategory", "ServiceName",
    }  # fmt: skip
    assert {(row["SubAccountId"], json.loads(row["Tags"])["gpushare/use"]) for row in found} == {
        ("hpc", "used"), ("hpc", "idle"), ("ml", "used"), ("", "free"), ("", "stranded"), ("", "unobserved"),
    }  # fmt: skip
