"""What `kubectl explain` says of kinds and of the fields that are looked up most. Data."""

from __future__ import annotations

from collections.abc import Mapping

KINDS: Mapping[str, str] = {
    "BGPConfiguration": "BGP of the whole cluster (default), or of one node.",
    "BGPFilter": "Which routes BGP sessions that name it take and give.",
    "BGPPeer": "A BGP session beside the mesh of all nodes.",
    "BlockAffinity": "A node's claim on a block.",
    "CalicoNodeStatus": "What a node says of its BGP sessions and routes.",
    "ClusterInformation": "The cluster's identity, and whether its datastore may be used.",
    "FelixConfiguration": "How the agent works: of all nodes (default), or of one (node.<name>).",
    "GlobalNetworkPolicy": "A policy for endpoints of all namespaces and for hosts.",
    "GlobalNetworkSet": "Networks that policies select by the set's labels.",
    "HostEndpoint": "A node's interface, as policies see it.",
    "IPAMBlock": "A range of addresses, who has it, and who has each of them.",
    "IPAMConfig": "How addresses are handed out, for the whole cluster.",
    "IPAMConfiguration": "How addresses are handed out, for the whole cluster.",
    "IPAMHandle": "How many addresses an owner has in each block.",
    "IPPool": "A range of addresses for workloads.",
    "IPReservation": "Addresses that are never handed out unasked.",
    "KubeControllersConfiguration": "How Calico's controllers work.",
    "NetworkPolicy": "A policy for the endpoints of a namespace.",
    "NetworkSet": "Networks that policies of the namespace select by the set's labels.",
    "StagedGlobalNetworkPolicy": "A GlobalNetworkPolicy that is not in force yet.",
    "StagedKubernetesNetworkPolicy": "A NetworkPolicy of Kubernetes that is not in force yet.",
    "StagedNetworkPolicy": "A NetworkPolicy that is not in force yet.",
    "Tier": "A rank of policies.",
}

FIELDS: Mapping[tuple[str, str], str] = {
    ("IPPool", "cidr"): "The range.",
    ("IPPool", "vxlanMode"): "Use of VXLAN.",
    ("IPPool", "ipipMode"): "Use of IP in IP.",
    ("IPPool", "natOutgoing"): "Whether traffic that leaves the pools is masqueraded.",
    ("IPPool", "disabled"): "Whether no new address is taken from it.",
    ("IPPool", "disableBGPExport"): "Whether BGP keeps quiet about it.",
    ("IPPool", "blockSize"): "Prefix length of a node's blocks: 20 to 32, or 116 to 128 for IPv6.",
    ("IPPool", "nodeSelector"): "Nodes that may use it.",
    ("IPPool", "namespaceSelector"): "Namespaces that may use it.",
    ("IPPool", "allowedUses"): "What its addresses are for.",
    ("IPPool", "assignmentMode"): "Whether only those who ask get an address from it.",
    ("IPAMConfiguration", "strictAffinity"): (
        "Whether a node may use only addresses of its own blocks."
    ),
    ("IPAMConfiguration", "autoAllocateBlocks"): (
        "Whether a node takes a new block when its own are full."
    ),
    ("IPAMConfiguration", "maxBlocksPerHost"): (
        "Most blocks a node may have; 0 means 20 of each family."
    ),
    ("IPAMConfiguration", "kubeVirtVMAddressPersistence"): (
        "Whether a VM keeps its addresses when it moves or boots again."
    ),
    ("IPAMConfiguration", "ipCooldownSeconds"): (
        "How long a freed address rests before it is used again, in seconds."
    ),
    ("FelixConfiguration", "liveMigrationRouteConvergenceTime"): (
        "How long a migrated VM's route is preferred after its migration, as 30s."
    ),
    ("FelixConfiguration", "policyGateTimeout"): (
        "How long the route of a VM that arrives waits for its policies, as 10s."
    ),
    ("FelixConfiguration", "policyGateOnTimeout"): (
        "What becomes of such a route then: Raise it, or Hold it."
    ),
}
