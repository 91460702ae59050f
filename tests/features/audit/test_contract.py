"""Audit records as attributes of log lines."""

import json
import logging
from dataclasses import fields

from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.features.audit.contract import LOGGER, MESSAGE, AuditKind, AuditRecord
from gpu_device_plugin.logs import JsonFormatter
from tests.features.audit.records import record_of

TEXTS, NUMBERS = st.text(max_size=8), st.none() | st.integers(0, 1 << 20)
_BY_TYPE = {"str": TEXTS, "int | None": NUMBERS, "bool | None": st.none() | st.booleans()}
RECORDS = st.builds(
    AuditRecord,
    kind=st.sampled_from(AuditKind),
    **{each.name: _BY_TYPE[str(each.type)] for each in fields(AuditRecord) if each.name != "kind"},
)


class Lines(logging.Handler):
    """Keeps the lines of the log in its JSON form."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter())
        self.kept: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.kept.append(self.format(record))


@given(RECORDS)
def test_the_json_form_of_the_log_carries_every_field(record: AuditRecord) -> None:
    log, lines = logging.Logger(LOGGER), Lines()  # noqa: LOG001 - one that nobody else has
    log.addHandler(lines)
    record.write(log.info)
    (line,) = map(json.loads, lines.kept)
    assert record_of(line) == record
    assert (line["level"], line["msg"]) == ("info", MESSAGE % record.kind)


def test_the_names_of_attributes_are_stable() -> None:
    record = AuditRecord(
        AuditKind.RESIZED, "n1", "ml", "web-0", "u1", "StatefulSet", "web", "main", "GPU-a", "Tesla T4", 15109,
        shares=6, share_mib=1024, memory_mib=6144, whole=False, before=4, event="GPUMemoryResized",
        began="2026-10-03T02:40:00Z",
    )  # fmt: skip
    assert record.attributes() == {
        "event.name": "gpushare.resized",
        "gpushare.audit.version": 1,
        "k8s.node.name": "n1",
        "k8s.namespace.name": "ml",
        "k8s.pod.name": "web-0",
        "k8s.pod.uid": "u1",
        "gpushare.owner.kind": "StatefulSet",
        "gpushare.owner.name": "web",
        "k8s.container.name": "main",
        "gpu.uuid": "GPU-a",
        "gpu.model": "Tesla T4",
        "gpu.memory_mib": 15109,
        "gpushare.shares": 6,
        "gpushare.share_mib": 1024,
        "gpushare.memory_mib": 6144,
        "gpushare.whole": False,
        "gpushare.shares_before": 4,
        "k8s.event.reason": "GPUMemoryResized",
        "gpushare.from": "2026-10-03T02:40:00Z",
    }
