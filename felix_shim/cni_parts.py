"""What serves CNI requests, from what an agent has open, and from what a worker of it opens."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cni_plugin.agreement import Agreement
from cni_plugin.frame import Request, Response
from cni_plugin.locks import FileLocks
from cni_plugin.skel import Observer, PluginVerbs, dispatch
from cni_plugin.types import NetConf
from cni_plugin.undo import Log
from cni_plugin.wiring import SharedParts, build_plugin
from felix_shim.cni_server import Serve
from felix_shim.cni_worker import Reports, work
from felix_shim.config import NodeConfig
from felix_shim.datastore_id import open_remembered
from ipam.annals import Annals
from ipam.client import IPAMClient
from libtortie.datastore.port import Datastore
from libtortie.errors import Unavailable, first_line
from libtortie.history_spool import Spool
from libtortie.kube.client import HttpKubeClient
from libtortie.kube.port import KubeReader
from libtortie.linux.netlink import NetlinkKernel
from libtortie.linux.netns import Netns
from libtortie.linux.port import Kernel

RETRY_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Opened:
    """What requests are served with."""

    store: Datastore
    kube: KubeReader | None
    kernel: Kernel
    ipam: IPAMClient


def server(
    config: NodeConfig,
    opened: Opened,
    log: Log,
    observe: Observer,
    *,
    table_ready: Callable[[], bool],
    at_rest: Callable[[], AbstractContextManager[None]],
) -> Serve:
    """Serves one request: from any thread, and never raises."""
    api, datastore = config.kube(), config.datastore(config.node)
    shared = SharedParts(
        store=opened.store,
        kube=opened.kube,
        kernel=opened.kernel,
        node=config.node,
        table_ready=table_ready,
        log=log,
        ipam=opened.ipam,
        namespaces=Netns(),
        locks=FileLocks(Path(config.run_dir) / "locks"),
        mtu_file=config.mtu_file,
        agreement=Agreement(datastore, api.server if api else "", log),
        at_rest=at_rest,
    )

    def build(conf: NetConf) -> PluginVerbs:
        return build_plugin(conf, shared=shared)

    def answer(request: Request) -> Response:
        return dispatch(request.env, request.stdin, build, log=log, observe=observe)

    return answer


def be_worker(config: NodeConfig, channel: socket.socket) -> None:
    """A worker's life (`cni_workers.Body`). It begins once the agent has policy in the kernel. No
    sign of a VM is heard here, so Python's own interval between handovers of its lock is right."""

    def build(reports: Reports) -> Serve:
        opened = _open(config, reports)
        observe, at_rest = reports.observe, reports.at_rest
        return server(
            config, opened, reports.event, observe, table_ready=lambda: True, at_rest=at_rest
        )

    work(channel, build)


def _open(config: NodeConfig, reports: Reports) -> Opened:
    api = config.kube()
    while True:
        try:
            store = open_remembered(config.datastore(config.node), config.datastore_id_file)
            break
        except Unavailable as error:
            reports.warning("datastore_unavailable", reason=first_line(error))
            time.sleep(RETRY_SECONDS)
    annals = Annals(config.node, _now, Spool(config.history_file, log=reports).append)
    return Opened(
        store=store,
        kube=None if api is None else HttpKubeClient(api),
        kernel=NetlinkKernel(),
        ipam=IPAMClient(store, config.node, now=_now, annals=annals),
    )


def _now() -> datetime:
    return datetime.now(UTC)
