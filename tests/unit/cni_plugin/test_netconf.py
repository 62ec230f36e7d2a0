"""The network configuration, and results for every CNI version."""

from __future__ import annotations

import json
import re
from ipaddress import ip_interface
from typing import Any

import pytest

from cni_plugin.chain import previous
from cni_plugin.errors import InvalidConfig, Refusal, UnsupportedField
from cni_plugin.types import (
    SUPPORTED_VERSIONS,
    Interface,
    NetConf,
    Result,
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
    bare = parse().model_dump(exclude={"raw"})
    nulls = parse(ipam=None, mtu=None, prevResult=None)
    assert nulls.model_dump(exclude={"raw"}) == bare
    assert parse(ipam={"assign_ipv4": None}).model_dump(exclude={"raw"}) == bare


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
        ({"policy_setup_timeout_seconds": 1e9}, "policy_setup_timeout_seconds"),
        ({"ipam": []}, "ipam"),
        ({"ipam": {"type": "../host-local"}}, "ipam.type"),
        ({"ipam": {"type": 7}}, "ipam.type: want the name of a program (it is 7)"),
        ({"type": "bridge", "ipam": {"type": "host-local"}}, "ipam.type"),
        ({"type": "bridge"}, "ipam.type"),
        ({"mtu": "1400"}, 'mtu: Input should be a valid integer (it is "1400")'),
        ({"sqlite_shared": "true"}, "sqlite_shared"),
        ({"nodename": 7}, "nodename"),
        ({"ipam": {"ipv4_pools": ["p", 7]}}, "ipam.ipv4_pools.1"),
        ({"ipam": {"gateway": ["10.0.0.1", "10.0.0.2"]}}, "ipam.gateway: want one address per"),
        ({"ipam": {"gateway": "10.0.0"}}, "ipam.gateway"),
        ({"ipam": {"routes": [{"dst": "10.0.0/8"}]}}, "ipam.routes.0"),
        ({"ipam": {"prefix": "pools"}}, "ipam.prefix"),
        ({"device_type": "ipvlan"}, "device_type"),
        ({"num_queues": 5000}, "num_queues"),
        ({"feature_control": {"floating_ips": "true"}}, "feature_control.floating_ips"),
        ({"container_settings": {"allow_ip_forwarding": 1}}, "container_settings.allow_ip"),
        ({"readiness_gates": ["localhost:9099/ready"]}, "readiness_gates"),
        ({"readiness_gates": "http://localhost"}, "readiness_gates"),
        ({"dataplane_options": {"type": "grpc", "socket": "/s"}}, "dataplane_options.type"),
        ({"policy_setup_on_timeout": "panic"}, "policy_setup_on_timeout"),
        ({"log_file_max_size": 0}, "log_file_max_size"),
        ({"etcd_scheme": "ftp"}, "etcd_scheme"),
        ({"policy": {"k8s_client_key": "/k"}}, "policy: k8s_client_certificate and k8s_client_key"),
        ({"policy": {"k8s_client_key": "k", "k8s_client_certificate": "/c"}}, "absolute path"),
        ({"qps": -1}, "qps"),
        ({"burst": 1.5}, "burst"),
        ({"runtimeConfig": {"ipRanges": [[{"subnet": "10.0.0.1/8"}]]}}, "runtimeConfig.ipRanges"),
        ({"runtimeConfig": {"ipRanges": [[{"rangeStart": "10.0.0.1"}]]}}, "rangeStart is not"),
        ({"runtimeConfig": {"ipRanges": [[{}]]}}, "runtimeConfig.ipRanges: every range needs"),
        ({"runtimeConfig": {"ipRanges": [{}]}}, "runtimeConfig.ipRanges"),
        ({"runtimeConfig": {"portMappings": {"hostPort": 1}}}, "runtimeConfig.portMappings"),
        ({"runtimeConfig": {"bandwidth": {"ingressRate": "1M"}}}, "runtimeConfig.bandwidth.ingr"),
        ({"ipam": {"ipv4_pools": "pool"}}, "ipam.ipv4_pools"),
        ({"ipam": {"assign_ipv4": "perhaps"}}, "ipam.assign_ipv4"),
        ({"ipam": {"routes": [{"dst": "10.0.0.0/8", "gw": "there"}]}}, "ipam.routes"),
        ({"policy": {"type": "calico"}}, "policy.type"),
        ({"kubernetes": "yes"}, "kubernetes"),
        ({"endpoint_status_dir": "relative"}, "endpoint_status_dir"),
        ({"log_level": "loud"}, "log_level"),
        ({"sqlite_shared": "perhaps"}, "sqlite_shared"),
        ({"runtimeConfig": {"mac": "nonsense"}}, "runtimeConfig.mac"),
        ({"runtimeConfig": {"mac": "00:00:00:00:00:00"}}, "runtimeConfig.mac"),
        ({"runtimeConfig": {"mac": "03:00:00:00:00:01"}}, "runtimeConfig.mac"),
        ({"runtimeConfig": {"ips": ["300.1.1.1"]}}, "runtimeConfig.ips"),
        ({"prevResult": "x"}, "prevResult"),
        ({"cni.dev/valid-attachments": {}}, "cni.dev/valid-attachments"),
        ({"cni.dev/valid-attachments": [{"ifname": "eth0"}]}, "containerID"),
        ({"cni.dev/valid-attachments": [{"containerID": "c1"}]}, "ifname"),
        ({"cni.dev/valid-attachments": [{"containerID": "c1", "ifname": ""}]}, "ifname"),
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
        ({"etcd_discovery_srv": "x.y"}, '"etcd_discovery_srv": SRV records are not looked up'),
        ({"datastore_typ": "etcdv3"}, "did you mean datastore_type"),
        ({"ipam": {"subnet": "usePodCidr"}}, "ipam.subnet"),
        ({"feature_control": {"floating_ip": True}}, "feature_control.floating_ip"),
    ],
)
def test_an_unknown_key_is_code_2_with_key_and_value(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnsupportedField, match=message) as refused:
        parse(**settings)
    assert refused.value.code == 2


