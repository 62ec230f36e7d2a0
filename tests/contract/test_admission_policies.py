"""Who may make a pod a VM's: each shipped policy, by a real engine, on the same requests.

ValidatingAdmissionPolicy and Kyverno's CEL by the API server's own compiler (`make admission`;
Kyverno hands its expressions to the same code), Gatekeeper's Rego by rego-cpp. OPA itself is asked
by `make test-peer`.
"""

from __future__ import annotations

import itertools
import json
import shlex
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from regopy import Interpreter

from lab.apiserver.errors import ApiError
from lab.apiserver.server import ApiServer
from tests.fakes import admission_requests as asked
from tests.fakes.admission_engine import Engine
from tests.fakes.kubectl import Kubectl

POLICIES = Path(__file__).resolve().parents[2] / "conf" / "admission"
FORMS = ("validating-admission-policy", "kyverno", "gatekeeper")
ELSEWHERE = "system:serviceaccount:openshift-cnv:kubevirt-controller"
JSON = dict[str, Any]
Judge = Callable[[str, JSON], list[str]]


@pytest.fixture(scope="module")
def cel() -> Iterator[Engine]:
    with Engine("vapcel", "admission") as engine:
        yield engine


@pytest.fixture(scope="module")
def judge(cel: Engine) -> Judge:
    """Messages of the denials that a form of the policy, given as text, has for a request."""

    def by(text: str, request: JSON) -> list[str]:
        first, *others = list(yaml.safe_load_all(text))
        match first["kind"]:
            case "ValidatingAdmissionPolicy":
                return cel.ask(policy=first, request=request)
            case "ClusterPolicy":
                return cel.ask(policy=of_kyverno(first), request=request)
            case "ConstraintTemplate":
                return rego(first, others[0], request)
        raise AssertionError(first["kind"])

    return by


def of_kyverno(policy: JSON) -> JSON:
    """What Kyverno makes of its rule for the CEL code that both have."""
    (rule,) = policy["spec"]["rules"]
    (match,) = rule["match"]["any"]
    resources = [kind.replace("Pod", "pods", 1) for kind in match["resources"]["kinds"]]
    about = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": match["resources"]["operations"],
        "resources": resources,
    }
    cel = rule["validate"]["cel"]
    spec = {
        "matchConstraints": {"resourceRules": [about]},
        "variables": cel["variables"],
        "validations": cel["expressions"],
    }
    return {"apiVersion": "admissionregistration.k8s.io/v1", "spec": spec}


def rego(template: JSON, constraint: JSON, request: JSON) -> list[str]:
    """The violations of a constraint, where it is about the request's kind."""
    kinds = {kind for one in constraint["spec"]["match"]["kinds"] for kind in one["kinds"]}
    if request["kind"]["kind"] not in kinds:
        return []
    (target,) = template["spec"]["targets"]
    engine = Interpreter()
    engine.add_module("template", target["rego"])
    engine.set_input({"parameters": constraint["spec"]["parameters"], "review": request})
    (found,) = engine.query(f"data.{template['metadata']['name']}.violation").results
    return [str(json.loads(one)["msg"]) for one in found.expressions[0]]  # a set: its keys


def text_of(form: str) -> str:
    return (POLICIES / f"{form}.yaml").read_text()


def of_each(cases: Iterable[asked.Case]) -> Iterator[Any]:
    """Each form with each case that it hears of: Kyverno knows a pod's binding by no kind of it."""
    for case, form in itertools.product(cases, FORMS):
        if form != "kyverno" or case.request["kind"]["kind"] == "Pod":
            yield pytest.param(form, case, id=f"{form}: {case.name}")


@pytest.mark.parametrize(("form", "case"), list(of_each(asked.allowed())))
def test_it_lets_through(judge: Judge, form: str, case: asked.Case) -> None:
    assert judge(text_of(form), case.request) == []


@pytest.mark.parametrize(("form", "case"), list(of_each(asked.forged())))
def test_it_forbids_and_says_what(judge: Judge, form: str, case: asked.Case) -> None:
    said = judge(text_of(form), case.request)
    assert any(case.denied in one and one.startswith(f"only {asked.CONTROLLER} ") for one in said)


@pytest.mark.parametrize("form", ["validating-admission-policy", "gatekeeper"])
def test_the_older_way_to_bind_is_no_way_around(judge: Judge, form: str) -> None:
    case = asked.legacy_binding()
    assert [one for one in judge(text_of(form), case.request) if case.denied in one]


@pytest.mark.parametrize("form", FORMS)
def test_the_controllers_account_is_one_edit(judge: Judge, form: str) -> None:
    """The edit that docs/admission.md has."""
    edit = "s/kubevirt:kubevirt-controller/openshift-cnv:kubevirt-controller/"
    done = subprocess.run(
        ["sed", edit, str(POLICIES / f"{form}.yaml")], capture_output=True, text=True, check=True
    )
    assert judge(done.stdout, asked.request(ELSEWHERE, asked.target())) == []
    assert judge(done.stdout, asked.request(asked.CONTROLLER, asked.target()))


