"""Loads from a server that speaks Prometheus's HTTP API: what is no load is refused, in one line."""

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from infra.lender.prometheus import LoadQueryError, MeasuredLoad, Prometheus, metrics_of
from infra.lender.reporting import LoadReporter
from infra.log.target import Target
from schemas.kafka_connection import KafkaConnection
from tests.infra.lender.prometheus_server import FakeAnswers, T, answering, sample, vector

QUERY = "avg(busy)"


@pytest.fixture
def server() -> Iterator[FakeAnswers]:
    with answering() as server:
        yield server


def scalar(value: str) -> dict[str, Any]:
    return {"resultType": "scalar", "result": sample(value)}


@pytest.mark.parametrize(
    "data", [scalar("0.42"), vector(({"job": "vllm"}, "0.42"))], ids=["scalar", "vector"]
)
def test_query_value_is_load_at_its_time(server, data):
    server.answer(data)
    assert Prometheus(server.url).load(QUERY) == MeasuredLoad(T, 0.42)
    assert server.asked == [("/api/v1/query", QUERY)]


def test_a_path_before_the_api_is_kept(server):
    server.answer(scalar("1"))
    assert Prometheus(f"{server.url}/metrics/").load(QUERY).load == 1.0
    assert server.asked[0][0] == "/metrics/api/v1/query"


REFUSED = {
    "NaN": (scalar("NaN"), "the value is 'NaN', no number"),
    "an infinity": (scalar("+Inf"), "the value is '+Inf', no number"),
    "a text": (scalar("much"), "the value is 'much', no number"),
    "percent": (scalar("42"), "the value is 42, a load is from 0 to 1"),
    "less than nothing": (scalar("-0.1"), "the value is -0.1, a load is from 0 to 1"),
    "nothing": (vector(), "no series: Prometheus has no metric busy at present: it was renamed"),
    "several": (vector(({"a": "1"}, "0.1"), ({"a": "2"}, "0.2")), "2 series and not one: aggregate them"),
    "a matrix": ({"resultType": "matrix", "result": []}, "no answer of Prometheus"),
    "a bad sample": ({"resultType": "scalar", "result": [T]}, "no answer of Prometheus"),
    "a time that is none": ({"resultType": "scalar", "result": [1e300, "0.5"]}, "no Unix time"),
}


@pytest.mark.parametrize(("data", "fault"), REFUSED.values(), ids=REFUSED.keys())
def test_invalid_load_is_refused_in_one_line(server, data, fault):
    server.answer(data)
    with pytest.raises(LoadQueryError) as raised:
        Prometheus(server.url).load(QUERY)
    assert fault in str(raised.value)
    assert "\n" not in str(raised.value)


def test_refusal_of_prometheus_is_reported_with_reason(server):
    server.status = 400
    server.body = json.dumps({"status": "error", "errorType": "bad_data", "error": "parse error"}).encode()
    with pytest.raises(LoadQueryError, match=r"HTTP 400 Bad Request: parse error$"):
        Prometheus(server.url).load("avg(")


@pytest.mark.parametrize("status", [401, 500, 503])
def test_http_error_is_reported(server, status):
    server.status, server.body = status, b"<html>no</html>"
    with pytest.raises(LoadQueryError, match=f"HTTP {status}"):
        Prometheus(server.url).load(QUERY)


def test_answer_of_another_server_is_reported(server):
    server.body = b"<html>welcome</html>"
    with pytest.raises(LoadQueryError, match="no answer of Prometheus"):
        Prometheus(server.url).load(QUERY)


def test_endless_answer_is_not_read_to_end(server, monkeypatch):
    monkeypatch.setattr("infra.lender.prometheus.MAX_ANSWER_BYTES", 1_000)
    server.body = b" " * 2_000
    with pytest.raises(LoadQueryError, match="more than 1000 bytes"):
        Prometheus(server.url).load(QUERY)


def test_absent_server_is_reported():
    with pytest.raises(LoadQueryError, match=r"does not answer: .*refused"):
        Prometheus("http://127.0.0.1:1").load(QUERY)


@pytest.mark.parametrize(
    "url", ["prometheus:9090", "file:///etc/passwd", "ftp://host", "http://", "http://h?x=1"]
)
def test_url_without_server_is_refused(url):
    with pytest.raises(LoadQueryError, match="is no URL of a server"):
        Prometheus(url)


OWNED = ["gpu-1", "gpu-2", "gpu-3", "gpu-4"]


def test_busy_servers_give_load_in_configured_order(server):
    server.answer(
        vector(
            ({"instance": "gpu-3:8000", "gpu": "0"}, "0"),
            ({"instance": "gpu-3:8000", "gpu": "1"}, "0.25"),
            ({"instance": "gpu-1:8000"}, "7"),
            ({"instance": "gpu-2:8000"}, "0"),
            ({"instance": "elsewhere:8000"}, "3"),
        )
    )
    found = Prometheus(server.url).load_by_server(QUERY, "instance", OWNED, OWNED[:3])
    assert found == MeasuredLoad(T, 0.5, ("gpu-1", "gpu-3"))


