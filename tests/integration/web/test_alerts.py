"""The alerts for Prometheus: each one fires on the figures that it is about, and on no others; and Grafana's panels."""

import json
import re
from pathlib import Path

import pytest
from support.servers.figures import ALERTS, needs_promtool, promtool
from support.servers.processes import PROJECT

from qs_web.metrics import BUS, FIGURES, QUEUES, TOTALS

DASHBOARD = PROJECT / "packaging" / "grafana" / "qs.json"

SERVER, QUEUE = 'instance="a",job="qs"', 'instance="a",job="qs-queues",queue="q"'
BUCKETS = {
    f'qs_journal_sync_seconds_bucket{{{SERVER},le="{le}"}}': f"0+{each}x200"
    for le, each in (("0.05", 50), ("0.25", 100), ("+Inf", 100))
}
CASES: dict[str, tuple[dict[str, str], str]] = {
    "QsDown": ({f"qs_up{{{SERVER}}}": "1x60 0x140"}, "60m"),
    "QsBusDown": ({f"qs_bus_up{{{SERVER}}}": "1x60 0x140"}, "60m"),
    "QsBusCutOff": ({f"qs_bus_server_connected{{{SERVER}}}": "1x60 0x140"}, "60m"),
    "QsJournalFailed": ({f"qs_journal_failed{{{SERVER}}}": "0x60 1x140"}, "60m"),
    "QsDiskNearlyFull": ({f"qs_disk_free_bytes{{{SERVER}}}": "9000000000x60 2000000000x140"}, "60m"),
    "QsDiskFillsUp": ({f"qs_disk_free_bytes{{{SERVER}}}": "9000000000x60 9000000000-30000000x140"}, "60m"),
    "QsCertificateEnds": ({f"qs_tls_certificate_expiry_time_seconds{{{SERVER}}}": f"{14 * 86400 + 3660}x200"}, "60m"),
    "QsSnapshotHeld": ({f"qs_postgres_oldest_snapshot_seconds{{{SERVER}}}": "0x60 60+60x140"}, "60m"),
    "QsSlowDisk": (BUCKETS, "0m"),
    "QsFaults": ({f'qs_requests_total{{{SERVER},operation="ping",code="507"}}': "0x60 0+60x140"}, "60m"),
    "QsWrongTokens": ({f'qs_auth_failures_total{{{SERVER},reason="token"}}': "0x60 0+120x140"}, "60m"),
    "QsDeadLetters": ({f'qs_messages_dead_lettered_total{{{SERVER},reason="receives"}}': "0x60 1x10 1+1x130"}, "60m"),
    "QsQueueOld": ({f"qs_queue_oldest_ready_timestamp_seconds{{{QUEUE}}}": "0x200"}, "60m"),
    "QsNobodyReceives": (
        {
            f'qs_queue_messages{{{QUEUE},state="ready"}}': "0x60 5x140",
            f"qs_queue_subscriptions{{{QUEUE}}}": "0x200",
            f"qs_queue_waiting_receives{{{QUEUE}}}": "0x200",
            f"qs_queue_messages_received_total{{{QUEUE}}}": "7x200",
        },
        "60m",
    ),
    "QsPaused": ({f"qs_queue_paused{{{QUEUE}}}": "0x60 1x1600"}, "60m"),
}
"""Of each alert: figures minute by minute, and until when all is well."""
LATE = {"QsPaused": "1510m"}
"""When an alert has fired, but for those that have after 150 minutes."""


def firing(alert: str, at: str, expected: int) -> dict[str, object]:
    query = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) or vector(0)'
    return {"expr": query, "eval_time": at, "exp_samples": [{"labels": "{}", "value": expected}]}


@needs_promtool
@pytest.mark.parametrize("alert", CASES)
def test_alert(tmp_path: Path, alert: str) -> None:
    """The alert is silent as long as all is well, and fires then; no other alert does."""
    series, well_until = CASES[alert]
    late = LATE.get(alert, "150m")
    others = f'count(ALERTS{{alertname!="{alert}",alertstate="firing"}}) or vector(0)'
    expected = [
        firing(alert, well_until, 0),
        firing(alert, late, 1),
        {"expr": others, "eval_time": late, "exp_samples": [{"labels": "{}", "value": 0}]},
    ]
    test = {
        "rule_files": [str(ALERTS)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "promql_expr_test": expected,
            }
        ],
    }
    path = tmp_path / "test.yml"
    path.write_text(json.dumps(test))
    promtool("test", "rules", str(path))


@needs_promtool
def test_the_files_are_valid() -> None:
    """`promtool` accepts the rules and the configuration."""
    promtool("check", "rules", str(ALERTS))
    promtool("check", "config", str(ALERTS.with_name("prometheus.yml")))


def test_every_alert_is_tested() -> None:
    """The names above are those of the file."""
    named = [line.split(":")[1].strip() for line in ALERTS.read_text().splitlines() if "- alert:" in line]
    assert named == list(CASES)


EXPRESSIONS = [
    (panel["title"], target["expr"])
    for panel in json.loads(DASHBOARD.read_text())["panels"]
    for target in panel["targets"]
]
KNOWN = {f"qs_{name}" for name in (*FIGURES, *TOTALS, *QUEUES)} | {f"qs_bus_{name}" for name in BUS}


def metrics_in(expression: str) -> set[str]:
    """The metrics that an expression names, a histogram by its own name."""
    found = set(re.findall(r"\bqs_[a-z_]+", expression))
    return {name.removesuffix("_bucket") for name in found}


def test_dashboard_and_alerts_name_metrics_that_there_are() -> None:
    """Every metric that Grafana or an alert asks for is one that the page has."""
    text = re.sub(r"\$[a-z_]+", "", " ".join(expression for _, expression in EXPRESSIONS))
    assert metrics_in(text) <= KNOWN
    rules = [line.partition("expr:")[2] for line in ALERTS.read_text().splitlines() if "expr:" in line]
    assert set().union(*map(metrics_in, rules)) <= KNOWN


@needs_promtool
def test_expressions_of_the_dashboard_are_valid(tmp_path: Path) -> None:
    """Prometheus can read each one, with values in the place of Grafana's variables."""
    rules = [
        {"record": f"panel:{number}", "expr": expression.replace("$__rate_interval", "5m").replace("$instance", ".*")}
        for number, (_, expression) in enumerate(EXPRESSIONS)
    ]
    path = tmp_path / "rules.yml"
    path.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    promtool("check", "rules", str(path))


def test_the_places_of_the_panels() -> None:
    """No panel lies on another, and none is beside the page."""
    places = [panel["gridPos"] for panel in json.loads(DASHBOARD.read_text())["panels"]]
    cells = [(place["x"] + x, place["y"] + y) for place in places for x in range(place["w"]) for y in range(place["h"])]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24
