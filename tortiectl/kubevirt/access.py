"""The API of a command about VMs, with the user's credentials, and kubectl with the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import click

from libtortie.connection import Connection
from libtortie.errors import InvalidInput, TortieError, Unavailable
from libtortie.kube import prepare
from libtortie.kube.client import HttpKubeClient
from libtortie.kube.config import KubeConfig
from libtortie.kube.raw import RawObjects
from tortiectl import kubectl
from tortiectl.connection import connect

API_SECONDS = 60.0
"""For one call: a page of 500 VMIs of a busy API server takes seconds."""


@dataclass(frozen=True, slots=True)
class Access:
    """What a command about VMs works on."""

    connection: Connection
    client: HttpKubeClient
    objects: RawObjects
    config: KubeConfig

    def execute(self, namespace: str, pod: str, container: str, command: Sequence[str]) -> str:
        """What a command in a container prints."""
        arguments = kubectl.exec_command(namespace, pod, container, command)
        return kubectl.run(self.config, arguments)


def open_api(ctx: click.Context, config: str) -> Access:
    """The API as the command's options and the environment have it. Raises `InvalidInput`."""
    connection = connect(ctx, config)
    patience = connection.api_seconds
    connection.api_seconds = max(patience, API_SECONDS)
    client, found = connection.kube, connection.config.kube()
    if client is None or found is None:
        raise InvalidInput(
            f"no Kubernetes API is configured ({connection.config.source}): set KUBECONFIG, or "
            "kubeconfig in the file given with -c"
        )
    _require_answer(client, patience)
    return Access(connection, client, RawObjects(client), found)


def _require_answer(client: HttpKubeClient, seconds: float) -> None:
    """Whether anybody is there, before long lists are asked for. Raises `Unavailable`."""
    try:
        client.send(prepare.raw("GET", "/version"), seconds)
    except Unavailable:
        raise
    except TortieError:
        return  # a refusal is an answer: what the command asks for may be allowed


def default_namespace(access: Access, wanted: str) -> str:
    """The namespace asked for, else the kubeconfig's, else `default`."""
    return wanted or access.config.namespace or "default"
