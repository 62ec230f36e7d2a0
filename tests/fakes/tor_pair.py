"""Two top-of-rack routers over a site's nodes, a router above both, and a client behind that.

    client 198.18.0.1 … .8 ── spine (the site's fabric) ──┬─ BIRD, AS 65001 ─┬── n0, n1, n2
                                                          └─ FRR, AS 65002 ──┘

Both are told what `tortiectl bgp tor-config` prints, and how to speak to the spine. The spine sends
on by either, as a flow's addresses fall. What the nodes answer goes by the fabric's own router.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from libtortie.linux.netns import Netns
from libtortie.model.keys import Kind
from tests.fakes.node_process import DEADLINE, ip, until
from tests.fakes.overlay_site import OverlayNode, OverlaySite
from tortiectl.cli import main

SPINE_AS = 65100
FRR_LIBS = Path("/usr/lib/frr")
FLOWS = 8
CLIENTS = {4: [f"198.18.0.{n}" for n in range(1, FLOWS + 1)],
           6: [f"fd18::{n}" for n in range(1, FLOWS + 1)]}  # fmt: skip
_LENGTH = {4: 24, 6: 64}
_FORWARDING = (
    "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1", "net.ipv4.conf.all.rp_filter=0",
    "net.ipv4.conf.default.rp_filter=0", "net.ipv4.conf.all.send_redirects=0",
)  # fmt: skip


def said(space: str, *words: str) -> str:
    """What a program says in a namespace."""
    command = ["nsenter", f"--net=/run/netns/{space}", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


class Router(ABC):
    """One of the two: `up0` is the rack, `up1` the spine."""

    vendor: str
    number: int

    def __init__(self, site: OverlaySite, community: str = "") -> None:
        self.site = site
        self.community = community
        self.space = f"{site.name}r{self.number}"
        self.leg = f"leg{self.number}"
        self.as_number = 65000 + self.number
        self.dir = site.root / self.space
        self.dir.mkdir(mode=0o755, exist_ok=True)
        self.processes: list[subprocess.Popen[bytes]] = []

    @property
    def names(self) -> tuple[str, str]:
        """Its BGPPeers, by family."""
        return f"tor{self.number}", f"tor{self.number}-6"

    def rack(self, version: int) -> str:
        """Its address towards the nodes."""
        last = 200 + self.number
        return f"172.31.1.{last}" if version == 4 else f"fd31:0:0:1::{last}"

    def spine(self, version: int, last: int) -> str:
        """An address of its link to the spine: 1 is the spine's, 2 its own."""
        middle = 100 + self.number
        return f"172.31.{middle}.{last}" if version == 4 else f"fd31:0:0:{middle}::{last}"

    # -- doing -------------------------------------------------------------------------------

    def plug(self) -> None:
        """Its namespace and its two links."""
        for version, name in zip((4, 6), self.names, strict=True):
            peer: dict[str, Any] = {"peerIP": self.rack(version), "asNumber": self.as_number}
            if self.community:
                peer |= {"filters": ["mark"], "nextHopMode": "Keep"}
            self.site.put(Kind.BGP_PEER, name, **peer)
        ip("netns", "add", self.space)
        said(self.space, "sysctl", "-qw", *_FORWARDING)
        fabric = self.site.name
        for mine, far in (("up0", f"r{self.number}"), ("up1", self.leg)):
            ip(
                "-n",
                self.space,
                *f"link add {mine} type veth peer name {far} netns {fabric}".split(),
            )
            ip("-n", self.space, "link", "set", mine, "up")
            ip("-n", fabric, "link", "set", far, "up")
        ip("-n", self.space, "link", "set", "lo", "up")
        ip("-n", fabric, "link", "set", f"r{self.number}", "master", "br1")
        for version, length in _LENGTH.items():
            nodad = ["nodad"] if version == 6 else []
            ip(
                "-n",
                self.space,
                "addr",
                "add",
                f"{self.rack(version)}/{length}",
                "dev",
                "up0",
                *nodad,
            )
            for space, link, last in ((self.space, "up1", 2), (fabric, self.leg, 1)):
                own = f"{self.spine(version, last)}/{length}"
                ip("-n", space, "addr", "add", own, "dev", link, *nodad)

    def start(self, change: Callable[[str], str] = str) -> None:
        """Run it with what the cluster's own tool says now, or with a change of that."""
        words = [word for name in self.names for word in ("--peer", name)]
        environ = {
            "DATASTORE_TYPE": "sqlite",
            "TORTIE_SQLITE_PATH": str(self.site.root / "tortie.db"),
        }
        if self.community:
            words += ["--community", self.community]
        asked = ["bgp", "tor-config", "--vendor", self.vendor, *words]
        done = CliRunner(env=environ).invoke(main, asked)
        assert done.exit_code == 0, done.output
        self._run(change(done.output))

    @abstractmethod
    def _run(self, told: str) -> None: ...

    def _spawn(self, *command: str) -> None:
        with (self.dir / "log").open("ab") as log:
            self.processes.append(
                subprocess.Popen(
                    ["nsenter", f"--net=/run/netns/{self.space}", *command],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            )

    def kill(self) -> None:
        """kill -9 of all that runs there; the kernel's routes stay."""
        for process in self.processes:
            process.kill()
            process.wait()
        self.processes.clear()

    def remove(self) -> None:
        """Take it away."""
        self.kill()
        ends = (["-n", self.site.name, "link", "del", far] for far in (f"r{self.number}", self.leg))
        for words in (*ends, ["netns", "del", self.space]):  # links outlive a namespace's name
            subprocess.run(["ip", *words], check=False, capture_output=True)

    def cut(self) -> None:
        """The whole router is gone: its cables, too, are dead."""
        self.kill()
        self._links("down")

    def mend(self) -> None:
        """It has power again, and nothing in memory."""
        for version in (4, 6):
            said(self.space, "ip", f"-{version}", "route", "flush", "proto", "bird")
            said(self.space, "ip", f"-{version}", "route", "flush", "proto", "bgp")
        self._links("up")

    def _links(self, how: str) -> None:
        for far in (f"r{self.number}", self.leg):
            ip("-n", self.site.name, "link", "set", far, how)
        if how == "up":  # the kernel takes a link's IPv6 addresses away with it
            own = f"{self.spine(6, 1)}/64"
            ip("-n", self.site.name, *f"addr replace {own} dev {self.leg} nodad".split())

    # -- looking -----------------------------------------------------------------------------

    def way(self, address: str) -> str:
        """The node that its kernel sends an address's packets to, or the kernel's words."""
        done = subprocess.run(
            ["ip", "-n", self.space, "-o", "route", "get", address],
            check=False, capture_output=True, text=True,
        )  # fmt: skip
        words = (done.stdout or done.stderr).split()
        hop = words[words.index("via") + 1] if "via" in words else " ".join(words)
        return self.site_hops().get(hop, hop)

    def site_hops(self) -> dict[str, str]:
        """Address of a node's uplink, link-local ones too → the node."""
        found: dict[str, str] = {}
        for node in self.site.nodes:
            for link in node.ip_json("address", "show", "dev", "up0"):
                found |= {one["local"]: node.node for one in link["addr_info"]}
        return found

    @abstractmethod
    def shows(self, version: int) -> str:
        """The command that shows its route to `{prefix}`."""

    @abstractmethod
    def looks(self) -> list[list[str]]:
        """Commands that show what it knows."""

    @abstractmethod
    def raised(self, address: str) -> bool:
        """Whether the route that it uses is one that it was told to prefer."""


class BirdRouter(Router):
    """A BIRD 2."""

    vendor, number = "bird", 1

    def _run(self, told: str) -> None:
        sessions = "".join(
            f"protocol bgp spine{v} {{\n  local {self.spine(v, 2)} as {self.as_number};\n"
            f"  neighbor {self.spine(v, 1)} as {SPINE_AS};\n"
            "  connect delay time 1; connect retry time 1; error wait time 1, 2;\n"
            f"  ipv{v} {{ import none; export where source = RTS_BGP; next hop self; }};\n}}\n"
            f"protocol kernel {{ ipv{v} {{ export where source = RTS_BGP; }}; }}\n"
            for v in (4, 6)
        )
        head = f"router id {self.rack(4)};\nprotocol device {{ scan time 2; }}\n"
        file = self.dir / "bird.conf"
        file.write_text(head + told + sessions)
        self._spawn("bird", "-f", "-c", str(file), "-s", str(self.dir / "ctl"))

    def raised(self, address: str) -> bool:
        text = said(
            self.space, "birdc", "-s", str(self.dir / "ctl"), f"show route for {address} all"
        )
        return any(
            "] * " in path.partition("\n")[0] and "BGP.local_pref: 200" in path
            for path in text.split("unicast [")[1:]
        )

    def shows(self, version: int) -> str:
        return f"birdc -s {self.dir}/ctl show route primary all where net={{prefix}}"

    def looks(self) -> list[list[str]]:
        return [["birdc", "-s", str(self.dir / "ctl"), "show route all"]]


class FrrRouter(Router):
    """An FRR: zebra and bgpd, as the user they are for, whose files must be where it may go."""

    vendor, number = "frr", 2

    def __init__(self, site: OverlaySite, community: str = "") -> None:
        super().__init__(site, community)
        self.dir = Path(tempfile.mkdtemp(prefix="tt-frr-", dir="/run"))
        shutil.chown(self.dir, "frr", "frr")

    def remove(self) -> None:
        super().remove()
        shutil.rmtree(self.dir)

    def _run(self, told: str) -> None:
        lines = ["route-map SPINE-IN deny 10", "route-map SPINE-OUT permit 10"]
        lines += [f"router bgp {self.as_number}", f"  bgp router-id {self.rack(4)}"]
        for v in (4, 6):
            at = f"neighbor {self.spine(v, 1)}"
            lines += [f"  {at} remote-as {SPINE_AS}", f"  {at} timers connect 1"]
            lines += [f"  address-family ipv{v} unicast", f"    {at} activate"]
            lines += [f"    {at} route-map SPINE-IN in", f"    {at} route-map SPINE-OUT out"]
            lines.append("  exit-address-family")
        # With nexthop objects Linux 6.18 no longer finds an IPv6 block's route once a host route in
        # it was replaced by one of the block's own nexthop and deleted: a VM that came home.
        zebra = "no zebra nexthop kernel enable\n"
        for name, text in (("zebra", zebra), ("bgpd", "\n".join([told, *lines, "exit", ""]))):
            (self.dir / f"{name}.conf").write_text(text)
            self._daemon(name)

    def _daemon(self, name: str) -> None:
        files = {"-f": "conf", "-i": "pid"}
        words = [word for sign, end in files.items() for word in (sign, f"{self.dir}/{name}.{end}")]
        shared = ["--vty_socket", str(self.dir), "-z", str(self._zserv), "-P", "0"]
        self._spawn(str(FRR_LIBS / name), *shared, *words, "--log", "stdout")
        until(f"{name} listens", (self.dir / f"{name}.vty").exists)
        until("zebra serves", self._zserv.exists)

    @property
    def _zserv(self) -> Path:
        return self.dir / "zserv"

    def kill(self) -> None:
        super().kill()
        for path in (self._zserv, self.dir / "zebra.vty", self.dir / "bgpd.vty"):
            path.unlink(missing_ok=True)

    def shows(self, version: int) -> str:
        words = {4: "show ip route {prefix}", 6: "show bgp ipv6 unicast {prefix} bestpath"}
        return f"vtysh --vty_socket {self.dir} -c '{words[version]}'"

    def looks(self) -> list[list[str]]:
        vtysh = ["vtysh", "--vty_socket", str(self.dir), "-c"]
        shows = ("bgp ipv6 unicast detail", "ipv6 route", "ipv6 nht", "bgp nexthop")
        return [[*vtysh, f"show {words}"] for words in shows]

    def raised(self, address: str) -> bool:
        version, length = (6, 128) if ":" in address else (4, 32)
        words = f"show bgp ipv{version} unicast {address}/{length} json"
        text = said(self.space, "vtysh", "--vty_socket", str(self.dir), "-c", words)
        paths = json.loads(text or "{}").get("paths", ())
        return any(
            one.get("bestpath", {}).get("overall") and one.get("locPrf") == 200 for one in paths
        )


class TorPair:
    """Both, the spine above them, and the client. With a `community` a BGPFilter says by that what
    is raised, and the routers don't look at the metric."""

    def __init__(self, site: OverlaySite, community: str = "") -> None:
        self.site = site
        if community:
            mark = {"operations": [{"addCommunity": {"value": community}}]}
            rule = {"peerType": "eBGP", "priority": 512, "action": "Accept", **mark}
            site.put(Kind.BGP_FILTER, "mark", exportV4=[rule], exportV6=[rule])
        self.routers: tuple[Router, Router] = (
            BirdRouter(site, community),
            FrrRouter(site, community),
        )
        self.client = f"{site.name}c"
        self._spine: subprocess.Popen[bytes] | None = None

    def up(self) -> None:
        """The site is up already; waits until both have the VM."""
        for router in self.routers:
            router.plug()
            router.start()
        self._plug_client()
        self._start_spine()
        self.await_way("n0")
        self.await_both()
        for address in self.site.addresses:
            for source in CLIENTS[6 if ":" in address else 4]:
                until(f"{address} answers {source}", partial(self.answers, source, address))

    def down(self) -> None:
        """Take them away."""
        with ExitStack() as stack:
            command = ["ip", "netns", "del", self.client]
            stack.callback(subprocess.run, command, check=False, capture_output=True)
            for router in self.routers:
                stack.callback(router.remove)
            if self._spine is not None:
                stack.callback(self._spine.wait)
                stack.callback(self._spine.kill)

    def _plug_client(self) -> None:
        fabric = self.site.name
        said(fabric, "sysctl", "-qw", *_FORWARDING)
        ip("netns", "add", self.client)
        ip("-n", self.client, *f"link add up0 type veth peer name client netns {fabric}".split())
        ip("-n", self.client, "link", "set", "up0", "up")
        ip("-n", fabric, "link", "set", "client", "up")
        ip("-n", fabric, "addr", "add", "198.18.0.254/24", "dev", "client")
        ip("-n", fabric, "addr", "add", "fd18::fe/64", "dev", "client", "nodad")
        for version, addresses in CLIENTS.items():
            for address in addresses:
                own = f"{address}/{_LENGTH[version]}"
                nodad = ["nodad"] if version == 6 else []
                ip("-n", self.client, "addr", "add", own, "dev", "up0", *nodad)
        ip("-n", self.client, "route", "add", "default", "via", "198.18.0.254")
        ip("-n", self.client, "route", "add", "default", "via", "fd18::fe")
        said(self.client, "sysctl", "-qw", "net.ipv4.ping_group_range=0 0")

    def _start_spine(self) -> None:
        kernels = "".join(
            f"protocol kernel {{ merge paths on; ipv{v} {{ export where source = RTS_BGP; }}; }}\n"
            for v in (4, 6)
        )
        sessions = "".join(
            f"protocol bgp r{one.number}v{v} {{\n  local {one.spine(v, 1)} as {SPINE_AS};\n"
            f"  neighbor {one.spine(v, 2)} as {one.as_number};\n"
            "  connect delay time 1; connect retry time 1; error wait time 1, 2;\n"
            "  graceful restart off;\n"  # there is another way: who is gone is not waited for
            f"  ipv{v} {{ import all; export none; }};\n}}\n"
            for one in self.routers
            for v in (4, 6)
        )
        head = "router id 172.31.1.1;\nprotocol device { scan time 2; }\n"
        file = self.site.root / "spine.conf"
        file.write_text(f'log "{self.site.root}/spine.log" all;\n' + head + kernels + sessions)
        control = str(self.site.root / "spine.ctl")
        command = ["nsenter", f"--net=/run/netns/{self.site.name}", "bird", "-f", "-c", str(file)]
        self._spine = subprocess.Popen([*command, "-s", control], stdin=subprocess.DEVNULL)

    # -- looking -----------------------------------------------------------------------------

    def answers(self, source: str, address: str) -> bool:
        """Whether the VM answers one of the client's addresses."""
        command = ["ping", "-n", "-c1", "-W1", "-I", source, address]
        done = Netns(deadline=DEADLINE).call(
            f"/run/netns/{self.client}",
            lambda: subprocess.run(command, check=False, capture_output=True),
        )
        return done.returncode == 0

    def legs(self, address: str) -> set[str]:
        """The links that the spine may send an address's packets into."""
        family = "-6" if ":" in address else "-4"
        text = said(self.site.name, "ip", family, "-j", "route", "show", "to", "match", address)
        routes = [one for one in json.loads(text or "[]") if one["dst"] != "default"]
        found: set[str] = set()
        longest = max((_length(one["dst"]) for one in routes), default=-1)
        for one in routes:
            if _length(one["dst"]) == longest:
                hops = one.get("nexthops", [one])
                found |= {hop["dev"] for hop in hops if "dead" not in hop.get("flags", ())}
        return found

    def sessions(self, node: OverlayNode) -> int:
        """How many of a node's sessions with the routers are up."""
        known = {router.rack(version) for router in self.routers for version in (4, 6)}
        control = str(node.root / "run" / "bird.ctl")
        command = ["birdc", "-s", control, "show protocols all"]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        found = re.findall(r"BGP state: +(\S+)\n +Neighbor address: (\S+)", done.stdout)
        return sum(state == "Established" and peer in known for state, peer in found)

    def sent(self, router: Router) -> int:
        """Packets from the spine to a router so far."""
        text = said(self.site.name, "ip", "-s", "-j", "link", "show", router.leg)
        return int(json.loads(text)[0]["stats64"]["tx"]["packets"])

    def await_way(self, node: str, *routers: Router) -> None:
        """These (all) send the VM's packets to a node, in both families."""
        for router in routers or self.routers:
            for address in self.site.addresses:

                def there(router: Router = router, address: str = address) -> bool:
                    return router.way(address) == node

                try:
                    until(f"{router.vendor} leads {address} to {node}", there)
                except AssertionError as error:
                    error.add_note(self.picture(router, address))
                    raise

    def await_raised(self, wanted: bool, *routers: Router) -> None:
        """These (all) have the VM's route as one to prefer, or as one among others."""
        for router in routers or self.routers:
            for address in self.site.addresses:

                def so(router: Router = router, address: str = address) -> bool:
                    return router.raised(address) is wanted

                until(f"{router.vendor} has {address} raised: {wanted}", so)

    def await_legs(self, *routers: Router) -> None:
        """The spine sends to exactly these."""
        wanted = {one.leg for one in routers}
        for address in self.site.addresses:

            def so(address: str = address) -> bool:
                return self.legs(address) == wanted

            until(f"the spine sends {address} to {wanted}", so)

    def await_both(self) -> None:
        """The spine spreads flows over both."""
        self.await_legs(*self.routers)

    def picture(self, router: Router, address: str) -> str:
        """What a router knows, for who reads a failure."""
        found = [router.way(address)]
        for look in (["ip", "-4", "route"], ["ip", "-6", "route"], *router.looks()):
            with suppress(subprocess.CalledProcessError):
                found.append(said(router.space, *look))
        return "\n".join([*found, (router.dir / "log").read_text()[-2000:]])


def _length(dst: str) -> int:
    """A route's prefix length, as ip(8) writes it; a host's has none."""
    return int(dst.partition("/")[2] or (128 if ":" in dst else 32))
