"""Does a network configuration mean the datastore and the API that the agent works with?

While the agent runs it serves every call from what it has open. A configuration that names another
datastore or API would be obeyed by the fallback and ignored by the agent: pods would get addresses
from two places, depending on who was there to ask. So what is named and differs is refused. What
the configuration does not name agrees with everything.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from cni_plugin.errors import InvalidConfig
from cni_plugin.sections import KubernetesConf
from cni_plugin.types import NetConf
from cni_plugin.undo import Log
from libtortie.datastore.open import DatastoreConfig
from libtortie.errors import InvalidInput, first_line
from libtortie.files import Stamp, stamp
from libtortie.kube.config import load_kubeconfig

_FOUND_OUT = "none, which is found out"
"""An API group that is not named: where both are served it may be another than the one that is."""

_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Agreement:
    """What the agent uses; `api` is its API server's URL, empty without one."""

    datastore: DatastoreConfig
    api: str
    log: Log
    _servers: dict[tuple[str, Stamp | None], str] = field(default_factory=dict)
    _warned: set[str] = field(default_factory=set)

    def require(self, conf: NetConf) -> None:
        """Raises `InvalidConfig` that names both sides."""
        _require_datastore(conf, self.datastore)
        if conf.api is None:
            return
        named = self._server(conf.api)
        if named and _endpoint(named) != _endpoint(self.api):
            raise _differ("kubernetes", named, self.api or "no Kubernetes API")

    def _server(self, section: KubernetesConf) -> str:
        """The server a section names; empty when its kubeconfig cannot be read.

        Only the fallback needs that file, so here it is worth one warning.
        """
        if not section.kubeconfig:
            return section.k8s_api_root
        try:
            key = (section.kubeconfig, stamp(section.kubeconfig))
            if key not in self._servers:
                self._servers[key] = load_kubeconfig(section.kubeconfig).server
            return self._servers[key]
        except (InvalidInput, OSError) as error:
            if section.kubeconfig not in self._warned:
                self._warned.add(section.kubeconfig)
                self.log("kubeconfig_unreadable", path=section.kubeconfig, error=first_line(error))
            return ""


def _require_datastore(conf: NetConf, agent: DatastoreConfig) -> None:
    named = _named_type(conf)
    if named not in ("", agent.type):
        if named == "kubernetes" and not conf.datastore_type:
            raise InvalidConfig(
                "kubernetes: without datastore_type it means that datastore, and the agent's is "
                f"{agent.type!r}: set datastore_type to it"
            )
        key = "datastore_type" if conf.datastore_type else _key_of(named)
        raise _differ(key, named, agent.type)
    if named == "kubernetes" and conf.calico_api_group != agent.calico_api_group:
        ours, theirs = conf.calico_api_group or _FOUND_OUT, agent.calico_api_group or _FOUND_OUT
        raise _differ("calico_api_group", ours, theirs)
    if agent.type == "sqlite" and "sqlite_path" in conf.model_fields_set:
        path = str(agent.sqlite_path)
        same = conf.sqlite_path == path  # as nearly always; resolving both takes 0.2 ms
        if not same and os.path.realpath(conf.sqlite_path) != os.path.realpath(path):
            raise _differ("sqlite_path", conf.sqlite_path, path)
    if agent.type == "etcdv3" and conf.etcd_endpoints:
        ours, members = conf.etcd_endpoints, agent.etcd_endpoints
        if _endpoints(ours).isdisjoint(_endpoints(members)):
            raise _differ("etcd_endpoints", ours, members)


def _named_type(conf: NetConf) -> str:
    """The type a configuration names, by its key or by settings that only one type has."""
    if conf.datastore_type or conf.etcd_endpoints or conf.kubernetes:
        return conf.datastore
    return "sqlite" if "sqlite_path" in conf.model_fields_set else ""


def _key_of(named: str) -> str:
    return "etcd_endpoints" if named == "etcdv3" else "sqlite_path"


def _endpoints(text: str) -> frozenset[tuple[str, str, int | None, str]]:
    """Members of an etcd cluster; two lists of one cluster have one in common."""
    return frozenset(_endpoint(item.strip()) for item in text.split(",") if item.strip())


def _endpoint(url: str) -> tuple[str, str, int | None, str]:
    """A URL without what may be written differently. An unreadable one is only equal to itself."""
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return "", url, None, ""
    return parts.scheme, parts.hostname or "", port, parts.path.rstrip("/")


def _differ(key: str, named: str, agents: str) -> InvalidConfig:
    return InvalidConfig(f"{key}: {named!r} is not the agent's {agents!r}; make them equal")