REFERENCES = st.lists(
    st.fixed_dictionaries(
        {
            "apiVersion": st.sampled_from(["kubevirt.io/v1", "kubevirt.io/v1alpha3", "v1"]),
            "kind": st.sampled_from(
                ["VirtualMachineInstance", "virtualmachineInstance", "VirtualMachine", "Pod"]
            ),
            "name": st.sampled_from(["db", "mail"]),
            "uid": st.sampled_from(["1", "2"]),
        },
        optional={"controller": st.booleans(), "blockOwnerDeletion": st.booleans()},
    ),
    max_size=3,
)
LABELS = st.none() | st.dictionaries(
    st.sampled_from([asked.LAUNCHER, asked.JOB, "app"]),
    st.sampled_from(["virt-launcher", "hotplug-disk", ""]),
)
PODS = st.builds(lambda owners, labels: asked.pod(*owners, labels=labels), REFERENCES, LABELS)
REQUESTS = st.builds(
    asked.request,
    st.sampled_from([asked.CONTROLLER, asked.FORGER, asked.KUBELET]),
    PODS,
    st.none() | PODS,
    st.sampled_from(["pods", "pods/status", "pods/resize"]),
)


def meant(request: JSON) -> set[str]:
    """What has to be denied of a request, in few words: the policy's meaning once more."""
    if request["userInfo"]["username"] == asked.CONTROLLER:
        return set()
    now, before = (request[one] or {"metadata": {}} for one in ("object", "oldObject"))

    def claims(found: JSON) -> set[tuple[object, ...]]:
        owners = found["metadata"].get("ownerReferences", ())
        keys = ("apiVersion", "kind", "name", "uid")
        mine = [one for one in owners if one["kind"].lower() == "virtualmachineinstance"]
        return {(*(one[key] for key in keys), one.get("controller", False)) for one in mine}

    def marks(found: JSON) -> set[tuple[str, str]]:
        labels: dict[str, str] = found["metadata"].get("labels", {})
        wanted = {asked.LAUNCHER: "virt-launcher", asked.JOB: labels.get(asked.JOB)}
        return {(key, value) for key, value in labels.items() if wanted.get(key) == value}

    said = {asked.OWNER: claims(now) - claims(before), asked.LABEL: marks(now) - marks(before)}
    return {word for word, found in said.items() if found}


@settings(max_examples=150)
@given(REQUESTS)
def test_all_forms_mean_the_same(judge: Judge, request: JSON) -> None:
    for form in FORMS:
        said = judge(text_of(form), request)
        found = {word for word in (asked.OWNER, asked.LABEL) if any(word in one for one in said)}
        assert (form, found) == (form, meant(request))


def test_an_audit_does_not_judge_what_is_there(judge: Judge) -> None:
    """Gatekeeper's audit asks about every pod, with no operation and no user."""
    review = asked.request("", asked.target()) | {"operation": "", "userInfo": {}}
    assert judge(text_of("gatekeeper"), review) == []


def test_the_manuals_commands_are_refused(
    judge: Judge, server: ApiServer, kubectl: Kubectl
) -> None:
    """docs/admission.md, "Test": by kubectl, on a server that asks the policy."""

    def policy(verb: str, resource: str, body: JSON, old: JSON | None) -> JSON:
        if resource == "pods":
            whole = {"apiVersion": "v1", "kind": "Pod", **body}
            said = judge(text_of(FORMS[0]), asked.request("kubernetes-admin", whole, old))
            if said:
                raise ApiError(403, "Forbidden", f"denied request: {said[0]}")
        return body

    server.api.hooks.append(policy)
    manual = (POLICIES.parents[1] / "docs" / "admission.md").read_text()
    text = manual.partition("## Test")[2].split("```")[1]
    words = shlex.split(text)
    starts = [place for place, word in enumerate(words) if word == "kubectl"]
    commands = [words[a + 1 : b] for a, b in zip(starts, [*starts[1:], None], strict=True)]
    refused = [line for line in manual.split("\n") if line.startswith("... denied request: ")]
    assert len(commands) == len(refused) == 2
    for command, line in zip(commands, refused, strict=True):
        assert line.removeprefix("... ") in kubectl.refused(*command)
    assert "created" in kubectl("run", "plain", "--image=none", "--dry-run=server")


def test_a_crowd_too_large_to_judge_is_forbidden(judge: Judge) -> None:
    """CEL has a budget: what exceeds it fails, and failurePolicy Fail forbids it."""
    crowd = [asked.reference(name=f"vm{n}", uid=str(n)) for n in range(3000)]
    mine = [asked.reference(name=f"vm{n}", uid=str(n), controller=False) for n in range(3000)]
    request = asked.request(asked.FORGER, asked.pod(*crowd), asked.pod(*mine))
    assert judge(text_of("validating-admission-policy"), request)
    (policy, binding) = yaml.safe_load_all(text_of("validating-admission-policy"))
    assert policy["spec"]["failurePolicy"] == "Fail"
    assert binding["spec"]["policyName"] == policy["metadata"]["name"]
    assert binding["spec"]["validationActions"] == ["Deny"]
