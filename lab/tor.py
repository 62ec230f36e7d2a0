"""The top-of-rack switch: another autonomous system, one eBGP session to each node.

eBGP does not carry local preference, so the ToR tells an elevated route from a normal one by MED
alone (lower wins; all nodes are one neighbouring AS, so BIRD compares their MEDs by default).
Each family has sessions of its own.
Third-party next hops stay as they are on the shared subnet: a path that node1 passes on for
node2 still points at node2.
"""

from __future__ import annotations

from pathlib import Path

from lab import names


def render_tor(nodes: tuple[names.LabNode, ...], log: Path) -> str:
    """The ToR's BIRD configuration; `nodes` are those that it has a session with."""
    head = f"""\
log "{log}" all;
router id {names.TOR_ADDRESS};

protocol device {{ scan time 2; }}
protocol direct {{ ipv4; ipv6; interface "lan", "{names.EXT}"; }}

filter to_node {{
  if source = RTS_DEVICE then accept;
  reject;
}}

template bgp session {{
  connect retry time 1;
  connect delay time 1;
  error wait time 1, 5;
  graceful restart on;
}}
"""
    return head + _family(4, nodes) + _family(6, nodes)


def session(node: str, version: int) -> str:
    """The name of the protocol that speaks with a node in a family."""
    return node if version == 4 else f"{node}_v6"


def _family(version: int, nodes: tuple[names.LabNode, ...]) -> str:
    pool, own = (
        (names.POOL, names.TOR_ADDRESS) if version == 4 else (names.POOL6, names.TOR_ADDRESS6)
    )
    v = f"ipv{version}"
    head = f"""
protocol kernel fib{version} {{
  scan time 2;
  merge paths off;
  {v} {{ import none; export where source = RTS_BGP; }};
}}

filter from_node{version} {{
  if net ~ [ {pool}+ ] then accept;
  reject;
}}

template bgp session{version} from session {{
  local {own} as {names.TOR_AS};
  {v} {{ import filter from_node{version}; export filter to_node; }};
}}
"""
    sessions = (
        f"protocol bgp {session(node.name, version)} from session{version} "
        f"{{ neighbor {node.ip(version)} as {names.CLUSTER_AS}; }}\n"
        for node in nodes
    )
    return head + "".join(sessions)