def test_calicos_conflist_is_taken_as_it_is() -> None:
    """Every key of its page that applies on Linux, with its defaults; those of Windows, too."""
    conf = parse(
        type="calico",
        nodename="n1",
        nodename_file_optional=True,
        hostname="old",
        require_mtu_file=True,
        num_queues=0,
        device_type="veth",
        kubernetes={"kubeconfig": "/etc/cni/net.d/calico-kubeconfig", "node_name": "n1"},
        qps=20,
        burst=30,
        policy={"type": "k8s", "k8s_api_root": "https://h:6443", "k8s_auth_token": "secret"},
        ipam={"type": "calico-ipam", "assign_ipv4": "TRUE", "ipv4_pools": ["10.0.0.0/8"]},
        ipam_lock_file="/var/run/calico/ipam.lock",
        include_default_routes=True,
        container_settings={"allow_ip_forwarding": True},
        feature_control={"ip_addrs_no_ipam": True, "floating_ips": True},
        readiness_gates=["http://localhost:9099/readiness"],
        log_level="Warning",
        log_file_max_size=1,
        log_file_max_age=2,
        log_file_max_count=3,
        dataplane_options={},
        windows_use_single_network=True,
        vxlan_mac_prefix="0E-2A",
        mode="vxlan",
        args={"mesos": 1},
        runtimeConfig={"dns": {}, "portMappings": [{"hostPort": 80, "containerPort": 8080}]},
    )
    assert (conf.num_queues, conf.log_level, conf.qps, conf.burst) == (1, "warning", 20, 30)
    assert conf.container_settings.allow_ip_forwarding
    assert (conf.feature_control.ip_addrs_no_ipam, conf.feature_control.floating_ips) == (1, 1)
    assert conf.ipam.assign_ipv4
    assert not conf.delegated
    assert "secret" not in repr(conf)
    bare = parse()
    assert (bare.num_queues, bare.log_level, bare.mtu, bare.qps) == (1, "info", 0, 0)
    logs = (bare.log_file_max_size, bare.log_file_max_age, bare.log_file_max_count)
    assert logs == (100, 30, 10)
    assert not bare.container_settings.allow_ip_forwarding
    gates = (bare.feature_control.ip_addrs_no_ipam, bare.feature_control.floating_ips)
    assert gates == (False, False)
    assert (bare.readiness_gates, bare.require_mtu_file) == ((), False)
    assert not bare.nodename_file_optional


def test_etcds_older_keys_name_an_endpoint() -> None:
    conf = parse(etcd_authority="h:2379", etcd_scheme="https", etcd_ca_cert_file="/ca")
    assert (conf.datastore, conf.etcd_endpoints) == ("etcdv3", "https://h:2379")
    assert parse(etcd_authority="h:2379").etcd_endpoints == "http://h:2379"
    assert parse(etcd_authority="h:1", etcd_endpoints="http://i:2").etcd_endpoints == "http://i:2"


def test_the_api_by_calicos_older_keys() -> None:
    by_policy = {"policy": {"k8s_api_root": "https://p:6443"}}
    api = parse(**by_policy).api
    assert api is not None
    assert api.k8s_api_root == "https://p:6443"
    assert parse(**by_policy).datastore == "sqlite"
    both = parse(
        **by_policy, kubernetes={"k8s_api_root": "https://k:6443"}, datastore_type="sqlite"
    )
    assert both.api == both.kubernetes
    assert parse().api is None


def test_what_is_somebody_elses_is_kept() -> None:
    conf = parse(
        flannel={"x": 1},
        ipam={"type": "host-local", "subnet": "usePodCidr", "whatever": [None]},
        runtimeConfig={"ipRanges": [[{"subnet": "10.1.0.0/16", "rangeStart": "10.1.0.9"}]]},
    )
    assert conf.delegated == "host-local"
    assert conf.raw["flannel"] == {"x": 1}
    assert conf.raw["ipam"]["whatever"] == [None]
    assert conf.raw["runtimeConfig"]["ipRanges"][0][0]["rangeStart"] == "10.1.0.9"


