"""What happens on a node is in the log, in the metrics and in an Event, with the GPU's position where it has one."""

from dataclasses import dataclass, field

import pytest

from gpu_device_plugin import metrics as m
from gpu_device_plugin.features.node_features import NODE_SETTINGS
from gpu_device_plugin.node.node_events import Reports
from gpu_device_plugin.node.node_state import NodeState
from gpu_device_plugin.settings.knobs import reload
from gpu_device_plugin.settings.sources import Sources
from tests.node.recorded_api import RecordedApi
from tests.nodes import node


@dataclass
class Desk(m.Metrics):
    """Reports, and what they say."""

    counted: list[tuple[str, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        api = RecordedApi()
        self.reports, self.events = Reports(NodeState(node(8)), self, api), api.events

    def count(self, what: m.Count, *labels: str, times: int = 1) -> None:
        self.counted += [(what.name.removeprefix("gpushare_"), *labels)] * times


@pytest.mark.parametrize(("changed", "drain"), [("share_size", True), ("api", False)])
def test_settings_that_wait_say_whether_the_node_is_to_be_drained_first(changed: str, *, drain: bool) -> None:
    running = Sources(NODE_SETTINGS, {"api": "off", "node_name": "n"}, {}).read()
    value = {"share_size": "2GiB", "api": "http://127.0.0.1:1"}[changed]
    wanted = Sources(NODE_SETTINGS, {"api": "off", "node_name": "n", changed: value}, {}).read()
    desk = Desk()
    desk.reports.settings_read(reload(running, running))
    assert desk.events == []
    desk.reports.settings_read(reload(running, wanted))
    ((reason, note, _, warning),) = desk.events
    assert (reason, warning, "drain the node, then " in note) == ("SettingsWait", True, drain)
    assert note.endswith("spec.nodeName=n")
