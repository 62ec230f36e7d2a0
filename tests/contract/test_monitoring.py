"""What is shipped for Prometheus and Grafana asks only for what is served, and alerts as meant."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fakes.metric_reference import COMPONENTS, PAGE, names, written

CONF = Path(__file__).parents[2] / "conf" / "monitoring"
NAME = re.compile(r"\b(?:tortie|ipam)_[a-z0-9_]+")


def rules() -> Iterator[dict[str, Any]]:
    for group in yaml.safe_load((CONF / "tortie-alerts.yaml").read_text())["groups"]:
        yield from group["rules"]


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((CONF / "tortie-dashboard.json").read_text())["panels"]
    return found


def test_the_reference_is_what_the_code_says() -> None:
    page = PAGE.read_text()
    assert written(page) == page, "run: python -m tests.fakes.metric_reference"


@pytest.mark.parametrize("component", sorted(COMPONENTS))
def test_names_are_prometheus(component: str) -> None:
    metrics = COMPONENTS[component]
    assert len({one.name for one in metrics}) == len(metrics)
    for one in metrics:
        assert re.fullmatch(r"(tortie|ipam)_[a-z_]+", one.name)
        assert (one.kind == "counter") == one.name.endswith("_total"), one.name
        assert one.kind != "histogram" or one.name.endswith("_seconds"), one.name
        assert one.text.endswith("."), one.name
        assert not {"le", "vm", "address"} & set(one.labels), one.name


def test_rules_ask_only_for_what_there_is() -> None:
    for rule in rules():
        asked = set(NAME.findall(rule["expr"]))
        assert asked <= names(), rule["alert"]
        told = set(NAME.findall(rule["annotations"]["summary"]))
        assert told <= names(), rule["alert"]


def test_panels_ask_only_for_what_there_is_and_leave_nothing_out() -> None:
    queries = [target["expr"] for one in panels() for target in one.get("targets", ())]
    asked = {name for query in queries for name in NAME.findall(query)}
    assert asked <= names()
    shown = {re.sub("_bucket$", "", name) for name in asked}
    mechanics = {
        "tortie_lane_waits_total",
        "tortie_lane_wait_seconds_total",
        "tortie_migration_transitions_total",
        "tortie_owner_swap_failures_total",
        "tortie_cni_kubeconfig_unchecked_seconds",
        "tortie_cni_passed_on_total",
        "tortie_cni_workers",
        "tortie_gc_passes_total",
        "tortie_gc_leaks_seen_total",
        "ipam_blocks",
        "tortie_migration_proxy_streams_total",
        "tortie_migration_proxy_bytes_total",
        "tortie_migration_proxy_migration_bytes",
    }
    served = {one.name for metrics in COMPONENTS.values() for one in metrics}
    assert served - shown == mechanics


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    ids = [one["id"] for one in panels()]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for one in panels():
        at = one["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, one["title"]
        taken |= cells


def test_every_alert_is_tested_for_silence_and_for_its_words() -> None:
    well, ill = yaml.safe_load((CONF / "tortie-alerts.test.yaml").read_text())["tests"]
    alerts = {rule["alert"] for rule in rules()}
    silent = {one["alertname"] for one in well["alert_rule_test"] if not one.get("exp_alerts")}
    told = {one["alertname"] for one in ill["alert_rule_test"] if one.get("exp_alerts")}
    assert silent == told == alerts


def test_alerts_do_as_their_tests_say() -> None:
    command = ["promtool", "test", "rules", str(CONF / "tortie-alerts.test.yaml")]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


def test_queries_of_the_dashboard_are_promql(tmp_path: Path) -> None:
    queries = [target["expr"] for one in panels() for target in one.get("targets", ())]
    bodies = [query.replace("$__rate_interval", "5m") for query in queries]
    recorded = [{"record": f"panel:{n}", "expr": body} for n, body in enumerate(bodies)]
    file = tmp_path / "panels.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": recorded}]}))
    command = ["promtool", "check", "rules", str(file)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
