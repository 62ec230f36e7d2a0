"""Starts what tells others of the agent's decisions: Events, the history, the Node's conditions.

All of it listens to the log or runs on threads of its own: no decision waits for being told.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime

from felix_shim.config import NodeConfig
from felix_shim.crew import Crew
from felix_shim.history_keeper import HistoryKeeper
from felix_shim.kube_events import COMPONENT, NodeEvents
from felix_shim.kube_node import NodeCondition
from felix_shim.telemetry import Telemetry
from ipam.annals import Annals
from libtortie.datastore.port import Datastore
from libtortie.events import EventSender
from libtortie.history_spool import Spool
from libtortie.jsonlog import JsonLog
from libtortie.kube.client import HttpKubeClient
from libtortie.steady import SteadyClock

Now = Callable[[], datetime]


def tell_events(
    config: NodeConfig, kube: HttpKubeClient | None, crew: Crew, log: JsonLog, now: Now
) -> NodeEvents | None:
    """Kubernetes Events of what the log tells; None without an API."""
    if kube is None:
        return None
    host = config.kube_node
    sender = EventSender(kube, COMPONENT, host, log, now, time.monotonic, host)
    events = NodeEvents(sender)
    log.listen(events.hear)
    crew.start("events", sender.run, sender.stop)
    return events


def keep_history(
    config: NodeConfig,
    store: Datastore,
    crew: Crew,
    log: JsonLog,
    now: Now,
    *,
    telemetry: Telemetry,
) -> Annals:
    """What becomes of addresses and migrations, by way of this node's spool."""
    steady = SteadyClock(lambda: now().timestamp(), time.monotonic)
    alone = config.datastore_type == "sqlite"
    spool = Spool(config.history_file, log=log)
    keeper = HistoryKeeper(store, spool, config.node, log, steady, prunes=alone)
    log.listen(keeper.hear)
    telemetry.reached = keeper.reached
    crew.start("history", keeper.run, keeper.stop)
    return Annals(config.node, steady, keeper.write)


def tell_condition(
    config: NodeConfig, kube: HttpKubeClient | None, crew: Crew, log: JsonLog, now: Now
) -> NodeCondition | None:
    """The Node's conditions, from now on; None where nobody is to be told."""
    if kube is None or not config.k8s_node_condition:
        return None
    condition = NodeCondition(kube, config.kube_node, log, now)
    crew.start("node-condition", condition.run, condition.stop)
    return condition
