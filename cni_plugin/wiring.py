"""Where real parts become a `Plugin`: from what the agent has open already, or from scratch.

`main()` is the fallback executable `tortie-cni`: any CNI plugin's contract, the same objects,
in a process of its own. It is what runs while no agent does: DEL works, STATUS tells the truth,
and ADD works as long as the packet filter that the agent left in the kernel is there.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from ipaddress import ip_network
from pathlib import Path

from cni_plugin.agreement import Agreement
from cni_plugin.child import run_program
from cni_plugin.delegate import Delegate, Run
from cni_plugin.errors import InvalidConfig
from cni_plugin.identity import Identifier
from cni_plugin.ipam_plugin import IPAMPlugin
from cni_plugin.locks import AttachmentLocks, FileLocks
from cni_plugin.log import JsonLines
from cni_plugin.plugin import Plugin
from cni_plugin.policy_gate import FilePolicyGate, never_ready, nft_table_present
from cni_plugin.ports import MTU_FILE, Ports, it_is_asked_by_one
from cni_plugin.readiness import answers_well
from cni_plugin.sections import PolicyConf
from cni_plugin.skel import INTERNAL_ERROR, PluginVerbs, Response, dispatch, error_json
from cni_plugin.throttle import DEFAULT_BURST, Throttled
from cni_plugin.types import MAX_STDIN, NetConf
from cni_plugin.undo import Log
from ipam.annals import Annals
from ipam.client import IPAMClient
from ipam.persistence import persistence
from libtortie.datastore.open import DatastoreConfig, open_datastore
from libtortie.datastore.port import Datastore
from libtortie.errors import InvalidInput, Malformed, first_line
from libtortie.files import read_text
from libtortie.history_spool import HISTORY_SPOOL, Spool
from libtortie.kube.config import KubeConfig, Material, direct, load_kubeconfig
from libtortie.kube.objects import KubeNode
from libtortie.kube.port import KubeReader
from libtortie.linux.netlink import NetlinkKernel
from libtortie.linux.netns import Netns
from libtortie.linux.port import IPNetwork, Kernel, Namespaces
from libtortie.model.names import is_node_name

NODENAME_FILE = Path("/var/lib/tortie/nodename")
RUN_DIR = Path("/run/tortie")
LOCKS = "locks"
"""Directory of the attachment locks, beside the agent's socket: agent and fallback share it."""


@dataclass(frozen=True, slots=True)
class SharedParts:
    """What the agent opens once and lends to every call.

    `table_ready` says whether the agent's packet filter is in the kernel. `ipam` is shared
    because its lock keeps one node's allocations from racing. `agreement` refuses configurations
    that mean another datastore or API. A call is `at_rest` while it waits for policy.
    """

    store: Datastore
    kube: KubeReader | None
    kernel: Kernel
    node: str
    table_ready: Callable[[], bool]
    log: Log
    ipam: IPAMClient | None = None
    annals: Annals | None = None
    namespaces: Namespaces = field(default_factory=Netns)
    locks: AttachmentLocks = field(default_factory=lambda: FileLocks(RUN_DIR / LOCKS))
    mtu_file: Path = MTU_FILE
    agreement: Agreement | None = None
    run: Run = run_program
    reaches: Callable[[str], bool] = answers_well
    agent_listens: Callable[[], bool] = it_is_asked_by_one
    at_rest: Callable[[], AbstractContextManager[None]] = nullcontext


def build_plugin(
    conf: NetConf, *, shared: SharedParts | None = None, log: Log | None = None
) -> PluginVerbs:
    """The plugin for one call, or the IPAM for another plugin's.

    Raises `InvalidConfig`, `InvalidInput`, `Unavailable`.
    """
    parts = shared or _open_parts(conf, log or JsonLines())
    if shared is not None and conf.nodename and conf.nodename != shared.node:
        raise InvalidConfig(
            f"nodename: {conf.nodename!r} is not the agent's {shared.node!r}; make them equal"
        )
    if shared is not None and shared.agreement is not None:
        shared.agreement.require(conf)
    ports = _ports(conf, parts)
    return IPAMPlugin(ports) if conf.is_foreign else Plugin(ports)


def _ports(conf: NetConf, parts: SharedParts) -> Ports:
    return Ports(
        identify=Identifier(parts.kube, lambda: persistence(parts.store, parts.kube).value),
        ipam=parts.ipam or IPAMClient(parts.store, parts.node, now=_now, annals=parts.annals),
        store=parts.store,
        kernel=parts.kernel,
        namespaces=parts.namespaces,
        policy=FilePolicyGate(
            Path(conf.endpoint_status_dir), parts.table_ready, at_rest=parts.at_rest
        ),
        locks=parts.locks,
        node=parts.node,
        now=_now,
        monotonic=time.monotonic,
        log=parts.log,
        delegate=_delegate(conf, parts),
        reaches=parts.reaches,
        mtu_file=parts.mtu_file,
        agent_listens=parts.agent_listens,
    )


def _delegate(conf: NetConf, parts: SharedParts) -> Delegate | None:
    """Another program's IPAM, where the configuration names one."""
    if not conf.delegated:
        return None
    name = (conf.kubernetes.node_name if conf.kubernetes else "") or parts.node
    return Delegate(conf, parts.run, lambda: pod_cidrs(parts.kube, name))


