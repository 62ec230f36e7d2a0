"""Kubernetes' own validation takes our definitions, and judges objects as the lab's server does."""

from __future__ import annotations

import json
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab.apiserver.crds import kind_of
from lab.apiserver.errors import ApiError
from lab.apiserver.schema import FieldValidation, conform
from libtortie.model.keys import Kind
from libtortie.model.written import checked
from tests.unit.libtortie.test_crds import ALL, GOLDEN, SHIPPED, WRONG, peers, served

REPO = Path(__file__).parents[2]
GROUPS = {"v1": "crd.projectcalico.org/v1", "v3": "projectcalico.org/v3"}
Json = dict[str, Any]


@cache
def objects() -> tuple[Json, ...]:
    """What Calico stored, what calicoctl takes, and what is wrong, in both groups."""
    found: list[Json] = list(GOLDEN)
    for parameters in peers():
        (body,) = parameters.values
        resource, _ = checked(Kind(body["kind"]), body)
        assert resource is not None
        for version, group in GROUPS.items():
            kind = body["kind"]
            if (version, kind) == ("v1", "IPAMConfiguration"):
                kind = "IPAMConfig"
            found.append({**resource.to_wire(), "apiVersion": group, "kind": kind})
    for kind, spec, _ in WRONG:
        for group in GROUPS.values():
            found.append(
                {"apiVersion": group, "kind": kind, "metadata": {"name": "x"}, "spec": spec}
            )
    return tuple(found)


@cache
def answers() -> tuple[Json, ...]:
    """Kubernetes' answers to them."""
    files = [str(path) for path in sorted(SHIPPED.glob("*/*.yaml"))]
    done = subprocess.run(
        [REPO / "build/peer/crds", *files],
        input="".join(f"{json.dumps(one)}\n" for one in objects()),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return tuple(map(json.loads, done.stdout.splitlines()))


def test_the_definitions_are_taken() -> None:
    assert len(answers()) == len(objects())
    assert len(list(SHIPPED.glob("*/*.yaml"))) == len(ALL)


@pytest.mark.parametrize("number", range(len(objects())))
def test_the_lab_judges_as_kubernetes_does(number: int) -> None:
    body, answer = objects()[number], answers()[number]
    version = body["apiVersion"].rpartition("/")[2]
    kind = kind_of(served(version, body["kind"]).document)
    wish = FieldValidation("Warn")
    try:
        stored, refused = conform(kind, json.loads(json.dumps(body)), None, wish), ""
    except ApiError as error:
        stored, refused = {}, error.message
    dropped = [f'unknown field "{path}"' for path in answer["dropped"] or ()]
    assert sorted(wish.warnings) == sorted(dropped)
    assert bool(refused) == bool(answer["refused"]), (refused, answer["refused"])
    for said in answer["refused"] or ():
        assert said.partition(":")[0] in refused, (said, refused)
    if not refused:
        assert stored["spec"] == answer["stored"]["spec"]


def test_what_is_wrong_with_a_definition_would_be_told(tmp_path: Path) -> None:
    definition = json.loads(json.dumps(served("v3", "IPPool").document))
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["spec"]["properties"]["cidr"]["pattern"] = "(?!x)"
    path = tmp_path / "bad.yaml"
    path.write_text(yaml.safe_dump(definition))
    done = subprocess.run(
        [REPO / "build/peer/crds", path], input="", capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "pattern" in done.stderr
