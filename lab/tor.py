"""The top-of-rack switch: another autonomous system, one eBGP session to each node.

eBGP does not carry local preference, so the ToR tells an elevated route from a normal one by MED
alone (lower wins; all nodes are one neighbouring AS, so BIRD compares their MEDs by default).
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
protocol direct {{ ipv4; interface "lan", "{names.EXT}"; }}
protocol kernel {{
  scan time 2;
  merge paths off;
  ipv4 {{ import none; export where source = RTS_BGP; }};
}}

filter from_node {{
  if net ~ [ {names.POOL}+ ] then accept;
  reject;
}}
filter to_node {{
  if source = RTS_DEVICE then accept;
  reject;
}}

template bgp node {{
  local {names.TOR_ADDRESS} as {names.TOR_AS};
  connect retry time 1;
  connect delay time 1;
  error wait time 1, 5;
  graceful restart on;
  ipv4 {{ import filter from_node; export filter to_node; }};
}}
"""
    sessions = (
        f"protocol bgp {node.name} from node "
        f"{{ neighbor {node.address.ip} as {names.CLUSTER_AS}; }}\n"
        for node in nodes
    )
    return head + "".join(sessions)