def test_a_foreign_plugins_configuration_is_that_plugins() -> None:
    body = {"type": "bridge", "ipam": {"type": "tortie-ipam"}, "nodname": 1, "isGateway": True}
    conf = parse(**body)
    assert conf.is_foreign
    assert not parse().is_foreign
    assert not parse(type="calico").is_foreign


@pytest.mark.parametrize(
    ("dns", "error"),
    [
        ({"nameservers": ["10.96.0.10", "fd00::10"], "domain": "x.", "search": ["a"]}, ""),
        ({"options": ["ndots:5"]}, ""),
        ({}, ""),
        ({"nameservers": ["nonsense"]}, "dns.nameservers"),
        ({"nameservers": "10.96.0.10"}, "dns.nameservers"),
        ({"servers": ["10.96.0.10"]}, "dns.servers"),
        (["10.96.0.10"], "dns"),
    ],
)
def test_the_networks_own_dns(dns: Any, error: str) -> None:
    if error:
        with pytest.raises(Refusal, match=error):
            parse(dns=dns)
    else:
        assert parse(dns=dns).dns.to_wire() == dns
    assert parse(type="bridge", ipam={"type": "tortie-ipam"}, dns=dns).dns.to_wire() == {}


def test_masquerading_is_refused_and_not_forgotten() -> None:
    with pytest.raises(UnsupportedField, match="key ipMasq with value true"):
        parse(ipMasq=True)
    assert not parse(ipMasq=False).is_foreign
    assert parse(type="bridge", ipam={"type": "tortie-ipam"}, ipMasq=True).is_foreign


def test_a_route_has_the_keys_of_its_version() -> None:
    route = {"dst": "10.0.0.0/8", "gw": "10.65.0.1", "mtu": 1400, "priority": 5, "scope": 0}
    told = Result((), (ip_interface("10.65.0.2/26"),), routes=(route,))
    assert told.to_wire("1.1.0")["routes"] == [route]
    old = [{"dst": "10.0.0.0/8", "gw": "10.65.0.1"}]
    assert told.to_wire("1.0.0")["routes"] == told.to_wire("0.3.1")["routes"] == old
    assert told.to_wire("0.2.0")["ip4"]["routes"] == old


def test_where_executables_are() -> None:
    base = json.dumps({"name": "n", "type": "tortie"}).encode()
    assert parse_conf(base, "/opt/cni/bin:relative::/usr/lib/cni").plugin_dirs == (
        "/opt/cni/bin",
        "/usr/lib/cni",
    )
    injected = parse_conf(b'{"name":"n","plugin_dirs":["/evil"],"delegated":"x","raw":{}}')
    assert (injected.plugin_dirs, injected.delegated) == ((), "")


def test_secrets_are_not_echoed() -> None:
    for settings in (
        {"etcd_password": 123456},
        {"policy": {"k8s_auth_token": 123456}},
        {"policy": {"k8s_auth_token": "123456", "k8s_client_key": "/k"}},
    ):
        with pytest.raises(InvalidConfig) as refused:
            parse(**settings)
        assert "123456" not in str(refused.value)


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
    told = previous(GOLDEN[version])
    assert told is not None
    assert {str(one) for one in told.addresses()} == {"10.65.0.2", "fd00::2"}


def test_the_shipped_conflist_is_one_we_accept() -> None:
    from importlib import resources

    data = json.loads(resources.files("conf").joinpath("10-tortie.conflist").read_text())
    assert data["cniVersion"] == "1.0.0"
    assert "1.1.0" in data["cniVersions"]
    assert [plugin["type"] for plugin in data["plugins"]] == ["tortie"]
    (ours,) = data["plugins"]
    conf = parse(**{**ours, "name": data["name"]})
    assert conf.policy_setup_timeout_seconds == 10


def test_the_same_configuration_is_read_once_and_a_refused_one_every_time() -> None:
    text = b'{"cniVersion":"1.0.0","name":"net","type":"tortie","mtu":1400}'
    first = parse_conf(text, "/opt/cni/bin")
    assert parse_conf(text, "/opt/cni/bin") is first
    assert parse_conf(text, "/usr/lib/cni").plugin_dirs == ("/usr/lib/cni",)
    assert parse_conf(text.replace(b"1400", b"1401"), "/opt/cni/bin").mtu == 1401
    for _ in range(2):
        with pytest.raises(InvalidConfig, match="mtu"):
            parse_conf(text.replace(b"1400", b"70000"))


def test_what_is_too_large_is_not_remembered() -> None:
    text = b'{"cniVersion":"1.0.0","name":"net","type":"tortie","prevResult":{"x":"%s"}}'
    large = text % (b"x" * (1 << 14))
    assert parse_conf(large) == parse_conf(large)
    assert parse_conf(large) is not parse_conf(large)
