"""The migration network: where target listeners are, and only there, in real namespaces.

A host has several networks; `listen` names one by its interface or by a CIDR. The address may go
and come back, both families work end to end over TLS, and `status` names what is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab.tools import LabError
from libtortie.control_client import Refused
from tests.fakes.migration_proxies import (
    KEY,
    PATIENCE,
    Program,
    connect,
    ended,
    receive,
    sending,
    until,
)
from tests.fakes.proxied_hosts import SOURCE, SOURCE6, TARGET, TARGET6, WIRE, Host, Hosts, hosts

pytestmark = pytest.mark.root


@pytest.fixture
def both() -> Iterator[Hosts]:
    """The target has a pod network too, and a second address on the wire."""
    with hosts() as made:
        made.target.ip("link", "add", "eth0", "type", "veth", "peer", "name", "pods")
        made.target.ip("address", "add", "192.0.2.5/24", "dev", "eth0")
        made.target.ip("address", "add", "2001:db8::5/64", "dev", "eth0", "nodad")
        made.target.ip("link", "set", "eth0", "up")
        made.target.ip("link", "set", "pods", "up")
        made.target.ip("address", "add", "198.51.100.7/24", "dev", WIRE)
        made.source.start(node="node1")
        yield made


def listening(host: Host) -> set[str]:
    """Addresses with a TCP listener in the host's namespace, as ss(8) shows them."""
    found = host.run("ss", "-Hltn").splitlines()
    return {line.split()[3].rpartition(":")[0] for line in found}


def carries(both: Hosts, address: str, peer: str) -> None:
    """A stream gets through, both ways to the end; the target's certificate has its name."""
    both.socket(0).unlink(missing_ok=True)
    program = Program(both.socket(0))
    try:
        (path,) = both.connect(0, address=address, peer=peer).values()
        caller = connect(path)
        accepted = program.accept()
        data = bytes(range(256)) * 4096
        sender = sending(caller, data)
        assert receive(accepted) == data
        accepted.sendall(b"seen")
        accepted.close()
        assert receive(caller) == b"seen"
        sender.join(PATIENCE)
        caller.close()
    finally:
        program.close()


@pytest.mark.parametrize(
    ("listen", "address", "peer"),
    [
        (WIRE, TARGET, SOURCE),
        ("10.77.0.0/24", TARGET, SOURCE),
        (TARGET, TARGET, SOURCE),
        ("fd77::/64", TARGET6, SOURCE6),
        (TARGET6, TARGET6, SOURCE6),
    ],
)
def test_it_listens_in_the_migration_network_alone(
    both: Hosts, listen: str, address: str, peer: str
) -> None:
    both.target.start(node="node2", listen=listen)
    carries(both, address, peer)
    (where,) = listening(both.target)
    assert where.strip("[]") == both.target.status()["address"] == address
    assert both.source.findings() == both.target.findings() == []


def test_without_one_it_takes_both_families(both: Hosts) -> None:
    both.target.start(node="node2", listen="")
    carries(both, TARGET, SOURCE)
    both.disconnect()
    carries(both, TARGET6, SOURCE6)
    assert listening(both.target) == {"*"}


def test_an_interface_of_ipv6_alone(both: Hosts) -> None:
    """Its link-local address comes first, and never counts."""
    both.target.ip("-4", "address", "flush", "dev", WIRE)
    both.target.start(node="node2", listen=WIRE)
    carries(both, TARGET6, SOURCE6)
    assert both.target.status()["address"] == TARGET6


@pytest.mark.parametrize(
    ("listen", "said"),
    [
        ("migration1", "listen migration1: there is no such interface on this node"),
        ("203.0.113.0/24", "listen 203.0.113.0/24: this node has no address in it"),
        ("203.0.113.9", "listen 203.0.113.9: this node does not have it"),
        ("fe80::/10", "listen fe80::/10: a link-local address"),
        ("pods", "listen pods: the interface has no global address yet"),
    ],
)
def test_what_is_no_network_of_this_host(both: Hosts, listen: str, said: str) -> None:
    """One message, and no listener anywhere."""
    both.target.start(node="node2", listen=listen)
    with pytest.raises(Refused) as caught:
        both.connect(0)
    assert str(caught.value).startswith(said)
    assert listening(both.target) == set()


