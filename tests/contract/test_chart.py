"""The Helm chart and the plain manifest: what they render to, and who takes it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from kubernetes_validate.utils import validate

from cni_plugin.types import parse_conf
from felix_shim.config import parse_config
from lab.apiserver.server import ApiServer
from libtortie import __version__
from tests.fakes.helm import (
    CHART,
    DEADLINE,
    HELM,
    KUBERNETES,
    ROOT,
    Object,
    conflist,
    helm,
    node_yaml,
    objects,
    only,
    pods,
    refused,
    rendered,
    values,
)
from tests.fakes.kubectl import Kubectl, kubectl_for

MANIFEST = ROOT / "conf" / "tortie.yaml"
GUARDED = 'metrics.tokenSecret="m"'
OVERLAY = 'pools.ipv4.vxlanMode="Always"'
CASES = (
    (),
    (OVERLAY,),
    ("bird.ownPods=false",),
    ("bird.enabled=false",),
    (GUARDED, "metrics.serviceMonitor.enabled=true", 'metrics.serviceMonitor.labels={"a":"b"}'),
    ("metrics.prometheusRule.enabled=true", 'metrics.prometheusRule.labels={"a":"b"}'),
    ('agent.peerCertificates="/etc/tortie/peers"', 'image.pullSecrets=["a","b"]'),
    ('kubernetesAPI="https://10.0.0.1:6443"', 'calicoAPIGroup="projectcalico.org/v3"'),
    ('pools.ipv6={"cidr":"fd00::/48","blockSize":122}', 'agent.ip6="autodetect"'),
    ("controllers.replicas=1", "cni.takeover=true", 'agent.config={"bird":{"bfd":true}}'),
    ("admission.enabled=true", "controllers.page.enabled=true"),
    ('agent.affinity={"nodeAffinity":{}}', 'controllers.affinity={"podAntiAffinity":{}}'),
)
"""Together every line of the templates that a value turns on or off."""


@pytest.fixture
def kubectl(tmp_path: Path) -> Iterator[Kubectl]:
    with ApiServer() as server:
        made = kubectl_for(server, tmp_path)
        try:
            yield made
        finally:
            made.close()


def test_the_manifest_is_what_helm_renders() -> None:
    done = subprocess.run(
        [str(ROOT / "scripts" / "manifest.sh"), str(HELM)],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=True,
    )
    assert done.stdout == MANIFEST.read_text(), "run `make manifests`"
    assert rendered() == objects(MANIFEST.read_text())


def test_helm_finds_nothing_to_blame() -> None:
    done = helm("lint", str(CHART), "--strict", "--namespace=kube-system")
    assert done.returncode == 0, done.stdout
    assert "[WARNING]" not in done.stdout


def test_the_chart_is_of_this_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == __version__


def test_an_api_server_takes_every_object_and_knows_it_again(kubectl: Kubectl) -> None:
    made = kubectl("apply", "-f", str(MANIFEST)).splitlines()
    count = len(objects(MANIFEST.read_text()))
    assert len(made) == count
    assert all(line.endswith(" created") for line in made)
    stored = kubectl.read("-f", str(MANIFEST))
    kubectl("apply", "-f", str(MANIFEST))
    assert kubectl.read("-f", str(MANIFEST)) == stored, "nothing is written anew"


@pytest.mark.parametrize("changes", CASES)
def test_every_object_is_what_kubernetes_says_it_is(changes: tuple[str, ...]) -> None:
    for one in rendered(*changes):
        if not one["apiVersion"].startswith("monitoring.coreos.com/"):  # another project's
            validate(one, KUBERNETES, strict=True)


def test_the_crds_are_what_kubernetes_says_they_are() -> None:
    done = helm("show", "crds", str(CHART))
    found = objects(done.stdout)
    assert {one["kind"] for one in found} == {"CustomResourceDefinition"}
    for one in found:
        validate(one, KUBERNETES, strict=True)


@pytest.mark.parametrize("changes", CASES)
def test_the_agent_and_the_plugin_take_their_configuration(changes: tuple[str, ...]) -> None:
    release = rendered(*changes)
    environ = {"NODENAME": "n1"}
    config = parse_config(node_yaml(release), "node.yaml", environ)
    assert config.datastore_type == "kubernetes"
    assert config.cni_kubeconfig
    network = conflist(release)
    for plugin in network["plugins"]:
        parse_conf(json.dumps({**plugin, "name": network["name"], "cniVersion": "1.1.0"}).encode())


def test_the_network_is_the_shipped_one_but_for_the_datastore() -> None:
    shipped = json.loads((ROOT / "conf" / "10-tortie.conflist").read_text())
    ours = conflist(rendered())
    for one in (shipped, ours):
        (plugin,) = one["plugins"]
        plugin.pop("datastore_type")
        plugin.pop("kubernetes")
    assert ours == shipped


@pytest.mark.parametrize("seconds", [0, 1, 10, 120])
def test_the_policy_timeout_is_the_conflists(seconds: int) -> None:
    release = rendered(f"linuxPolicySetupTimeoutSeconds={seconds}")
    assert conflist(release)["plugins"][0]["policy_setup_timeout_seconds"] == seconds


def test_the_policy_timeout_is_ten_seconds_if_nothing_is_said() -> None:
    assert conflist(rendered())["plugins"][0]["policy_setup_timeout_seconds"] == 10


def test_what_is_said_for_the_plugin_and_the_agent_goes_before() -> None:
    release = rendered('cni.config={"mtu":1400}', 'agent.config={"ip":"can-reach=1.1.1.1"}')
    assert conflist(release)["plugins"][0]["mtu"] == 1400
    assert parse_config(node_yaml(release), "", {"NODENAME": "n"}).ip == "can-reach=1.1.1.1"


def test_pools_in_the_overlay_are_asked_for() -> None:
    pool = yaml.safe_load(node_yaml(rendered(OVERLAY)))["default_pools"]["ipv4"]
    assert pool["vxlan_mode"] == "Always"
    assert "vxlan_mode" not in yaml.safe_load(node_yaml(rendered()))["default_pools"]["ipv4"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("linuxPolicySetupTimeoutSeconds=121", "linuxPolicySetupTimeoutSeconds"),
        ("linuxPolicySetupTimeoutSeconds=-1", "linuxPolicySetupTimeoutSeconds"),
        ('linuxPolicySetupTimeoutSeconds="10"', "linuxPolicySetupTimeoutSeconds"),
        ("linuxPolicySetupTimeoutSecond=5", "linuxPolicySetupTimeoutSecond"),
        ('kubernetesAPI="http://10.0.0.1"', "kubernetesAPI"),
        ('pools.ipv4.vxlanMode="always"', "vxlanMode"),
        ("agent.port=70000", "port"),
        ('cni.binDir="opt/cni/bin"', "binDir"),
        ('cni.config={"type":"calico"}', "type is not ours to change"),
        ("metrics.serviceMonitor.enabled=true", "needs metrics.tokenSecret"),
        ('admission.kind="opa"', "kind"),
        ("admission.controllers=[]", "controllers"),
        ("admission.controllers=null", "controllers"),  # of a release of an older chart: no VM
        ("agent.terminationGracePeriodSeconds=null", "terminationGracePeriodSeconds"),
        ("controllers.page=null", "page"),
        ("admission=null", "admission"),
        ("""admission.controllers=["a', 'b"]""", "controllers"),
        ("controllers.page.port=0", "port"),
    ],
)
def test_values_that_make_no_sense_are_refused_by_name(change: str, said: str) -> None:
    assert said in refused(change)


def test_another_namespace_is_refused() -> None:
    assert "install tortie into kube-system" in refused(namespace="default")


def test_the_alerts_are_the_shipped_ones() -> None:
    rule = only("PrometheusRule", "tortie", rendered("metrics.prometheusRule.enabled=true"))
    shipped = (ROOT / "conf" / "monitoring" / "tortie-alerts.yaml").read_text()
    assert rule["spec"] == yaml.safe_load(shipped)


ADMISSION = ROOT / "conf" / "admission"
FORMS = {
    "vap": "validating-admission-policy",
    "kyverno": "kyverno",
    "gatekeeper": "gatekeeper",
}
SERVED = "--api-versions=constraints.gatekeeper.sh/v1beta1/TortieVMOwner"


def admission(kind: str, *changes: str, served: str = SERVED) -> list[Object]:
    """What the chart adds for a form of the policy."""
    chosen = ("admission.enabled=true", f'admission.kind="{kind}"', *changes)
    done = helm(
        "template", "tortie", str(CHART), "--namespace=kube-system", f"--kube-version={KUBERNETES}",
        "--show-only=templates/admission.yaml", *([served] if served else []), *values(*chosen),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return objects(done.stdout)


@pytest.mark.parametrize("kind", FORMS)
def test_an_admission_policy_is_the_shipped_one(kind: str) -> None:
    assert admission(kind) == objects((ADMISSION / f"{FORMS[kind]}.yaml").read_text())


@pytest.mark.parametrize("kind", FORMS)
def test_an_admission_policy_names_the_accounts_that_are_said(kind: str) -> None:
    """Each of them, and no other: judged in test_admission_policies, whose text this is."""
    accounts = ["system:serviceaccount:openshift-cnv:kubevirt-controller", "u@example.com"]
    found = admission(kind, f"admission.controllers={json.dumps(accounts)}")
    text = (ADMISSION / f"{FORMS[kind]}.yaml").read_text()
    in_cel, in_json = ("[" + ", ".join(m + one + m for one in accounts) + "]" for m in "'\"")
    shipped = "system:serviceaccount:kubevirt:kubevirt-controller"
    text = text.replace(f"['{shipped}']", in_cel).replace(f'["{shipped}"]', in_json)
    assert shipped not in text
    assert found == objects(text)


def test_no_admission_policy_is_the_default_and_is_said_to_be() -> None:
    kinds = {one["kind"] for one in rendered()}
    assert not kinds & {"ValidatingAdmissionPolicy", "ClusterPolicy", "ConstraintTemplate"}


def test_a_constraint_waits_for_its_kind() -> None:
    assert [one["kind"] for one in admission("gatekeeper", served="")] == ["ConstraintTemplate"]


def test_a_kubernetes_without_the_kind_is_told_at_once() -> None:
    done = helm(
        "template", "tortie", str(CHART), "--namespace=kube-system", "--kube-version=1.29.0",
        "--set=admission.enabled=true",
    )  # fmt: skip
    assert done.returncode != 0
    assert "admission.kind vap needs Kubernetes 1.30 or later" in done.stderr


def test_the_page_is_on_the_pods_loopback() -> None:
    def args(*changes: str) -> list[str]:
        (container,) = pods(rendered(*changes))["tortie-controllers"]["spec"]["containers"]
        return [one for one in container["args"] if "page" in one]

    assert args() == []
    found = args("controllers.page.enabled=true", "controllers.page.port=9999")
    assert found == ["--page-port=9999"]


def test_birds_pods_are_no_affair_of_the_agents() -> None:
    """A rollout replaces all containers of a pod: BIRD outlives that in another pod only."""
    before = rendered()
    after = rendered('agent.logLevel="debug"', 'image.tag="next"')
    bird = only("DaemonSet", "tortie-bird", after)
    assert bird["spec"]["updateStrategy"] == {"type": "OnDelete"}
    quiet = rendered('agent.logLevel="debug"')
    assert pods(before)["tortie-bird"] == pods(quiet)["tortie-bird"]
    assert pods(before)["tortie-node"] != pods(quiet)["tortie-node"], "read at its start only"


def test_who_may_do_what_on_the_node() -> None:
    found = pods(rendered())
    privileged = [
        (name, container["name"])
        for name, pod in found.items()
        for container in pod["spec"]["containers"] + pod["spec"].get("initContainers", [])
        if container["securityContext"].get("privileged")
    ]
    assert privileged == [("tortie-node", "agent")]
    controllers = found["tortie-controllers"]["spec"]
    assert controllers["securityContext"]["runAsNonRoot"]
    assert "hostNetwork" not in controllers
    assert "volumes" not in controllers
    assert found["tortie-bird"]["spec"]["automountServiceAccountToken"] is False


def test_every_mount_has_its_volume_and_every_volume_a_use() -> None:
    for changes in CASES:
        for name, pod in pods(rendered(*changes)).items():
            spec = pod["spec"]
            has = [one["name"] for one in spec.get("volumes", [])]
            used = {
                mount["name"]
                for container in spec["containers"] + spec.get("initContainers", [])
                for mount in container.get("volumeMounts", [])
            }
            assert set(has) == used, f"{name} with {changes}"
            assert len(has) == len(used), f"{name} with {changes}"
