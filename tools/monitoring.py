"""Write the files of deploy/ that are made of others: `python -m tools.monitoring`.

Of tools/dashboard.py the dashboard, as a file that Grafana imports and as a ConfigMap for its sidecar; of the rules
that Prometheus reads the object of the operator; and copies of both in the chart, which cannot read files outside of
it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING

from tools.dashboard import dashboard

if TYPE_CHECKING:
    from collections.abc import Mapping

DEPLOY = Path(__file__).parents[1] / "deploy"
FILES = DEPLOY / "monitoring" / "files"
RULES = FILES / "rules.yaml"

_RULE = """\
# What Prometheus computes of the metrics and when it alerts, where the Prometheus Operator runs:
#
#   kubectl apply -f deploy/monitoring/prometheusrule.yaml
#
# Change files/rules.yaml, and rewrite this file with `python -m tools.monitoring`.
# Lines to look at before applying are marked CHANGE.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: gpushare
  namespace: gpushare
  labels:
    app.kubernetes.io/name: gpushare
    # CHANGE: the labels by which your Prometheus chooses PrometheusRules (its spec.ruleSelector). The chart
    # kube-prometheus-stack has it choose those with its release's name, as in `release: prometheus`.
spec:
"""

_CONFIG_MAP = """\
# The dashboard, where the sidecar of Grafana's chart collects ConfigMaps with this label:
#
#   kubectl apply -f deploy/monitoring/dashboard.yaml
#
# A Grafana without it imports files/dashboard.json. Both are written by `python -m tools.monitoring`.
# Lines to look at before applying are marked CHANGE.
apiVersion: v1
kind: ConfigMap
metadata:
  name: gpushare-dashboard
  namespace: gpushare  # CHANGE: where the sidecar looks (searchNamespace), if it does not look everywhere.
  labels:
    app.kubernetes.io/name: gpushare
    grafana_dashboard: "1"
data:
  gpushare.json: |-
"""


def derived(rules: str) -> Mapping[str, str]:
    """Return each file made of the dashboard and of `rules`, what rules.yaml says, by its path in deploy/."""
    # The operator's object explains itself at its top.
    groups = rules[rules.index("groups:") :]
    text = json.dumps(dashboard(), indent=1, ensure_ascii=False) + "\n"
    return {
        "monitoring/files/dashboard.json": text,
        "monitoring/dashboard.yaml": _CONFIG_MAP + indent(text, "    "),
        "monitoring/prometheusrule.yaml": _RULE + indent(groups, "  "),
        "chart/files/rules.yaml": groups,
        "chart/files/dashboard.json": text,
    }


def main() -> int:
    """Write them; return the exit code."""
    for name, text in derived(RULES.read_text(encoding="utf-8")).items():
        (DEPLOY / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
