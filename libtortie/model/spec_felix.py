"""What a FelixConfiguration may say when it is written: Calico's fields, and ours. Pure.

Calico's agent has many fields that ours does not need. They may be written, as Calico's users do;
which of them this agent obeys its own page says.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from libtortie.model.spec_bgp import PRIORITY, SEVERITY
from libtortie.model.spec_shape import (
    Check,
    address,
    any_network,
    anything,
    duration,
    either,
    flag,
    list_of,
    map_of,
    network,
    number,
    one_of,
    selector,
    shown,
    struct,
    text,
    valued,
)

_INT = number(-(1 << 31), (1 << 31) - 1)
_COUNT = number(0, (1 << 31) - 1)
_MARK = number(0, (1 << 32) - 1)
_PORT = number(0, 65535)
_SWITCH = one_of("Enabled", "Disabled")
_ALLOW = one_of("Accept", "Return", any_case=True)
_DENY = one_of("Drop", "Reject", any_case=True)
_PERIOD = duration(whole=True)
_TABLES_MOST = 65535


@valued
def _regex(value: Any) -> Any:
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is not a regular expression")
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"{shown(value)} is not a regular expression: {error}") from error
    return value


@valued
def port_range(value: Any) -> Any:
    """A port or `first:last`."""
    if isinstance(value, int) and not isinstance(value, bool):
        first = last = value
    elif isinstance(value, str) and re.fullmatch(r"\d{1,5}(:\d{1,5})?", value):
        first, last = int(value.split(":")[0]), int(value.split(":")[-1])
    else:
        raise ValueError(f"{shown(value)} is not a port or first:last")
    if not first <= last < 1 << 16:
        raise ValueError(f"{shown(value)} is not a range of ports from 0 to 65535")
    return first if first == last else f"{first}:{last}"


def _table_range(most: int) -> Check:
    def rule(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        if found["min"] > found["max"]:
            yield "min", f"{found['min']} is more than max {found['max']}"

    bound = number(1, most)
    return struct({"min": bound, "max": bound}, required=["min", "max"], rules=[rule])


_FAILSAFE = list_of(
    struct(
        {
            "protocol": one_of("TCP", "UDP", "SCTP", any_case=True),
            "port": number(0, 65535),
            "net": any_network,
        },
        required=["port"],
    )
)
_FLAGS = (
    "allowIPIPPacketsFromWorkloads allowVXLANPacketsFromWorkloads"
    " bpfConnectTimeLoadBalancingEnabled bpfDisableUnprivileged bpfEnabled"
    " bpfHostConntrackBypass bpfIPFragmentReassemblyEnabled"
    " bpfKubeProxyEndpointSlicesEnabled bpfKubeProxyIptablesCleanupEnabled bpfPolicyDebugEnabled"
    " debugDisableLogDropping disableConntrackInvalidCheck endpointReportingEnabled"
    " flowLogsCollectorDebugTrace genericXDPEnabled healthEnabled ipipEnabled ipv6Support"
    " prometheusGoMetricsEnabled prometheusMetricsEnabled prometheusProcessMetricsEnabled"
    " prometheusWireGuardMetricsEnabled removeExternalRoutes requireMTUFile routeSyncDisabled"
    " sidecarAccelerationEnabled usageReportingEnabled useInternalDataplaneDriver vxlanEnabled"
    " wireguardEnabled wireguardEnabledV6 wireguardHostEncryptionEnabled"
    " wireguardThreadingEnabled xdpEnabled"
)
_DURATIONS = (
    "bpfIPFragTimeout bpfKubeProxyMinSyncPeriod debugSimulateCalcGraphHangAfter"
    " debugSimulateDataplaneApplyDelay debugSimulateDataplaneHangAfter endpointReportingDelay"
    " flowLogsFlushInterval interfaceRefreshInterval ipsetsRefreshInterval"
    " iptablesLockProbeInterval iptablesLockTimeout iptablesPostWriteCheckInterval"
    " iptablesRefreshInterval netlinkTimeout reportingInterval reportingTTL routeRefreshInterval"
    " usageReportingInitialDelay usageReportingInterval wireguardKeepAlive xdpRefreshInterval"
)
_FRACTIONS = (
    "dataplaneWatchdogTimeout liveMigrationRouteConvergenceTime nftablesRefreshInterval"
    " localSubnetL2ReachabilityRefreshInterval policyGateTimeout"
)
_TEXTS = (
    "bpfCTLBLogFilter cgroupV2Path dataplaneDriver debugHost debugMemoryProfilePath"
    " endpointStatusPathPrefix flowLogsGoldmaneServer healthHost interfaceExclude interfacePrefix"
    " iptablesLockFilePath iptablesNATOutgoingInterfaceFilter logFilePath metadataAddr"
    " openstackRegion policySyncPathPrefix prometheusMetricsCAFile prometheusMetricsCertFile"
    " prometheusMetricsKeyFile wireguardInterfaceName wireguardInterfaceNameV6"
    " prometheusMetricsClientAuth"
)
_COUNTS = (
    "bpfExportBufferSizeMB bpfMaglevMaxEndpointsPerService bpfMaglevMaxServices"
    " bpfMapSizeConntrack bpfMapSizeConntrackCleanupQueue bpfMapSizeIPSets bpfMapSizeIfState"
    " bpfMapSizeNATAffinity bpfMapSizeNATBackend bpfMapSizeNATFrontend bpfMapSizePerCpuConntrack"
    " bpfMapSizeRoute deviceRouteProtocol ipipMTU maxIpsetSize vxlanMTU vxlanMTUV6 vxlanVNI"
    " wireguardMTU wireguardMTUV6 wireguardRoutingRulePriority"
)
_PORTS = (
    "bpfKubeProxyHealthzPort debugPort healthPort metadataPort prometheusMetricsPort vxlanPort"
    " wireguardListeningPort wireguardListeningPortV6"
)
_REGEXES = (
    "bpfDataIfacePattern bpfDisableGROForIfaces bpfL3IfacePattern logDebugFilenameRegex"
    " mtuIfacePattern nftablesFlowTableDataIfacePattern"
)
_SWITCHES = (
    "bpfHostNetworkedNATWithoutCTLB bpfProfiling bpfRedirectToPeer floatingIPs"
    " flowLogsLocalReporter ipForwarding istioAmbientMode programClusterRoutes"
    " windowsManageFirewallRules"
)
_PRIORITIES = (
    "ipv4ElevatedRoutePriority ipv4NormalRoutePriority ipv6ElevatedRoutePriority"
    " ipv6NormalRoutePriority"
)
_OF_TYPE: tuple[tuple[str, Check], ...] = (
    (_FLAGS, flag),
    (_DURATIONS, _PERIOD),
    (_FRACTIONS, duration()),
    (_TEXTS, text()),
    (_COUNTS, _COUNT),
    (_PORTS, _PORT),
    (_REGEXES, _regex),
    (_SWITCHES, _SWITCH),
    (_PRIORITIES, PRIORITY),
    ("iptablesFilterAllowAction iptablesMangleAllowAction", _ALLOW),
    ("nftablesFilterAllowAction nftablesMangleAllowAction", _ALLOW),
    ("iptablesFilterDenyAction nftablesFilterDenyAction", _DENY),
    ("iptablesMarkMask nftablesMarkMask bpfExtToServiceConnmark", _MARK),
    ("logSeverityFile logSeverityScreen logSeveritySys", SEVERITY),
    ("goGCThreshold goMaxProcs goMemoryLimitMB", _INT),
    ("failsafeInboundHostPorts failsafeOutboundHostPorts", _FAILSAFE),
    ("bpfDSROptoutCIDRs bpfExcludeCIDRsFromNAT", list_of(network)),
    ("natPortRange bpfPSNATPorts", port_range),
    ("natOutgoingAddress deviceRouteSourceAddress deviceRouteSourceAddressIPv6", address),
)
_SINGLE: dict[str, Check] = {
    "awsSrcDstCheck": one_of("DoNothing", "Enable", "Disable"),
    "bpfAttachType": one_of("TC", "TCX"),
    "bpfConnectTimeLoadBalancing": one_of("TCP", "Enabled", "Disabled"),
    "bpfConntrackLogLevel": one_of("Off", "Debug"),
    "bpfConntrackMode": one_of("Auto", "Userspace", "BPFProgram"),
    "bpfConntrackTimeouts": map_of(text()),
    "bpfEnforceRPF": one_of("Disabled", "Strict", "Loose", any_case=True),
    "bpfExternalServiceMode": one_of("Tunnel", "DSR", any_case=True),
    "bpfForceTrackPacketsFromIfaces": list_of(text()),
    "bpfJITHardening": one_of("Auto", "Strict"),
    "bpfLogFilters": map_of(text()),
    "bpfLogLevel": one_of("", "Off", "Info", "Debug", any_case=True),
    "bpfMapSizeConntrackScaling": one_of("Disabled", "DoubleIfFull", any_case=True),
    "bpfOverlayHostSourceIP": one_of("TunnelAddress", "HostAddress"),
    "chainInsertMode": one_of("Insert", "Append", any_case=True),
    "defaultEndpointToHostAction": one_of("Drop", "Accept", "Return", any_case=True),
    "externalNodesList": list_of(any_network),
    "featureDetectOverride": text(r"([\w-]+=(true|false|),)*([\w-]+=(true|false|))?"),
    "featureGates": text(r"([\w-]+=([^=]+),)*([\w-]+=([^=]+))?"),
    "flowLogsPolicyEvaluationMode": one_of("None", "Continuous"),
    "healthTimeoutOverrides": list_of(
        struct(
            {"name": text(r"[a-zA-Z0-9_ -]+"), "timeout": duration()},
            required=["name", "timeout"],
        )
    ),
    "iptablesBackend": one_of("Legacy", "NFT", "Auto", any_case=True),
    "istioDSCPMark": anything,
    "kubeNodePortRanges": list_of(port_range, most=7),
    "localSubnetL2Reachability": one_of("Disabled", "PodsAndLoadBalancers"),
    "logActionRateLimit": text(
        r"[1-9]\d{0,3}/(second|minute|hour|day)", said="is not a rate such as 10/second"
    ),
    "logActionRateLimitBurst": number(0, 9999),
    "logPrefix": text(r"[a-zA-Z0-9%: /_-]*"),
    "natOutgoingExclusions": one_of("IPPoolsOnly", "IPPoolsAndHostIPs"),
    "nftablesFlowTableOffload": one_of("All", "Disabled"),
    "nftablesMode": one_of("Disabled", "Enabled", "Auto"),
    "nodeSelector": selector,
    "policyGateOnTimeout": one_of("Raise", "Hold"),
    "prometheusMetricsHost": text(most=64),
    "routeSource": one_of("WorkloadIPs", "CalicoIPAM", any_case=True),
    "routeTableRange": _table_range(250),
    "routeTableRanges": list_of(_table_range(_TABLES_MOST)),
    "serviceLoopPrevention": one_of("Drop", "Reject", "Disabled", any_case=True),
    "workloadSourceSpoofing": one_of("Disabled", "Any"),
}


def _addresses(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    families = {
        "natOutgoingAddress": 4,
        "deviceRouteSourceAddress": 4,
        "deviceRouteSourceAddressIPv6": 6,
    }
    for field, version in families.items():
        given = spec.get(field)
        if given and (6 if ":" in given else 4) != version:
            yield field, f"{given} is not an IPv{version} address"


def _tables(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    ranges = spec.get("routeTableRanges") or ()
    if sum(one["max"] - one["min"] + 1 for one in ranges) > _TABLES_MOST:
        yield "routeTableRanges", f"more than {_TABLES_MOST} tables"


FELIX = struct(
    {name: check for names, check in _OF_TYPE for name in names.split()} | _SINGLE,
    rules=[either("routeTableRange", "routeTableRanges"), _addresses, _tables],
)
STORED = {
    "nftablesMode": "Auto",
    "nftablesFlowTableOffload": "Disabled",
    "bpfConnectTimeLoadBalancing": "TCP",
    "bpfHostNetworkedNATWithoutCTLB": "Enabled",
    "floatingIPs": "Disabled",
}
"""What Calico writes where its user says nothing."""


def felix_spec(value: Any, path: str, problems: list[str]) -> Any:
    """A FelixConfiguration's, with what Calico stores of its own."""
    found = FELIX(value, path, problems)
    if not isinstance(found, dict):
        return found
    stored = dict(STORED)
    older = found.get("bpfConnectTimeLoadBalancingEnabled")
    if older is not None:
        stored["bpfHostNetworkedNATWithoutCTLB"] = "Disabled"
        stored["bpfConnectTimeLoadBalancing"] = "Enabled" if older else "Disabled"
    return {**stored, **found}


def name_problems(name: str, spec: Mapping[str, Any]) -> Iterator[str]:
    """`default` and `node.<name>` are found by name, others by their nodeSelector."""
    own = name == "default" or name.startswith("node.")
    if own and spec.get("nodeSelector"):
        yield f"spec.nodeSelector: not for {name}, which is found by its name"
    if not own and not spec.get("nodeSelector"):
        yield (
            "metadata.name: is default, node.<name of a node>, or another with spec.nodeSelector"
        )
