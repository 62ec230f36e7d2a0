"""Budgets and rights as the API has them: every form of a selector, and what no API would serve."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.vm_cluster import healthy
from tortiectl.preflight.examine import Scope, examine
from tortiectl.preflight.read_services import budget_of, rules_of


def _budget(selector: Any) -> dict[str, Any]:
    spec = {"minAvailable": 1, "selector": selector}
    return {"metadata": {"name": "one", "namespace": "shop"}, "spec": spec}


def _in(key: str, *values: str, operator: str = "In") -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": list(values)}


@pytest.mark.parametrize(
    ("selector", "covers"),
    [
        ({"matchLabels": {"app": "vm1"}}, True),
        ({"matchLabels": {"app": "other"}}, False),
        ({"matchExpressions": [_in("app", "vm1", "x")]}, True),
        ({"matchExpressions": [_in("app", "x")]}, False),
        (
            {
                "matchLabels": {"app": "vm1"},
                "matchExpressions": [_in("kubevirt.io", "virt-launcher", operator="NotIn")],
            },
            False,
        ),
        ({}, True),
        (None, False),
    ],
)
def test_a_budget_covers_what_its_selector_says(selector: Any, covers: bool) -> None:
    site = healthy(vms=4)
    site.budgets.append(budget_of(_budget(selector)))
    found = examine(site.cluster(), Scope()).findings
    assert [one.code for one in found] == (["Budget"] if covers else [])


@pytest.mark.parametrize("selector", [7, [], {"matchLabels": 7}, {"matchExpressions": [7]}])
def test_a_selector_that_is_none_is_an_error(selector: Any) -> None:
    with pytest.raises(ValueError, match="validation error"):
        budget_of(_budget(selector))


@pytest.mark.parametrize("rules", [7, "x", [7], [{"verbs": 7}], [{"verbs": [["get"], {}]}], {}])
def test_rights_that_no_api_would_serve_are_none(rules: Any) -> None:
    binding = {
        "roleRef": {"name": "r"},
        "subjects": [7, {"kind": "ServiceAccount", "namespace": "n", "name": "a"}],
    }
    role = {"metadata": {"name": "r"}, "rules": rules}
    for one in rules_of([role, {"metadata": {"name": ["r"]}}], [binding, {"subjects": 7}]):
        assert one.subject == "n/a"
        assert not one.verbs
