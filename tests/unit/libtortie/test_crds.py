"""The definitions in `conf/crds/`: what the model says, and what Kubernetes takes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab.apiserver.crds import kind_of
from lab.apiserver.errors import ApiError
from lab.apiserver.schema import FieldValidation, conform
from libtortie.crds.__main__ import write
from libtortie.crds.manifests import Manifest, manifests
from libtortie.model.keys import Kind
from libtortie.model.written import checked
from tests.unit.libtortie.test_written import PEER

HERE = Path(__file__).parent
SHIPPED = Path(str(files("conf") / "crds"))
ALL = {one.path: one for one in manifests()}
GOLDEN = [
    json.loads(entry.split("\n", 1)[1])
    for entry in (HERE / "golden/calico_crds_written_by_v3_28.txt")
    .read_text()
    .strip()
    .split("\n\n")
    if not entry.startswith("#")
]
KNOWN = {
    "additionalProperties",
    "default",
    "description",
    "enum",
    "format",
    "items",
    "maxItems",
    "maxLength",
    "maximum",
    "minItems",
    "minLength",
    "minimum",
    "nullable",
    "pattern",
    "properties",
    "required",
    "type",
    "x-kubernetes-int-or-string",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-validations",
}
"""Words of a structural schema."""


def folder(path: str) -> str:
    return path.partition("/")[0]


def served(version: str, kind: str) -> Manifest:
    (found,) = [
        one
        for path, one in ALL.items()
        if folder(path) == version and one.document["spec"]["names"]["kind"] == kind
    ]
    return found


def stored(version: str, kind: str, body: dict[str, Any], mode: str = "Strict") -> dict[str, Any]:
    """What a server that has the definition stores of an object. Raises `ApiError`."""
    found = kind_of(served(version, kind).document)
    whole = {**body, "apiVersion": found.api_version, "kind": kind}
    return conform(found, whole, None, FieldValidation(mode))


def nodes(schema: dict[str, Any], where: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield where, schema
    for name, inner in schema.get("properties", {}).items():
        yield from nodes(inner, f"{where}.{name}")
    for word in ("items", "additionalProperties"):
        if word in schema:
            yield from nodes(schema[word], f"{where}[{word}]")


def test_the_files_are_what_the_model_says(tmp_path: Path) -> None:
    """If not: `python -m libtortie.crds`."""
    (tmp_path / "v1").mkdir()
    (tmp_path / "v1/gone.yaml").write_text("of a kind that is no more")
    write(tmp_path)
    made = {str(one.relative_to(tmp_path)): one.read_text() for one in tmp_path.glob("*/*")}
    assert made == {str(one.relative_to(SHIPPED)): one.read_text() for one in SHIPPED.glob("*/*")}
    assert {path: yaml.safe_load(text) for path, text in made.items()} == {
        path: one.document for path, one in ALL.items()
    }


def test_every_kind_that_is_stored_is_defined_in_both_groups() -> None:
    views = {Kind.NODE, Kind.PROFILE, Kind.WORKLOAD_ENDPOINT}
    own = {"IPAMBlock", "IPAMHandle", "BlockAffinity"}
    kinds = {kind.value for kind in set(Kind) - views} | own
    found = {
        version: {
            one.document["spec"]["names"]["kind"]
            for path, one in ALL.items()
            if folder(path) == version
        }
        for version in ("v1", "v3")
    }
    assert found["v3"] == kinds
    assert found["v1"] == kinds - {"IPAMConfiguration"} | {"IPAMConfig"}


@pytest.mark.parametrize("path", ALL)
def test_a_schema_is_one_that_kubernetes_takes(path: str) -> None:
    definition = ALL[path].document
    (version,) = definition["spec"]["versions"]
    whole = version["schema"]["openAPIV3Schema"]
    names = definition["spec"]["names"]
    assert definition["metadata"]["name"] == f"{names['plural']}.{definition['spec']['group']}"
    for where, schema in nodes(whole):
        assert set(schema) <= KNOWN, where
        loose = {"x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields"}
        assert "type" in schema or loose & set(schema), where
        assert not ("properties" in schema and "additionalProperties" in schema), where
        assert set(schema.get("required", ())) <= set(schema.get("properties", ())), where
        if pattern := schema.get("pattern"):  # Go's expressions
            assert not re.search(r"\(\?(?!i:)|\\[1-9]", pattern), where
    for column in version["additionalPrinterColumns"]:
        within = column["jsonPath"].split(".")[1:]
        found: Any = whole
        for step in within[:-1] if within[0] == "metadata" else within:
            if "x-kubernetes-preserve-unknown-fields" in found:
                break
            found = found["properties"][step]
        if column["type"] != "date":
            assert found.get("type", "string") == column["type"], column


def peers() -> Iterator[Any]:
    for body in yaml.safe_load_all(PEER.read_text()):
        if Kind(body["kind"]) not in (Kind.NODE, Kind.PROFILE, Kind.WORKLOAD_ENDPOINT):
            yield pytest.param(body, id=f"{body['kind']}-{body['metadata']['name']}")


@pytest.mark.parametrize("version", ["v1", "v3"])
@pytest.mark.parametrize("body", list(peers()))
def test_what_calicoctl_takes_is_taken_and_kept(body: dict[str, Any], version: str) -> None:
    resource, problems = checked(Kind(body["kind"]), body)
    assert resource is not None
    assert all("http" in one for one in problems), "which is refused by the agent alone"
    kind = body["kind"]
    if (version, kind) == ("v1", "IPAMConfiguration"):
        kind = "IPAMConfig"
    wire = resource.to_wire()
    kept = stored(version, kind, wire)
    assert {**kept["spec"], **wire["spec"]} == kept["spec"]


@pytest.mark.parametrize("body", GOLDEN, ids=lambda body: body["metadata"]["name"])
def test_what_calico_stored_is_taken_and_kept(body: dict[str, Any]) -> None:
    kept = stored("v1", body["kind"], body)
    assert {**kept["spec"], **body["spec"]} == kept["spec"]


WRONG = [
    ("IPPool", {"cidr": "10.0.0.0/8", "ipipMode": "Sometimes"}, "Unsupported value"),
    ("IPPool", {}, "spec.cidr: Required value"),
    ("IPPool", {"cidr": "10.0.0.0/8", "natOutGoing": True}, 'unknown field "spec.natOutGoing"'),
    ("BGPPeer", {"asNumber": 1 << 32}, "less than or equal to 4294967295"),
    ("BGPPeer", {"nextHopMode": "self"}, "Unsupported value"),
    ("BGPConfiguration", {"logSeverityScreen": "Loud"}, "should match"),
    ("BGPFilter", {"importV4": [{"cidr": "10.0.0.0/8"}]}, "action: Required value"),
    ("BGPFilter", {"importV4": [{"action": "Accept", "operations": []}]}, "at least 1"),
    ("FelixConfiguration", {"reportingInterval": "1.5s"}, "should match"),
    ("FelixConfiguration", {"vxlanMTU": "1450"}, "must be of type integer"),
    ("GlobalNetworkPolicy", {"ingress": [{"action": "Accept"}]}, "Unsupported value"),
    ("GlobalNetworkPolicy", {"ingress": [{"action": "Deny", "to": {}}]}, "unknown field"),
    ("GlobalNetworkPolicy", {"types": ["Ingress", "Egress", "Egress"]}, "at most 2"),
    ("NetworkPolicy", {"doNotTrack": True}, "unknown field"),
    ("NetworkPolicy", {"ingress": [{"action": "Deny", "protocol": 1.5}]}, "integer or string"),
    ("NetworkPolicy", {"selector": "x" * 1025}, "Too long"),
    ("HostEndpoint", {"interfaceName": "eth0"}, "spec.node: Required value"),
    ("StagedNetworkPolicy", {"stagedAction": "Forget"}, "Unsupported value"),
    ("Tier", {"order": "last"}, "must be of type number"),
]


@pytest.mark.parametrize("version", ["v1", "v3"])
@pytest.mark.parametrize(("kind", "spec", "said"), WRONG)
def test_what_is_wrong_is_refused_by_name(
    version: str, kind: str, spec: dict[str, Any], said: str
) -> None:
    with pytest.raises(ApiError, match=re.escape(said)):
        stored(version, kind, {"metadata": {"name": "x"}, "spec": spec})


def test_a_match_that_the_agent_refuses_reaches_it() -> None:
    """Dropped by the server it would leave a rule that allows more."""
    rule = {"action": "Allow", "http": {"methods": ["GET"]}}
    body = {"metadata": {"name": "x", "namespace": "shop"}, "spec": {"ingress": [rule]}}
    kept = stored("v3", "NetworkPolicy", body, "Ignore")
    assert kept["spec"]["ingress"] == [rule]
    whole = {"kind": "NetworkPolicy", "apiVersion": "projectcalico.org/v3", **body}
    assert any("http" in one for one in checked(Kind.NETWORK_POLICY, whole)[1])


def test_a_settings_object_has_one_name_and_calicos_defaults() -> None:
    body: dict[str, Any] = {"metadata": {"name": "default"}, "spec": {}}
    wish = {"kubeVirtVMAddressPersistence": "Enabled"}
    kept = stored("v3", "IPAMConfiguration", {**body, "spec": wish})
    defaults = {"strictAffinity": False, "autoAllocateBlocks": True, "maxBlocksPerHost": 0}
    assert kept["spec"] == {**defaults, **wish}
    with pytest.raises(ApiError, match='must be "default"'):
        stored("v3", "IPAMConfiguration", {**body, "metadata": {"name": "other"}})


def test_no_default_of_one_node_hides_what_all_nodes_are_told() -> None:
    for version in ("v1", "v3"):
        body = {"metadata": {"name": "node.n1"}, "spec": {"logPrefix": "x"}}
        assert stored(version, "FelixConfiguration", body)["spec"] == {"logPrefix": "x"}
