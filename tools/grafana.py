"""Make a Grafana dashboard of rows of panels: the JSON that follows from each panel's kind.

The format is that of Grafana's classic dashboards, without plugins: github.com/grafana/grafana, kinds/dashboard.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Json = dict[str, Any]

SCHEMA = 42
"""Of Grafana 13. Older versions show what they know of it, from 10 on everything."""
COLUMNS = 24
"""The width of a dashboard in Grafana's units."""
HEIGHT = 8
SOURCE = {"type": "prometheus", "uid": "${datasource}"}

BYTES, PART, COUNT, SECONDS = "bytes", "percentunit", "short", "s"
"""Units, as Grafana calls them; bytes are shown in GiB."""
GREEN, YELLOW, RED = "green", "orange", "red"
FULL = ((None, GREEN), (0.85, YELLOW), (0.95, RED))
"""For parts of a whole."""
NONE = ((None, GREEN), (1, RED))
"""For what there should be none of."""
FEW = ((None, GREEN), (1, YELLOW))
WAIT = ((None, GREEN), (3600, YELLOW), (86400, RED))
"""For seconds of waiting."""
PLAIN = ((None, "blue"),)

Thresholds = tuple[tuple[float | None, str], ...]


# --- Panels ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Query:
    """A PromQL expression, and how its series are called."""

    expression: str
    legend: str = ""
    """Labels in double braces; in a table the name of the column."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel: what it shows, and how."""

    kind: str
    title: str
    description: str
    """How to read it, and what to do."""
    queries: tuple[Query, ...]
    unit: str = COUNT
    width: int = 8
    height: int = HEIGHT
    thresholds: Thresholds = PLAIN
    most: float | None = None
    stacked: bool = False
    columns: Mapping[str, str] = field(default_factory=dict)
    """Of a table: the heading of each label and of each query, in order; other labels are left out."""
    units: Mapping[str, str] = field(default_factory=dict)
    """Of a table: the unit of columns, by heading."""


def stat(title: str, description: str, expression: str, *, unit: str = COUNT, thresholds: Thresholds = PLAIN) -> Panel:
    """Make a panel of one number."""
    query = Query(expression, title)
    return Panel("stat", title, description, (query,), unit=unit, width=4, height=4, thresholds=thresholds)


def lines(title: str, description: str, queries: Mapping[str, str], **rest: Any) -> Panel:
    """Make a panel of series over time; `queries` by legend."""
    return Panel(
        "timeseries", title, description, tuple(Query(query, legend) for legend, query in queries.items()), **rest
    )


def bars(title: str, description: str, queries: Mapping[str, str], **rest: Any) -> Panel:
    """Make a panel of bars, each as long as its latest value; `queries` by legend."""
    return Panel(
        "bargauge", title, description, tuple(Query(query, legend) for legend, query in queries.items()), **rest
    )


def table(
    title: str, description: str, labels: Mapping[str, str], queries: Mapping[str, tuple[str, str]], **rest: Any
) -> Panel:
    """Make a table: a row for each set of `labels` (by name, with a heading), a column for each of `queries`.

    `queries` are the unit and the expression by heading.
    """
    made = tuple(Query(expression, heading) for heading, (_, expression) in queries.items())
    columns = dict(labels) | {f"Value #{letter}": each.legend for letter, each in zip(_letters(), made, strict=False)}
    units = {heading: unit for heading, (unit, _) in queries.items()}
    return Panel("table", title, description, made, columns=columns, units=units, **{"width": COLUMNS, **rest})


def _letters() -> Iterator[str]:
    yield from "ABCDEFGHIJKL"


# --- JSON ------------------------------------------------------------------------------------------------------------


def dashboard(
    uid: str,
    title: str,
    description: str,
    *,
    rows: Mapping[str, Sequence[Panel]],
    variables: Mapping[str, tuple[str, str]],
    tags: Sequence[str] = (),
) -> Json:
    """Return a dashboard as Grafana imports it.

    Args:
        uid: its own name, by which Grafana knows it again.
        title: its name for people.
        description: what it shows, in a sentence.
        rows: the panels of each row, by the row's title.
        variables: what one can choose beside the data source, by name: a label, and the query that finds the values.
            All of them are chosen by default.
        tags: words by which it is found.
    """
    return {
        "annotations": {"list": []},
        "description": description,
        "editable": True,
        "graphTooltip": 1,
        "links": [],
        "panels": list(_panels(rows)),
        "refresh": "30s",
        "schemaVersion": SCHEMA,
        "tags": list(tags),
        "templating": {"list": [_source_variable(), *(_variable(name, *each) for name, each in variables.items())]},
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "title": title,
        "uid": uid,
    }