def pod_cidrs(kube: KubeReader | None, node: str) -> tuple[IPNetwork, ...]:
    """The networks that Kubernetes gave a node for its pods. Raises `InvalidInput`, as the API."""
    if kube is None:
        raise InvalidInput("ipam: usePodCidr needs the Kubernetes API: add a `kubernetes` section")
    spec = kube.get(KubeNode, node).spec
    texts = spec.pod_cidrs or ((spec.pod_cidr,) if spec.pod_cidr else ())
    if not texts:
        raise InvalidInput(f"ipam: usePodCidr: Node {node} has no podCIDR")
    try:
        return tuple(ip_network(text) for text in texts)
    except ValueError as error:
        raise Malformed(f"Node {node}: podCIDRs: {error}") from error


def _open_parts(conf: NetConf, log: Log) -> SharedParts:
    node = node_name(conf)
    store = open_datastore(
        DatastoreConfig(
            type=conf.datastore,
            sqlite_path=Path(conf.sqlite_path),
            node=node or socket.gethostname(),
            shared=conf.sqlite_shared,
            etcd_endpoints=conf.etcd_endpoints,
            etcd_ca_cert_file=conf.etcd_ca_cert_file,
            etcd_cert_file=conf.etcd_cert_file,
            etcd_key_file=conf.etcd_key_file,
            etcd_username=conf.etcd_username,
            etcd_password=conf.etcd_password,
            kube=_kube_config(conf) if conf.datastore == "kubernetes" else None,
            calico_api_group=conf.calico_api_group,
        )
    )
    return SharedParts(
        store=store,
        kube=_kube(conf),
        kernel=NetlinkKernel(),
        node=node or socket.gethostname(),
        table_ready=nft_table_present if node else never_ready,
        log=log,
        locks=FileLocks(Path(conf.agent_socket).parent / LOCKS),
        agent_listens=lambda: listens(conf.agent_socket),
        annals=_annals(conf, node),
    )


def _annals(conf: NetConf, node: str) -> Annals | None:
    """The history by way of the spool that this node's agent empties, if one was ever here."""
    nodename = Path(conf.nodename_file or NODENAME_FILE)
    if not nodename.exists():
        return None
    return Annals(node, _now, Spool(nodename.with_name(HISTORY_SPOOL)).append)


def listens(path: str) -> bool:
    """Whether somebody listens at a unix socket; a full queue is somebody's."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(path)
        except BlockingIOError:
            return True
        except OSError:
            return False
    return True


def node_name(conf: NetConf) -> str:
    """The node's name: as configured, else what the agent wrote; empty before its first start.

    A file that names no node is a missing one. Then `hostname` counts, Calico's older key, and the
    host's own name where the file is optional. Without a name ADD is refused, while DEL goes by
    the host's.
    """
    if conf.nodename:
        return conf.nodename
    try:
        written = read_text(conf.nodename_file or NODENAME_FILE).strip()
    except OSError:
        written = ""
    if not is_node_name(written):
        written = ""
    optional = socket.gethostname().lower() if conf.nodename_file_optional else ""
    return written or conf.hostname or optional


def _kube(conf: NetConf) -> KubeReader | None:
    config = _kube_config(conf)
    if config is None:
        return None
    from libtortie.kube.client import HttpKubeClient  # requests takes 0.1 s

    client = HttpKubeClient(config)
    return Throttled(client, conf.qps, conf.burst or DEFAULT_BURST) if conf.qps else client


def _kube_config(conf: NetConf) -> KubeConfig | None:
    """The API server a configuration names, and who asks there. Raises `InvalidInput`."""
    section = conf.api
    if section is None:
        return None
    if section.kubeconfig:
        config = load_kubeconfig(section.kubeconfig)
    else:
        config = direct(section.k8s_api_root)
    return config if conf.policy is None else _as_policy_says(config, conf.policy)


def _as_policy_says(config: KubeConfig, policy: PolicyConf) -> KubeConfig:
    """Credentials of the `policy` section count before a kubeconfig's, as in Calico."""
    if policy.k8s_api_root:
        config = replace(config, server=direct(policy.k8s_api_root).server, origin=None)
    if policy.k8s_auth_token:
        token = direct(config.server, policy.k8s_auth_token).token
        config = replace(config, token=token, token_file=None, origin=None)
    if policy.k8s_client_certificate:
        config = replace(
            config,
            client_cert=Material(path=Path(policy.k8s_client_certificate)),
            client_key=Material(path=Path(policy.k8s_client_key)),
            origin=None,
        )
    if policy.k8s_certificate_authority:
        authority = Material(path=Path(policy.k8s_certificate_authority))
        config = replace(config, ca=authority, insecure=False, origin=None)
    return config


def _now() -> datetime:
    return datetime.now(UTC)


def main() -> None:
    """`tortie-cni`: one call from environment and standard input; the answer on stdout."""
    stdin = b""
    try:
        stdin = _read_stdin()
        answer = _answer(stdin)
    except Exception as error:
        text = f"internal error: {type(error).__name__}: {first_line(error)[:300]}"
        answer = Response(1, error_json(stdin, INTERNAL_ERROR, text))
    try:
        sys.stdout.buffer.write(answer.stdout)
        sys.stdout.buffer.flush()
    except (AttributeError, OSError):  # closed: nobody is left to be told
        os._exit(1)
    sys.exit(answer.code)


def _read_stdin() -> bytes:
    """Standard input, bounded. One that is closed or cannot be read is as good as empty."""
    try:
        return sys.stdin.buffer.read(MAX_STDIN + 1)
    except (AttributeError, OSError):
        return b""


def _answer(stdin: bytes) -> Response:
    log = JsonLines()

    def build(conf: NetConf) -> PluginVerbs:
        log.configure(conf)
        return build_plugin(conf, log=log)

    env = {name: value for name, value in os.environ.items() if name.startswith("CNI_")}
    return dispatch(env, stdin, build, log=log)


if __name__ == "__main__":
    main()
