"""The network configuration, and results for every CNI version."""

from __future__ import annotations

import json
import re
from ipaddress import ip_interface
from typing import Any

import pytest

from cni_plugin.errors import InvalidConfig, Refusal, UnsupportedField
from cni_plugin.types import (
    SUPPORTED_VERSIONS,
    Interface,
    NetConf,
    Result,
    addresses_of_result,
    parse_conf,
)


def parse(**settings: Any) -> NetConf:
    base = {"cniVersion": "1.0.0", "name": "net", "type": "tortie"}
    return parse_conf(json.dumps({**base, **settings}).encode())


def test_defaults() -> None:
    conf = parse()
    assert conf.datastore == "sqlite"
    assert conf.sqlite_path == "/var/lib/tortie/tortie.db"
    assert conf.endpoint_status_dir == "/run/tortie/endpoint-status"
    assert (conf.policy_setup_timeout_seconds, conf.mtu) == (0, 0)
    assert (conf.ipam.assign_ipv4, conf.ipam.assign_ipv6) == (True, False)


def test_kubernetes_is_the_datastore_where_there_is_a_section_and_no_type() -> None:
    section = {"kubeconfig": "/etc/tortie/kubeconfig"}
    assert parse(kubernetes=section).datastore == "kubernetes"
    assert parse(kubernetes=section, datastore_type="sqlite").datastore == "sqlite"
    for group in ("crd.projectcalico.org/v1", "projectcalico.org/v3"):
        conf = parse(kubernetes=section, calico_api_group=group.upper())
        assert conf.calico_api_group == group


def test_etcd_endpoints_mean_etcd_as_in_calico() -> None:
    conf = parse(
        etcd_endpoints="https://h:1",
        etcd_ca_cert_file="/ca",
        etcd_cert_file="",
        etcd_password="secret",
        kubernetes={"kubeconfig": "/etc/tortie/kubeconfig"},
    )
    assert (conf.datastore, conf.etcd_endpoints, conf.etcd_ca_cert_file) == (
        "etcdv3",
        "https://h:1",
        "/ca",
    )
    assert "secret" not in repr(conf)
    assert parse(etcd_endpoints="http://h:1", datastore_type="sqlite").datastore == "sqlite"
    with pytest.raises(InvalidConfig, match="etcd_key_file"):
        parse(etcd_key_file="relative.pem")


def test_calicos_string_flags() -> None:
    conf = parse(ipam={"type": "calico-ipam", "assign_ipv4": "false", "assign_ipv6": "true"})
    assert (conf.ipam.assign_ipv4, conf.ipam.assign_ipv6) == (False, True)


def test_null_means_not_set_at_every_level() -> None:
    assert parse(ipam=None, mtu=None, prevResult=None) == parse()
    assert parse(ipam={"assign_ipv4": None}) == parse()


def test_a_runtimes_own_keys_and_comments_are_not_ours() -> None:
    parse(
        **{
            "capabilities": {"portMappings": True},
            "args": {"x": 1},
            "dns": {},
            "_comment": "hello",
            "io.kubernetes/foo": 1,
        }
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mtu": "big"}, "mtu"),
        ({"datastore_type": "oracle"}, "datastore_type: known datastore types are sqlite, etcdv3"),
        ({"datastore_type": "etcd"}, '(it is "etcd")'),
        ({"name": "net.vmi"}, "name"),
        ({"name": "a.vmi.b"}, "name"),
        ({"kubernetes": {}}, "kubernetes: want kubeconfig or k8s_api_root"),
        ({"datastore_type": "kubernetes"}, "datastore_type kubernetes needs a `kubernetes`"),
        ({"calico_api_group": "projectcalico.org/v3"}, "calico_api_group is for datastore_type"),
        ({"calico_api_group": "v3"}, "calico_api_group: want one of crd.projectcalico.org/v1, "),
        ({"mtu": -1}, "mtu"),
        ({"mtu": 70000}, "mtu"),
        ({"mtu": 1.5}, "mtu"),
        ({"policy_setup_timeout_seconds": -1}, "policy_setup_timeout_seconds"),
        ({"policy_setup_timeout_seconds": float("nan")}, "policy_setup_timeout_seconds"),
        ({"policy_setup_timeout_seconds": 1e9}, "policy_setup_timeout_seconds"),
        ({"ipam": []}, "ipam"),
        ({"ipam": {"type": "host-local"}}, "ipam.type"),
        ({"ipam": {"ipv4_pools": "pool"}}, "ipam.ipv4_pools"),
        ({"ipam": {"assign_ipv4": "perhaps"}}, "ipam.assign_ipv4"),
        ({"policy": {"type": "calico"}}, "policy.type"),
        ({"kubernetes": "yes"}, "kubernetes"),
        ({"endpoint_status_dir": "relative"}, "endpoint_status_dir"),
        ({"log_level": "loud"}, "log_level"),
        ({"sqlite_shared": "perhaps"}, "sqlite_shared"),
        ({"runtimeConfig": {"mac": "nonsense"}}, "runtimeConfig.mac"),
        ({"runtimeConfig": {"ips": ["300.1.1.1"]}}, "runtimeConfig.ips"),
        ({"prevResult": "x"}, "prevResult"),
        ({"cni.dev/valid-attachments": {}}, "cni.dev/valid-attachments"),
        ({"cni.dev/valid-attachments": [{"ifname": "eth0"}]}, "containerID"),
        ({"cni.dev/valid-attachments": ["c1"]}, "containerID"),
        ({"cni.dev/valid-attachments": [{"containerID": 7}]}, "cni.dev/valid-attachments"),
    ],
)
def test_wrong_values_name_the_key(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfig, match=re.escape(message)) as refused:
        parse(**settings)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"policy_setup_timeout_secs": 3}, "did you mean policy_setup_timeout_seconds"),
        ({"etcd_discovery_srv": "x.y"}, '"etcd_discovery_srv" with value "x.y"'),
        ({"qps": 20}, '"qps": calls of the Kubernetes API are not throttled; remove it'),
        ({"burst": 20}, '"burst": calls of the Kubernetes API are not throttled'),
        ({"ipam": {"subnet": "usePodCidr"}}, "ipam.subnet"),
        ({"runtimeConfig": {"portMappings": []}}, "runtimeConfig.portMappings"),
    ],
)
def test_an_unknown_key_is_code_2_with_key_and_value(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnsupportedField, match=message) as refused:
        parse(**settings)
    assert refused.value.code == 2