def test_a_link_local_target_is_refused_at_the_source(both: Hosts) -> None:
    """Which link it is on cannot be said in KubeVirt's messages."""
    with pytest.raises(Refused, match="fe80::5 is a link-local address"):
        both.source.do(
            "start-source",
            key=KEY,
            address="fe80::5",
            ports={"4000": 0},
            base_dir=str(both.source.directory),
        )


@pytest.mark.parametrize(
    ("listen", "address", "peer"), [(WIRE, TARGET, SOURCE), ("fd77::/64", TARGET6, SOURCE6)]
)
def test_an_address_that_goes_and_returns(
    both: Hosts, listen: str, address: str, peer: str
) -> None:
    """Both sides say so; once it is back the old listener serves, on its old port."""
    both.target.start(node="node2", listen=listen)
    program = Program(both.socket(0))
    (path,) = both.connect(0, address=address, peer=peer).values()
    ports = both.target.do("target-ports", key=KEY)
    cidr = f"{address}/{64 if ':' in address else 24}"
    both.target.ip("address", "del", cidr, "dev", WIRE)
    (cause,) = both.target.findings()
    assert cause.startswith(f"it listens on {address}, but `listen` now means ")
    assert failure(both, path) == (
        f"libvirt: {endpoint(address)}: No route to host: no route to the target's migration "
        "network from here"
    )
    both.target.ip("address", "add", cidr, "dev", WIRE, *(["nodad"] if ":" in address else []))
    assert both.target.findings() == []
    until(lambda: reaches(both.source, address))
    caller = connect(path)
    caller.sendall(b"again")
    with program.accept() as accepted:
        assert accepted.recv(5) == b"again"
    caller.close()
    assert both.target.do("target-ports", key=KEY) == ports
    program.close()


def failure(both: Hosts, path: str) -> str:
    """What the source says of a stream that came to nothing; the port is left out."""
    caller = connect(path)
    assert ended(caller)
    caller.close()
    until(lambda: bool(both.source.findings()))
    (found,) = both.source.findings()
    (port,) = (each["port"] for each in both.source.status()["streams"])
    return found.replace(f":{port}:", ":")


def endpoint(address: str) -> str:
    """As a socket's address is written, without its port."""
    return f"[{address}]" if ":" in address else address


def reaches(host: Host, address: str) -> bool:
    """Whether there is an answer: a neighbour that was given up is asked for anew."""
    try:
        host.run("ping", "-c", "1", "-W", "1", address)
    except LabError:
        return False
    return True


def test_moved_to_a_migration_network(both: Hosts) -> None:
    """The fourth symptom: the source is told an address of before, to which it has no route."""
    both.target.start(node="node2", listen="192.0.2.0/24")
    (path,) = both.connect(0, address="192.0.2.5").values()
    assert failure(both, path) == (
        "libvirt: 192.0.2.5: Network is unreachable: no route to the target's migration network "
        "from here"
    )
    both.disconnect()
    both.target.kill()
    both.target.start(listen=WIRE)
    carries(both, TARGET, SOURCE)


def test_an_address_that_is_another_now(both: Hosts) -> None:
    """`status` says what to do, and that helps: the same start makes new listeners there."""
    both.target.start(node="node2", listen="10.77.0.0/24")
    both.connect(0)
    both.target.ip("address", "del", f"{TARGET}/24", "dev", WIRE)
    both.target.ip("address", "add", "10.77.0.9/24", "dev", WIRE)
    assert both.target.findings() == [
        f"it listens on {TARGET}, but `listen` now means 10.77.0.9: "
        "start the target's listener again"
    ]
    before = both.generation
    carries(both, "10.77.0.9", SOURCE)
    assert both.generation > before
    assert listening(both.target) == {"10.77.0.9"}
    assert both.target.findings() == []


def test_a_further_address_moves_nothing(both: Hosts) -> None:
    """Whichever comes first among them: a listener stays where it is allowed to be."""
    both.target.start(node="node2")
    both.connect(0)
    before = both.generation
    both.target.ip("address", "del", f"{TARGET}/24", "dev", WIRE)
    both.target.ip("address", "add", f"{TARGET}/24", "dev", WIRE)
    assert "198.51.100.7" in both.target.ip("-br", "address", "show", WIRE).split()[2]
    carries(both, TARGET, SOURCE)
    assert both.generation == before
    assert both.target.findings() == []
