"""Our network's configuration list, and which file of a directory a runtime would take.

A runtime takes the first file by name (libcni's `ConfFiles`): bytes are compared, the end of the
name decides whether a file counts, directories do not. Ours carries a mark, so that nobody else's
file is ever taken for one that may be replaced or removed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from cni_plugin.durable import read_file
from cni_plugin.types import parse_conf
from libtortie.access import IN_CLUSTER, Access
from libtortie.errors import InvalidInput
from libtortie.files import read_bytes

CONFLIST = "10-tortie.conflist"
_READ = (".conf", ".conflist", ".json")
_MARK = "_tortie"
_TEXT = "written by `tortiectl node install`, which replaces and removes it"
_TYPE = "tortie"
_SAME_KEYS = (
    "nodename_file",
    "datastore_type",
    "sqlite_path",
    "sqlite_shared",
    "etcd_endpoints",
    "etcd_ca_cert_file",
    "etcd_cert_file",
    "etcd_key_file",
    "etcd_username",
    "etcd_password",
    "calico_api_group",
)


def conflist(settings: Mapping[str, Any], template: Path | None = None) -> bytes:
    """The shipped conflist, or a template, with some keys of our plugin changed (None removes one).

    Raises as `parse_conf`, and `InvalidInput` for a template without our plugin, OSError.
    """
    data = _template(template) if template else json.loads(_shipped())
    ours = next(one for one in data["plugins"] if one.get("type") == _TYPE)
    for key, value in settings.items():
        if value is None:
            ours.pop(key, None)
        else:
            ours[key] = value
    parse_conf(json.dumps({**ours, "name": data["name"], "cniVersion": "1.1.0"}).encode())
    return json.dumps({_MARK: _TEXT, **data}, indent=2).encode() + b"\n"


def _shipped() -> str:
    return resources.files("conf").joinpath(CONFLIST).read_text()


def _template(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(read_bytes(path))
    except OSError as error:
        raise InvalidInput(f"{path}: {error.strerror}: --conflist names a file") from error
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{path} is not JSON: {error}") from error
    named = isinstance(data, dict) and isinstance(data.get("name"), str)
    plugins = data.get("plugins") if named else None
    if not isinstance(plugins, list) or not all(isinstance(one, dict) for one in plugins):
        raise InvalidInput(f"{path} is no conflist: want `name` and a list `plugins` of objects")
    if not any(one.get("type") == _TYPE for one in plugins):
        raise InvalidInput(f"{path}: no plugin of type tortie among its `plugins`: add one")
    return dict(data)


def settings_of(access: Access) -> dict[str, Any]:
    """What makes the plugin's fallback work where the node's agent works. Raises `InvalidInput`."""
    said = access.model_fields_set
    settings = {key: getattr(access, key) for key in _SAME_KEYS if key in said}
    if "run_dir" in said:
        settings["agent_socket"] = str(access.cni_socket)
        settings["endpoint_status_dir"] = str(access.status_dir)
    kubeconfig = access.cni_kubeconfig or access.kubeconfig
    if kubeconfig:
        return {**settings, "kubernetes": {"kubeconfig": kubeconfig}}
    if access.k8s_token_file or access.k8s_ca_file or access.k8s_api_root == IN_CLUSTER:
        raise InvalidInput(
            "the plugin cannot use the agent's service account (k8s_token_file, k8s_ca_file): say "
            "in the agent's configuration which kubeconfig shall be written for it (cni_kubeconfig)"
        )
    if access.k8s_api_root:
        return {**settings, "kubernetes": {"k8s_api_root": access.k8s_api_root}}
    return {**settings, "kubernetes": None, "policy": None}


def require_name(name: str) -> None:
    """A conflist's file name. Raises `InvalidInput`."""
    stem = name.removesuffix(".conflist")
    if stem in ("", name) or "/" in name or name.startswith("."):
        raise InvalidInput(f"{name!r} is not the name of a conflist, such as {CONFLIST}")


def networks_ahead(conf_dir: Path, name: str) -> list[str]:
    """Other networks' files that a runtime would take instead of a file of this name."""
    ours = set(our_conflists(conf_dir))
    before = [one for one in _readable(conf_dir) if os.fsencode(one) <= os.fsencode(name)]
    return [one for one in before if one not in ours]


def our_conflists(conf_dir: Path) -> list[str]:
    """The conflists of a directory that `conflist` made, whatever their name."""
    return [name for name in _readable(conf_dir) if _is_ours(conf_dir / name)]


def _readable(conf_dir: Path) -> list[str]:
    """What a runtime reads, in its order. Raises OSError."""
    try:
        entries = list(os.scandir(conf_dir))
    except FileNotFoundError:
        return []
    files = [one.name for one in entries if not one.is_dir(follow_symlinks=False)]
    return sorted((name for name in files if name[name.rfind(".") :] in _READ), key=os.fsencode)


def _is_ours(path: Path) -> bool:
    try:
        data = json.loads(read_file(path) or b"")
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(data, dict) and _MARK in data
