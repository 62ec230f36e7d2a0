"""Who the lab's nodes are to each other: an authority of the lab's own, a certificate for each.

Made by the commands that `docs/node.md` gives an administrator. A certificate that is issued again
replaces the node's old one file by file, as a rotation does; the agent takes it with the next
connection.
"""

from __future__ import annotations

from pathlib import Path

from lab.state import StateDir
from lab.tools import run

PLACE = "/etc/tortie/peers"
"""Where a node sees its files."""
_CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
_DAYS = "30"


def make_authority(state: StateDir) -> None:
    """The lab's authority; its key stays outside of all nodes. Raises `LabError`."""
    state.peers.mkdir(mode=0o700)
    key, certificate = str(state.peers / "ca.key"), str(state.peers / "ca.pem")
    subject = ["-days", _DAYS, "-subj", "/CN=tortie-peers"]
    run(["openssl", "req", "-x509", *_CURVE, *subject, "-keyout", key, "-out", certificate])


def certify(state: StateDir, node: str) -> None:
    """A new key and certificate for a node, in its directory. Raises `LabError`."""
    authority = state.peers / "ca.pem"
    key, request, certificate = (state.peers / f"{node}.{end}" for end in ("key", "csr", "pem"))
    name = ["-subj", f"/CN={node}", "-addext", f"subjectAltName=DNS:{node}"]
    run(["openssl", "req", *_CURVE, *name, "-keyout", str(key), "-out", str(request)])
    signing = ["-CA", str(authority), "-CAkey", str(state.peers / "ca.key"), "-CAcreateserial"]
    signed = ["-copy_extensions", "copy", "-days", _DAYS, "-out", str(certificate)]
    run(["openssl", "x509", "-req", "-in", str(request), *signing, *signed])
    request.unlink()
    place = node_files(state, node)
    place.mkdir(mode=0o700, exist_ok=True)
    (place / "ca.pem").write_bytes(authority.read_bytes())
    key.replace(place / "node.key")
    certificate.replace(place / "node.pem")


def node_files(state: StateDir, node: str) -> Path:
    """A node's authority, certificate and key, seen from outside of it."""
    return state.node(node, "etc") / "peers"


def agent_keys() -> dict[str, str]:
    """What an agent's configuration says of them."""
    files = {"ca": "ca.pem", "cert": "node.pem", "key": "node.key"}
    return {f"peer_{what}_file": f"{PLACE}/{name}" for what, name in files.items()}
