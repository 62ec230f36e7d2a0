"""Tables of other programs, whatever is in them, are neither read nor changed."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from ipaddress import ip_address

import pytest

from felix_shim.drivers.nftables import Nftables
from felix_shim.failsafe import Failsafe
from felix_shim.host_rules import HostPlan, host_chains
from felix_shim.policy import EndpointPolicy, PolicySet, policy_set
from felix_shim.policy_book import PolicyRules
from libtortie.errors import KernelError
from libtortie.linux.netns import Netns
from libtortie.model.policy import HostEnd
from tests.fakes.fresh_names import fresh_name
from tests.fakes.node_process import DEADLINE, until

pytestmark = pytest.mark.root

FOREIGN = """
table ip nat {
	counter seen { }
	set recent { type ipv4_addr; flags dynamic,timeout; timeout 1h; }
	map services { type ipv4_addr . inet_service : ipv4_addr . inet_service;
		elements = { 10.96.0.1 . 443 : 172.31.0.11 . 6443 } }
	chain postrouting { type nat hook postrouting priority 100; counter masquerade fully-random; }
	chain prerouting {
		type nat hook prerouting priority -100;
		dnat to ip daddr . tcp dport map @services;
	}
}
table inet tortie-not {
	quota most { over 25 mbytes }
	limit slow { rate 400/minute }
	ct helper ftp-standard { type "ftp" protocol tcp; }
	chain cali-fw-cali1 { quota name "most" drop; limit name "slow" accept; }
	chain raw {
		type filter hook prerouting priority -300;
		fib saddr . iif oif missing counter drop;
		notrack;
	}
}
table ip6 tortie {
	chain forward { type filter hook forward priority 0; drop; }
}
table bridge tortie {
	chain forward { type filter hook forward priority 0; }
}
table netdev tortie { }
"""
OWNED = "add table inet owned { flags owner; }\nadd chain inet owned mine\n"
A = EndpointPolicy("calitta", "02:00:00:00:00:0a", (ip_address("10.65.0.2"),))


@pytest.fixture
def space() -> Iterator[str]:
    name = fresh_name("ft")
    subprocess.run(["ip", "netns", "add", name], check=True)
    held = subprocess.Popen(
        ["nsenter", f"--net=/run/netns/{name}", "nft", "-i"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    try:
        nft(name, "-f", "-", text=FOREIGN)
        assert held.stdin is not None
        held.stdin.write(OWNED)
        held.stdin.flush()
        until("the owned table is there", lambda: "inet owned" in nft(name, "list", "tables"))
        yield name
    finally:
        held.kill()
        held.communicate()
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def nft(space: str, *words: str, text: str = "") -> str:
    command = ["nsenter", f"--net=/run/netns/{space}", "nft", *words]
    return subprocess.run(command, input=text, check=True, capture_output=True, text=True).stdout


def rules(number: int) -> PolicySet:
    """Rules of workloads and of the node."""
    plan = {"*": HostPlan(HostEnd("h", "n"), closed=bool(number % 2), forward_closed=True)}
    chains = host_chains(plan, Failsafe())
    address = ip_address(f"10.65.1.{number}")
    other = replace(A, interface=f"calitt{number}", addresses=(address,))
    return policy_set([A, other], rules=PolicyRules(chains))


def apply(space: str, driver: Nftables, wanted: PolicySet) -> None:
    Netns(deadline=2 * DEADLINE).call(f"/run/netns/{space}", lambda: driver.apply(wanted))


def others(space: str) -> list[str]:
    """All tables but ours, with the handles of what is in them."""
    names = [line.split()[1:] for line in nft(space, "list", "tables").splitlines()]
    return [
        nft(space, "-a", "-s", "list", "table", *name)
        for name in names
        if name not in (["inet", "tortie"], ["arp", "tortie"])
    ]


def test_whatever_others_have(space: str) -> None:
    before = others(space)
    assert len(before) == 6
    driver = Nftables(quiet=0.0)
    for number in range(4):
        apply(space, driver, rules(number))
        apply(space, Nftables(quiet=0.0), rules(number))
        with pytest.raises(KernelError):
            apply(space, Nftables(), policy_set([replace(A, mac="nonsense")]))
    assert others(space) == before
    ours = nft(space, "list", "table", "inet", "tortie")
    assert "calitt3" in ours
    assert "calitt2" not in ours


def test_a_table_of_ours_that_somebody_deletes_is_put_back_beside_theirs(space: str) -> None:
    driver, before = Nftables(quiet=0.0), others(space)
    apply(space, driver, rules(1))
    nft(space, "delete", "table", "inet", "tortie")
    apply(space, driver, rules(1))
    assert "calitt1" in nft(space, "list", "table", "inet", "tortie")
    assert others(space) == before