def test_long_values_are_not_echoed() -> None:
    with pytest.raises(Refusal) as refused:
        parse(log_level="x" * 100_000)
    assert len(str(refused.value)) < 400


def test_gcs_list_under_both_names() -> None:
    listed = [{"containerID": "c1", "ifname": "eth0"}]
    for key in ("cni.dev/valid-attachments", "cni.dev/attachments"):
        assert parse(**{key: listed}).valid_attachments == (("c1", "eth0"),)
    assert parse(**{"cni.dev/valid-attachments": []}).valid_attachments == ()
    assert parse().valid_attachments is None


def test_numbers_beyond_all_bounds() -> None:
    body = b'{"cniVersion":"1.0.0","name":"n","mtu":' + b"9" * 5000 + b"}"
    with pytest.raises(Refusal):
        parse_conf(body)


RESULT = Result(
    interfaces=(
        Interface("cali0123456789a", "ee:ee:ee:ee:ee:ee", 1450),
        Interface("eth0", "02:00:00:00:00:01", 1450, "/run/netns/x"),
    ),
    addresses=(ip_interface("10.65.0.2/32"), ip_interface("fd00::2/128")),
)

HOST = {"name": "cali0123456789a", "mac": "ee:ee:ee:ee:ee:ee"}
POD = {"name": "eth0", "mac": "02:00:00:00:00:01", "sandbox": "/run/netns/x"}
OLD_IPS = [
    {"version": "4", "interface": 1, "address": "10.65.0.2/32"},
    {"version": "6", "interface": 1, "address": "fd00::2/128"},
]
NEW_IPS = [{k: v for k, v in ip.items() if k != "version"} for ip in OLD_IPS]
OLDEST = {"ip4": {"ip": "10.65.0.2/32"}, "ip6": {"ip": "fd00::2/128"}, "dns": {}}

GOLDEN: dict[str, dict[str, Any]] = {
    "0.1.0": {"cniVersion": "0.1.0", **OLDEST},
    "0.2.0": {"cniVersion": "0.2.0", **OLDEST},
    "0.3.0": {"cniVersion": "0.3.0", "interfaces": [HOST, POD], "ips": OLD_IPS, "dns": {}},
    "0.3.1": {"cniVersion": "0.3.1", "interfaces": [HOST, POD], "ips": OLD_IPS, "dns": {}},
    "0.4.0": {"cniVersion": "0.4.0", "interfaces": [HOST, POD], "ips": OLD_IPS, "dns": {}},
    "1.0.0": {"cniVersion": "1.0.0", "interfaces": [HOST, POD], "ips": NEW_IPS, "dns": {}},
    "1.1.0": {
        "cniVersion": "1.1.0",
        "interfaces": [{**HOST, "mtu": 1450}, {**POD, "mtu": 1450}],
        "ips": NEW_IPS,
        "dns": {},
    },
}


@pytest.mark.parametrize("version", SUPPORTED_VERSIONS)
def test_result_golden(version: str) -> None:
    assert RESULT.to_wire(version) == GOLDEN[version]
    assert addresses_of_result(GOLDEN[version]) == {"10.65.0.2/32", "fd00::2/128"}


def test_the_shipped_conflist_is_one_we_accept() -> None:
    from importlib import resources

    data = json.loads(resources.files("conf").joinpath("10-tortie.conflist").read_text())
    assert data["cniVersion"] == "1.0.0"
    assert "1.1.0" in data["cniVersions"]
    assert [plugin["type"] for plugin in data["plugins"]] == ["tortie"]
    (ours,) = data["plugins"]
    conf = parse(**{**ours, "name": data["name"]})
    assert conf.policy_setup_timeout_seconds == 10