def expressions(made: Json) -> Iterator[tuple[str, str]]:
    """Yield every query of a dashboard, with the title of its panel."""
    for panel in made["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


def _panels(rows: Mapping[str, Sequence[Panel]]) -> Iterator[Json]:
    number, top = 0, 0
    for title, panels in rows.items():
        number += 1
        yield {
            "collapsed": False,
            "gridPos": {"h": 1, "w": COLUMNS, "x": 0, "y": top},
            "id": number,
            "panels": [],
            "title": title,
            "type": "row",
        }
        top += 1
        left, tallest = 0, 0
        for panel in panels:
            number += 1
            if left + panel.width > COLUMNS:
                left, top, tallest = 0, top + tallest, 0
            yield _panel(panel) | {
                "gridPos": {"h": panel.height, "w": panel.width, "x": left, "y": top},
                "id": number,
            }
            left, tallest = left + panel.width, max(tallest, panel.height)
        top += tallest


def _panel(panel: Panel) -> Json:
    made: Json = {
        "datasource": SOURCE,
        "description": panel.description,
        "fieldConfig": {"defaults": _defaults(panel), "overrides": list(_overrides(panel))},
        "options": OPTIONS[panel.kind],
        "targets": [
            _target(letter, query, panel.kind) for letter, query in zip(_letters(), panel.queries, strict=False)
        ],
        "title": panel.title,
        "type": panel.kind,
    }
    if panel.kind == "table":
        made["transformations"] = [
            {"id": "merge", "options": {}},
            {
                "id": "organize",
                "options": {
                    "excludeByName": {"Time": True},
                    "indexByName": {name: at for at, name in enumerate(panel.columns)},
                    "renameByName": _headings(panel),
                },
            },
        ]
    return made


def _headings(panel: Panel) -> Mapping[str, str]:
    """Of a table with one query Grafana calls its column ``Value``."""
    if len(panel.queries) > 1:
        return panel.columns
    return {name.replace("Value #A", "Value"): heading for name, heading in panel.columns.items()}


def _defaults(panel: Panel) -> Json:
    found: Json = {
        "color": {"mode": "thresholds" if panel.kind in {"stat", "bargauge"} else "palette-classic"},
        "min": 0,
        "thresholds": {
            "mode": "absolute",
            "steps": [{"color": colour, "value": value} for value, colour in panel.thresholds],
        },
        "unit": panel.unit,
    }
    if panel.most is not None:
        found["max"] = panel.most
    if panel.kind == "timeseries":
        found["custom"] = {
            "fillOpacity": 20 if panel.stacked else 0,
            "lineWidth": 1,
            "showPoints": "never",
            "stacking": {"group": "A", "mode": "normal" if panel.stacked else "none"},
        }
    if panel.kind == "table":
        del found["min"]
        found["custom"] = {"align": "auto", "filterable": True}
    return found


def _overrides(panel: Panel) -> Iterator[Json]:
    for heading, unit in panel.units.items():
        yield {
            "matcher": {"id": "byName", "options": heading},
            "properties": [{"id": "unit", "value": unit}],
        }


def _target(letter: str, query: Query, kind: str) -> Json:
    made: Json = {"datasource": SOURCE, "expr": query.expression, "refId": letter}
    if kind == "table":
        return made | {"format": "table", "instant": True, "range": False}
    made["legendFormat"] = query.legend
    return made | ({"range": True} if kind == "timeseries" else {"instant": True, "range": False})


_REDUCED = {"calcs": ["lastNotNull"], "fields": "", "values": False}
OPTIONS: Mapping[str, Json] = {
    "stat": {
        "colorMode": "value",
        "graphMode": "none",
        "justifyMode": "auto",
        "orientation": "auto",
        "reduceOptions": _REDUCED,
        "textMode": "auto",
    },
    "timeseries": {
        "legend": {"calcs": ["lastNotNull"], "displayMode": "table", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "bargauge": {
        "displayMode": "basic",
        "orientation": "horizontal",
        "reduceOptions": _REDUCED,
        "showUnfilled": True,
        "valueMode": "color",
    },
    "table": {"cellHeight": "sm", "showHeader": True},
}


def _source_variable() -> Json:
    return {
        "current": {},
        "hide": 0,
        "label": "Prometheus",
        "name": "datasource",
        "options": [],
        "query": "prometheus",
        "refresh": 1,
        "regex": "",
        "type": "datasource",
    }


def _variable(name: str, label: str, query: str) -> Json:
    # `.*` also finds series whose label is empty: pods whose names the agent does not know.
    return {
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "datasource": SOURCE,
        "definition": query,
        "hide": 0,
        "includeAll": True,
        "label": label,
        "multi": True,
        "name": name,
        "options": [],
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "regex": "",
        "sort": 1,
        "type": "query",
    }