def test_server_without_series_counts_as_busy_unless_away(server):
    server.answer(vector(({"instance": "gpu-2"}, "1"), ({"instance": "gpu-3"}, "0")))
    prometheus = Prometheus(server.url)
    found = prometheus.load_by_server(QUERY, "instance", OWNED, ["gpu-1", "gpu-2", "gpu-3"])
    assert found == MeasuredLoad(T, 0.5, ("gpu-1", "gpu-2"), silent=("gpu-1",))
    server.answers["up == 1"] = vector(({"instance": "gpu-1:9100"}, "1"), ({"job": "kubelet"}, "1"))
    found = prometheus.load_by_server(QUERY, "instance", OWNED, ["gpu-1", "gpu-2", "gpu-4"])
    assert (found.silent, found.silent_but_scraped) == (("gpu-1", "gpu-4"), ("gpu-1",))
    found = prometheus.load_by_server(QUERY, "instance", OWNED, ["gpu-2", "gpu-3"])
    assert found == MeasuredLoad(T, 0.25, ("gpu-2",))


PER_SERVER_REFUSED = {
    "a scalar": (scalar("1"), "leave out --per-server"),
    "no such label": (vector(({"job": "vllm"}, "1")), "no label instance, it has job"),
    "other servers": (vector(({"instance": "x"}, "1")), "does label instance name servers as the zone"),
    "no series": (vector(), "no series: Prometheus has no metric busy at present"),
    "NaN among others": (
        vector(({"instance": "gpu-1"}, "1"), ({"instance": "gpu-2"}, "NaN")),
        "the value is 'NaN'",
    ),
}


@pytest.mark.parametrize(("data", "fault"), PER_SERVER_REFUSED.values(), ids=PER_SERVER_REFUSED.keys())
def test_series_without_server_labels_are_refused(server, data, fault):
    server.answer(data)
    with pytest.raises(LoadQueryError) as raised:
        Prometheus(server.url).load_by_server(QUERY, "instance", OWNED, OWNED)
    assert fault in str(raised.value)


def test_empty_condition_differs_from_missing_metric(server):
    server.answer(vector())
    server.answers['count({__name__="busy"})'] = vector(({}, "4"))
    with pytest.raises(LoadQueryError, match="Prometheus has busy, but no series passes the query's labels"):
        Prometheus(server.url).load(QUERY)


@pytest.mark.parametrize(
    "ask",
    [
        lambda prometheus: prometheus.load(QUERY),
        lambda prometheus: prometheus.load_by_server(QUERY, "instance", OWNED, OWNED),
    ],
    ids=["one value", "per server"],
)
def test_an_answer_that_may_be_incomplete_is_refused(server, ask):
    data = vector(({"instance": "gpu-1"}, "1"))
    server.body = json.dumps(
        {"status": "success", "data": data, "warnings": ["No StoreAPIs matched for this query"]}
    ).encode()
    prometheus = Prometheus(server.url)
    with pytest.raises(LoadQueryError, match="may be incomplete, Prometheus warns: No StoreAPIs matched"):
        ask(prometheus)


@pytest.mark.parametrize(
    ("query", "metrics"),
    [
        ("avg(busy)", ["busy"]),
        (
            "sum(clamp_max(max_over_time(vllm:num_requests_running[5m]), 1)) / 520",
            ["vllm:num_requests_running"],
        ),
        ('sum by (instance) (a{job="b", c=~"d|e"} > bool 0) or (up{job="node"} == 1) * 0', ["a", "up"]),
        ("sum(a) without (b) / on(c) group_left(d) e offset 5m", ["a", "e"]),
        ("1e3 * rate(x_total[5m] offset 1h30m) + Inf", ["x_total"]),
        ("vector(1)", []),
    ],
)
def test_metrics_of_a_query(query, metrics):
    assert metrics_of(query) == metrics


def test_lasting_fault_is_reported_once_without_publishing(server):
    """There is no Kafka at the target: a load that were published would be another fault."""
    stop, asked, told = threading.Event(), [], []
    target = Target(KafkaConnection(bootstrap_servers="127.0.0.1:1"), "none")
    server.answer(scalar("NaN"))

    def ask() -> MeasuredLoad:
        asked.append(1)
        if len(asked) == 3:
            stop.set()
        return Prometheus(server.url).load(QUERY)

    LoadReporter(target, "c", "z", told.append).measure(ask, 0.01, stop, lambda _event: None)
    assert len(asked) == 3
    assert told == [f"{QUERY}: the value is 'NaN', no number; tried again"]


def test_changed_servers_without_series_are_reported(monkeypatch):
    stop, told = threading.Event(), []
    target = Target(KafkaConnection(bootstrap_servers="127.0.0.1:1"), "none")
    many = tuple(f"gpu-{number}" for number in range(10))
    silent = iter([("gpu-1",), ("gpu-1",), many, many, ()])
    scraped = iter([(), (), (), ("gpu-9",), ()])
    published = []

    def ask() -> MeasuredLoad:
        found = MeasuredLoad(T, 0.5, silent=next(silent), silent_but_scraped=next(scraped))
        if len(published) == 4:
            stop.set()
        return found

    reporter = LoadReporter(target, "c", "z", told.append)
    monkeypatch.setattr(reporter, "_publish", lambda _event: None)
    reporter.measure(ask, 0.001, stop, published.append)
    assert len(published) == 5
    named = ", ".join(many[:8])
    down = "none of their targets is up"
    assert told == [
        f"servers without series count as busy (1): gpu-1: {down}",
        f"servers without series count as busy (10): {named} and 2 more: {down}",
        f"servers without series count as busy (9): {named} and 1 more: {down}",
        "servers without series count as busy (1): gpu-9: Prometheus scrapes them, so the metric is renamed "
        "there, or its exporter alone is down",
        "all servers have series again",
    ]
