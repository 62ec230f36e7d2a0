"""The Gatekeeper form of "who may make a pod a VM's", by Open Policy Agent itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.fakes import admission_requests as asked
from tests.fakes.admission_engine import Engine

POLICY = Path(__file__).resolve().parents[2] / "conf" / "admission" / "gatekeeper.yaml"
CASES = [*asked.allowed(), *asked.forged(), asked.legacy_binding()]


@pytest.fixture(scope="module")
def opa() -> Iterator[Engine]:
    with Engine("regopolicy", "peer") as engine:
        yield engine


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_it_judges_as_meant(opa: Engine, case: asked.Case) -> None:
    template, constraint = yaml.safe_load_all(POLICY.read_text())
    (target,) = template["spec"]["targets"]
    said = opa.ask(
        rego=target["rego"],
        package=template["metadata"]["name"],
        parameters=constraint["spec"]["parameters"],
        review=case.request,
    )
    assert bool(said) is bool(case.denied)
    assert not case.denied or any(case.denied in one for one in said)
