"""Helm 3 makes of the chart what Helm 4 does."""

from __future__ import annotations

import pytest

from tests.contract.test_chart import CASES
from tests.fakes.helm import CHART, ROOT, helm, rendered

HELM3 = ROOT / "build" / "peer" / "helm3"


@pytest.mark.parametrize("changes", CASES)
def test_both_render_the_same(changes: tuple[str, ...]) -> None:
    assert rendered(*changes, binary=HELM3) == rendered(*changes)


def test_it_finds_nothing_to_blame() -> None:
    done = helm("lint", str(CHART), "--strict", "--namespace=kube-system", binary=HELM3)
    assert done.returncode == 0, done.stdout
