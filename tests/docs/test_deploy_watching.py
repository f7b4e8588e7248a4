"""The alert rules and the dashboard of deploy/: they can be loaded, and name what a server has."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from durastreamd.config import SETTINGS
from tests.support.daemon import ROOT, Daemon
from tests.support.patience import PATIENCE_S

RULES = ROOT / "deploy" / "durastreamd.rules.yml"
DASHBOARD = ROOT / "deploy" / "grafana.json"

# Two hours of four servers: one well, one gone, one with a full and damaged disk, one that fails.
ALERTS = """
rule_files: [{rules}]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {{series: 'up{{job="durastreamd", instance="well"}}', values: '1x120'}}
      - {{series: 'up{{job="durastreamd", instance="gone"}}', values: '0x120'}}
      - {{series: 'durastreamd_damaged_streams{{instance="well"}}', values: '0x120'}}
      - {{series: 'durastreamd_damaged_streams{{instance="hurt"}}', values: '2x120'}}
      - {{series: 'durastreamd_disk_size_bytes{{instance="well"}}', values: '1000x120'}}
      - {{series: 'durastreamd_disk_free_bytes{{instance="well"}}', values: '900-1x120'}}
      - {{series: 'durastreamd_disk_size_bytes{{instance="hurt"}}', values: '1000x120'}}
      - {{series: 'durastreamd_disk_free_bytes{{instance="hurt"}}', values: '220-1x120'}}
      - {{series: 'durastreamd_http_requests_total{{instance="well", code="2xx"}}', values: '0+99x120'}}
      - {{series: 'durastreamd_http_requests_total{{instance="fails", code="2xx"}}', values: '0+90x120'}}
      - {{series: 'durastreamd_http_requests_total{{instance="fails", code="5xx"}}', values: '0+10x120'}}
    alert_rule_test:
      - {{eval_time: 1m, alertname: DurastreamdDown, exp_alerts: []}}
      - eval_time: 90m
        alertname: DurastreamdDown
        exp_alerts: [{{exp_labels: {{severity: critical, job: durastreamd, instance: gone}}, exp_annotations: {{
          summary: gone does not answer,
          description: "No metrics for two minutes. The log says why it ended; see EXIT STATUS in durastreamd(8)."}}}}]
    promql_expr_test:
      - expr: count by (alertname, instance) (ALERTS{{alertstate="firing"}})
        eval_time: 90m
        exp_samples:
          - {{labels: '{{alertname="DurastreamdDown", instance="gone"}}', value: 1}}
          - {{labels: '{{alertname="DurastreamdDamagedStreams", instance="hurt"}}', value: 1}}
          - {{labels: '{{alertname="DurastreamdDiskFillsUp", instance="hurt"}}', value: 1}}
          - {{labels: '{{alertname="DurastreamdErrors", instance="fails"}}', value: 1}}
"""  # noqa: E501


def promtool(*words: object) -> None:
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("promtool is not installed")
    done = subprocess.run(
        [tool, *map(str, words)], capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stdout + done.stderr


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return [panel for panel in found if panel["type"] != "row"]


def expressions() -> list[str]:
    return [target["expr"] for panel in panels() for target in panel["targets"]]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Metric]:
    with Daemon(tmp_path_factory.mktemp("home")) as daemon:
        httpx.put(daemon.stream("s"), content=b"x").raise_for_status()
        text = httpx.get(f"{daemon.url}/-/metrics").text
    return {family.name: family for family in text_string_to_metric_families(text)}


def test_the_rules_can_be_loaded() -> None:
    promtool("check", "rules", RULES)


def test_alerts_fire_for_servers_in_trouble_and_for_no_other(tmp_path: Path) -> None:
    cases = tmp_path / "cases.yml"
    cases.write_text(ALERTS.format(rules=RULES))
    promtool("test", "rules", cases)


def test_the_queries_of_the_dashboard_can_be_run(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{number}", "expr": text.replace("$__rate_interval", "5m")}
        for number, text in enumerate(expressions())
    ]
    file = tmp_path / "panels.yml"  # JSON is YAML, too
    file.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    promtool("check", "rules", file)
    assert len(rules) > 30


@pytest.mark.system
def test_every_metric_that_is_named_is_on_the_page(page: dict[str, Metric]) -> None:
    there = {family.name for family in page.values() if family.type == "gauge"}
    there |= {f"{family.name}_total" for family in page.values() if family.type == "counter"}
    for family in page.values():
        if family.type == "histogram":
            there |= {f"{family.name}_{end}" for end in ("bucket", "sum", "count")}
    named = re.compile(r"\b(?:durastreamd|process)_[a-z0-9_]+\b")
    rules = named.findall(RULES.read_text())
    dashboard = named.findall(DASHBOARD.read_text())
    assert len(set(rules)) > 15
    assert len(set(dashboard)) > 30
    assert {*rules, *dashboard} - there == set()


@pytest.mark.system
def test_every_label_that_is_named_is_on_the_page(page: dict[str, Metric]) -> None:
    labels = {name for family in page.values() for one in family.samples for name in one.labels}
    labels |= {"instance", "job"}  # Prometheus adds these
    texts = [RULES.read_text(), *expressions()]
    texts += [target["legendFormat"] for panel in panels() for target in panel["targets"]]
    named = {
        name.strip()
        for text in texts
        for group in re.findall(r"by \(([a-z, ]+)\)|\{\{([a-z]+)\}\}|[{,]\s*([a-z]+)=~?\"", text)
        for name in ",".join(group).split(",")
    }
    assert {"code", "le", "mode"} <= named
    assert named - {""} - labels == set()


def test_settings_that_the_rules_name_exist() -> None:
    sections = {name.partition(".")[0] for name in SETTINGS}
    named = re.findall(r"\b([a-z]+\.[a-z][a-z0-9_]+)\b", RULES.read_text())
    named = [name for name in named if name.partition(".")[0] in sections]
    assert len(set(named)) >= 5
    assert set(named) <= set(SETTINGS)


def test_panels_do_not_cover_one_another() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert at["x"] + at["w"] <= 24, panel["title"]
        assert not cells & taken, panel["title"]
        taken |= cells


def test_the_page_has_a_line_for_every_alert() -> None:
    alerts = re.findall(r"alert: Durastreamd(\w+)", RULES.read_text())
    rows = re.findall(r"(?m)^\| ([A-Z][\w, ]+) \|", (ROOT / "docs" / "deploy.md").read_text())
    assert sorted(", ".join(rows).split(", ")) == sorted(alerts)
