"""`gpu-device-plugin cost`, from the command line to what is printed and to what a mistake is answered with."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs

import pytest

from gpu_device_plugin.cli import parse
from gpu_device_plugin.features.cost.rules import GIVEN, MEMORY
from gpu_device_plugin.programs.cost.cost_program import main
from gpu_device_plugin.settings.knobs import UsageError
from tests.ports import free_ports

PERIOD = ("--from", "2024-10-01T00:00:00Z", "--to", "2024-10-01T04:00:00Z", "--step", "1h")
BEGIN = 1727740800
GIB = 1 << 30


def matrix(*series: tuple[dict[str, str], list[list[Any]]]) -> bytes:
    """Return an answer of Prometheus."""
    result = [{"metric": metric, "values": values} for metric, values in series]
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}}).encode()


def samples(value: float, hours: int = 4) -> list[list[Any]]:
    return [[BEGIN + 3600 * hour, str(value)] for hour in range(hours)]


GPU = (
    ({"__name__": MEMORY, "gpu": "GPU-a", "node": "n1"}, samples(16 * GIB)),
    ({"__name__": "gpushare_gpu_info", "gpu": "GPU-a", "model": "Tesla T4", "index": "0"}, samples(1)),
    (
        {
            "__name__": "gpushare_container_gpu_memory_allocated_bytes",
            "namespace": "ml",
            "pod": "web",
            "container": "main",
            "gpu": "GPU-a",
        },
        samples(4 * GIB),
    ),
    ({"__name__": "up", "job": "gpushare"}, samples(1)),
)


def cost(*words: str, **environ: str) -> int:
    return main(parse(["cost", *words]), environ)


@contextmanager
def server(status: int, body: bytes, **headers: str) -> Iterator[tuple[str, list[tuple[str, dict[str, list[str]]]]]]:
    """Serve an answer, or the metrics of it that are asked for; yield the address, and each request's parameters."""
    asked: list[tuple[str, dict[str, list[str]]]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            form = self.rfile.read(int(self.headers["Content-Length"])).decode()
            asked.append(
                (
                    self.headers.get("Authorization", ""),
                    parse_qs(form) | {"org": self.headers.get_all("X-Scope-OrgID", [])},
                )
            )
            answer = _asked_for(body, asked[-1][1]["query"][0])
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    served = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=served.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{served.server_port}", asked
    finally:
        served.shutdown()
        thread.join()
        served.server_close()


def _asked_for(body: bytes, query: str) -> bytes:
    """Return an answer without the series of other metrics than that of a query."""
    if b"__name__" not in body:
        return body
    answer = json.loads(body)
    series = [each for each in answer["data"]["result"] if f"({each['metric']['__name__']})" in query]
    return json.dumps({**answer, "data": {**answer["data"], "result": series}}).encode()


@pytest.fixture
def prometheus() -> Iterator[str]:
    """Return the address of a Prometheus that knows a T4 of which a pod has a quarter."""
    with server(200, matrix(*GPU)) as (url, _):
        yield url


def test_the_picture_has_the_costs_of_the_table(
    prometheus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In each form of the output: FOCUS has rows by model, and the picture has not."""
    path = tmp_path / "cost.svg"
    for form in ("table", "focus"):
        words = ("--rate", "*T4=0.35", "--currency", "EUR", "--by", "pod", "-o", form, "--plot", str(path))
        assert cost("--prometheus", prometheus, *PERIOD, *words) == 0
        texts = re.findall(r">([^<>\n]+)</text>", path.read_text(encoding="utf-8"))
        assert texts.count("ml web") == 1
        assert {"0.35 EUR", "1.05 EUR", "GPU-hours and cost by pod"} <= {*texts}
    capsys.readouterr()
    with pytest.raises(UsageError, match=r"does not end in .svg or .png"):
        cost("--prometheus", prometheus, *PERIOD, "--plot", "cost.pdf")


def test_the_table_of_samples(prometheus: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cost("--prometheus", prometheus, *PERIOD, "--rate", "*T4=0.35", "--currency", "EUR") == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()[:8]] == [
        ["1", "GPU", "from", "2024-10-01T00:00:00Z", "to", "2024-10-01T04:00:00Z,", "in", "steps", "of", "60", "min"],
        [],
        ["NAMESPACE", "OWNER", "GPU-HOURS", "USED", "IDLE", "BORROWED", "NOT", "MEASURED", "COST", "(EUR)"],
        ["ml", "1.00", "0.00", "0.00", "0.00", "1.00", "0.35"],
        ["free", "3.00", "1.05"],
        ["stranded", "0.00", "0.00"],
        ["not", "observed", "0.00", "0.00"],
        ["total", "4.00", "0.00", "0.00", "0.00", "1.00", "1.40"],
    ]


def test_what_is_not_known_is_said(prometheus: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cost("--prometheus", prometheus, *PERIOD, "--by", "pod") == 0
    said = capsys.readouterr().out
    assert "* what is stranded is not known" in said
    assert "* owners are not known" in said
    assert "COST" not in said


def test_rates_come_from_a_file_too(prometheus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rates.yaml").write_text("currency: CHF\nrates:\n  '*T4': 1.25\n", encoding="utf-8")
    assert cost("--prometheus", prometheus, *PERIOD, "--rates", str(tmp_path / "rates.yaml"), "-o", "json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["currency"], found["total"]["totalCost"]) == ("CHF", "5.00")


def test_a_long_period_is_asked_for_in_parts_with_the_token(capsys: pytest.CaptureFixture[str]) -> None:
    with server(200, matrix()) as (url, asked):
        period, environ = ("--from", "2024-10-01", "--to", "2024-10-02", "--step", "1m"), {"PROMETHEUS_TOKEN": "word\n"}
        assert cost("--prometheus", url, *period, **environ) == 1
    assert {token for token, _ in asked} == {"Bearer word"}
    parts = [(form["start"], form["end"]) for _, form in asked if form["query"] == [f"max by (node, gpu) ({MEMORY})"]]
    assert parts == [(["1727740800"], ["1727800740"]), (["1727800800"], ["1727827199"])]
    assert f"there is no {MEMORY} from 2024-10-01" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("status", "body", "headers", "said"),
    [
        (401, b"", {}, "answers 401: it wants another token; see --token-file"),
        (401, b"no org id\n", {}, "answers 401: no org id; see --token-file, and --header for a tenant"),
        (403, b'{"status":"error","error":"no tenant"}', {}, "answers 403: no tenant; see --token-file"),
        (403, b"<html>login</html>", {}, "answers 403: it wants another token; see --token-file"),
        (429, b"too many\nrequests", {}, "answers 429: too many requests"),
        (302, b"", {"Location": "http://elsewhere/"}, "answers 302: it sends to http://elsewhere/; give that address"),
        (400, b'{"status":"error","error":"too many points"}', {}, "answers 400: too many points"),
        (404, b"<html>", {}, "is that the address of a Prometheus, with its path?"),
        (200, b"<html>", {}, "this is no answer of Prometheus' API"),
        (200, b'{"status":"error","error":"no"}', {}, "refuses the query: no"),
        (200, b'{"status":"success","data":{"resultType":"vector","result":[]}}', {}, "a vector, no matrix"),
    ],
)
def test_what_a_server_does_wrong_is_said(
    status: int, body: bytes, headers: dict[str, str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with server(status, body, **headers) as (url, asked):
        assert cost("--prometheus", url, "--from", "1h") == 1
    assert said in capsys.readouterr().err
    assert len(asked) == 1


def test_a_server_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    (port,) = free_ports(1)
    assert cost("--prometheus", f"http://127.0.0.1:{port}") == 1
    assert f"Prometheus at http://127.0.0.1:{port} cannot be reached: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "name what to read: --prometheus URL"),
        (["--audit", "log"], "--audit: there is no such argument; see gpu-device-plugin cost --help"),
        (["--prometheus", "localhost:9090"], "'localhost:9090' is no address such as http://localhost:9090"),
        (["--prometheus", "http://user:pw@x"], "no address such as"),
        (["--from", "3d", "--to", "5d"], "the period is empty: --from is "),
        (["--from", "yesterday"], "'yesterday' is no time; write 2026-10-01"),
        (["--from", "1d", "--to", "2999-01-01"], "2999-01-01T00:00:00Z is in the future"),
        (["--step", "1"], "'1' is not a duration of at least a second; write 5m or 1h"),
        (["--step", "1s", "--from", "30d"], "more than 100000 steps; take a longer one"),
        (["--rate", "T4"], "'T4' is not MODEL=PRICE; write 'NVIDIA H100*=2.50'"),
        (["--rate", "T4=cheap"], "'cheap' is no amount of at least 0"),
        (["--rate", "T4=-1"], "'-1' is no amount of at least 0"),
        (["--rate", "T4=1e-999999999"], "'1e-999999999' is no amount of at least 0"),
        (["--currency", "EUR"], "--currency: there are no prices; add --rate"),
        (["--rate", "T4=1", "--currency", "euro"], "'euro' is no code of three letters, such as EUR"),
        (["--rate", "T4=nan"], "--rate: 'nan' is no amount"),
        (["--header", "secret"], "--header: this is no NAME: VALUE, such as 'X-Scope-OrgID: team'"),
        (["--header", "a b: c"], "--header: this is no NAME: VALUE"),
        (["--header", "a: b\nc: d"], "--header: this is no NAME: VALUE"),
        (["--header", "a: \u20ac"], "--header: a: a header has no such characters"),
        (["--select", 'cluster="a'], "does not select by labels; write 'cluster=\"a\"'"),
        (["--select", 'a="b"} or up{c="d"'], "does not select by labels"),
        (["--select", 'cluster=~"("'], "does not select by labels"),
        (["--select", 'cluster="\\x"'], "does not select by labels"),
        (["-o", "focus"], "costs need prices; add --rate 'MODEL=PRICE', or --rates PATH"),
        (["--by", "team"], "invalid choice: 'team'"),
        (["--promethus", "x"], "did you mean --prometheus?"),
    ],
)
def test_a_mistake_is_answered_with_a_sentence(words: list[str], said: str) -> None:
    with pytest.raises(UsageError) as error:
        cost(*words, **({"PROMETHEUS_URL": "http://127.0.0.1:1"} if {"--header", "--select"} & {*words} else {}))
    assert said in str(error.value)


def test_a_period_may_begin_before_the_calendar(prometheus: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cost("--prometheus", prometheus, "--from", "999999w", "--step", "52w") == 1
    assert "from 1970-01-01T00:00:00Z to " in capsys.readouterr().err


def test_samples_below_zero_count_as_none(capsys: pytest.CaptureFixture[str]) -> None:
    place = {"namespace": "ml", "pod": "web", "container": "main", "gpu": "a"}
    series = [({"__name__": MEMORY, "gpu": "a"}, samples(16)), ({"__name__": GIVEN, **place}, samples(-8))]
    with server(200, matrix(*series)) as (url, _):
        assert cost("--prometheus", url, *PERIOD, "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)["rows"] == []


def test_a_model_without_a_rate_is_named(prometheus: str) -> None:
    with pytest.raises(UsageError, match="there is no rate for the model 'Tesla T4'"):
        cost("--prometheus", prometheus, *PERIOD, "--rate", "H100=2")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"hello", "this is no answer of Prometheus' API /api/v1/query_range"),
        (
            b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
            "this is no answer of Prometheus' API /api/v1/query_range",
        ),
        (matrix(({"__name__": MEMORY}, [[BEGIN, "x"]])), "a sample is no number"),
        (matrix(GPU[2]), f"there is no {MEMORY} from 2024-10-01T00:00:00Z to 2024-10-01T04:00:00Z, only what"),
    ],
)
def test_an_answer_of_something_else_is_named(body: bytes, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with server(200, body) as (url, _):
        assert cost("--prometheus", url, *PERIOD) == 1
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "content", "said"),
    [
        ("--token-file", None, "cannot be read: No such file or directory; name a file"),
        ("--rates", None, "--rates "),
        ("--ca", "no certificate", "cannot be used"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(
    flag: str, content: str | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "file"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    assert cost(flag, str(path), "--prometheus", "http://127.0.0.1:1") == 1
    assert f"{path} " in (err := capsys.readouterr().err)
    assert said in err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "rates: line 1: this is not valid YAML: "),
        ("rates:\n  '*T4: 3\n", "rates: line 3: this is not valid YAML: "),
        ("rates: 3", "rates: write rates: as a map from models to prices, such as rates: {'*T4': 0.35}"),
        ("- a", "rates: write rates: as a map"),
        ("", "rates: write rates: as a map"),
    ],
)
def test_rates_that_are_no_map_are_refused(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "rates").write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match="--rates") as error:
        cost("--rates", str(tmp_path / "rates"))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


# --- Stores with several tenants and clusters, and partial answers ----------------------------------------------------


WARNING = 'fetch series for {replica="a"}:\nconnection refused'


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"warnings": [WARNING, "PromQL info: metric might not be a counter"]}, WARNING.replace("\n", " ")),
        ({"isPartial": True}, "isPartial"),
        ({"warnings": ["PromQL info: metric might not be a counter"], "infos": ["x"]}, ""),
        ({"warnings": None, "isPartial": False}, ""),
    ],
)
@pytest.mark.parametrize("output", ["table", "json", "focus"])
def test_a_partial_answer_is_told_and_changes_the_exit_code(
    told: dict[str, Any], why: str, output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*PERIOD, "--rate", "*=1", "-o", output)
    with server(200, json.dumps({**json.loads(matrix(*GPU)), **told}).encode()) as (url, _):
        assert cost("--prometheus", url, *words) == (3 if why else 0)
    printed = capsys.readouterr()
    said = f"the costs are not complete, as samples may be missing: {why}"
    assert bool(why) is (said in (printed.out if output == "table" else printed.err))
    if output == "json":
        assert json.loads(printed.out)["notes"][:1] == ([said] if why else json.loads(printed.out)["notes"][:1])
    with server(200, json.dumps({**json.loads(matrix()), **told}).encode()) as (url, _):
        assert cost("--prometheus", url, *words) == 1
    assert bool(why) is (f"samples may be missing: {why}" in capsys.readouterr().err)


def test_a_tenant_is_named_in_a_header_and_a_cluster_selected_in_every_query() -> None:
    with server(200, matrix()) as (url, asked):
        words = ("--header", "X-Scope-OrgID: team", "--select", 'cluster="a",env=~"b|c"')
        assert cost("--prometheus", url, *PERIOD, *words) == 1
    assert all(form["org"] == ["team"] for _, form in asked)
    queries = [form["query"][0] for _, form in asked]
    assert f'max by (node, gpu) ({MEMORY}{{cluster="a",env=~"b|c"}})' in queries
    for query in queries:
        metrics = re.findall(r"(?:gpushare|kube)_\w+(?!\w)", query)
        assert len(metrics) == query.count('cluster="a",env=~"b|c"}'), query
