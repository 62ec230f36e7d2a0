"""The command line's words for the election, named as Kubernetes' own components name them."""

from __future__ import annotations

import argparse
import socket
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from controllers.candidate import Candidate
from controllers.election import Election, Timing
from libtortie.errors import InvalidInput
from libtortie.kube.client import HttpKubeClient
from libtortie.kube.config import KubeConfig

LEASE = "tortie-controllers"
NAMESPACE = "kube-system"
_DEFAULT = Timing()


def add_election(command: argparse.ArgumentParser, duration: Callable[[str], float]) -> None:
    """Add the options; `duration` reads one."""
    command.add_argument(
        "--leader-elect",
        action="store_true",
        help="of several instances let one work at a time: who holds a Lease in Kubernetes",
    )
    for name, seconds, text in (
        ("lease-duration", _DEFAULT.lease, "how long the others wait for a silent leader"),
        ("renew-deadline", _DEFAULT.renew, "how long a leader works on that cannot renew"),
        ("retry-period", _DEFAULT.retry, "pause between attempts"),
    ):
        command.add_argument(
            f"--leader-elect-{name}",
            type=duration,
            metavar="DURATION",
            help=f"{text} (default {seconds:g}s)",
        )
    command.add_argument(
        "--leader-elect-resource-name", metavar="NAME", help=f"the Lease (default {LEASE})"
    )
    command.add_argument(
        "--leader-elect-resource-namespace",
        metavar="NAMESPACE",
        help=f"where it is (default: the pod's or kubeconfig's namespace, else {NAMESPACE})",
    )


def check_election(options: argparse.Namespace) -> None:
    """Raise `InvalidInput` for options that make no sense together."""
    if options.leader_elect and options.once:
        raise InvalidInput("--leader-elect is for what runs on: leave out --once")
    given = [
        name
        for name, value in vars(options).items()
        if name.startswith("leader_elect_") and value is not None
    ]
    if given and not options.leader_elect:
        raise InvalidInput(f"--{given[0].replace('_', '-')} needs --leader-elect")
    _timing(options).check()


@contextmanager
def candidate_of(
    kube: Callable[[], KubeConfig | None],
    options: argparse.Namespace,
    tell: Callable[[str], None],
    complain: Callable[[str], None],
) -> Iterator[Candidate | None]:
    """A candidate over a connection of its own; None where none is wanted, or no API is there."""
    config = kube() if options.leader_elect else None
    if config is None:
        if options.leader_elect:
            complain(
                "--leader-elect: no Kubernetes API is configured, so no leader is elected: "
                "this must be the only instance"
            )
        yield None
        return
    timing = _timing(options)
    with closing(HttpKubeClient(config, timeout=timing.renew / 2)) as client:
        yield Candidate(
            client,
            options.leader_elect_resource_namespace or config.namespace or NAMESPACE,
            options.leader_elect_resource_name or LEASE,
            Election(f"{socket.gethostname()}_{uuid.uuid4()}", timing),
            tell,
            complain,
        )


def _timing(options: argparse.Namespace) -> Timing:
    def chosen(value: float | None, default: float) -> float:
        return default if value is None else value

    return Timing(
        lease=chosen(options.leader_elect_lease_duration, _DEFAULT.lease),
        renew=chosen(options.leader_elect_renew_deadline, _DEFAULT.renew),
        retry=chosen(options.leader_elect_retry_period, _DEFAULT.retry),
    )
