"""What BIRD says of its BGP sessions: asked over its control socket, read from its own words.

BIRD may hang, be gone or be somebody else's: every question has a deadline and every failure says
which of these it is. What its words say is a stranger's text.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import ip_address

from libtortie.deadline import Deadline
from libtortie.errors import Malformed, Unavailable
from libtortie.model.ipam import IPAddress

SECONDS = 4.0
_MOST = 4 << 20
_LINE = re.compile(r"(\d{4})([ -])(.*)")
_SESSION = re.compile(
    r"(?P<name>\S+)\s+BGP\s+\S+\s+(?P<state>\S+)\s+(?P<since>\S+(?: \d\d:\d\d\S*)?)\s*(?P<info>.*)"
)
_NEIGHBOUR = re.compile(r"\s+Neighbor address:\s+(?P<address>[0-9a-fA-F.:]+)")
_ERROR = re.compile(r"\s+Last error:\s+(?P<error>.*)")

HEADINGS = ("PEER ADDRESS", "PEER TYPE", "STATE", "SINCE", "INFO")


@dataclass(frozen=True, slots=True)
class Session:
    """A BGP session. `address` is None where BIRD does not say whom it is with."""

    name: str
    state: str
    since: str
    info: str
    address: IPAddress | None = None

    @property
    def kind(self) -> str:
        """Whom it is with, in calicoctl's words."""
        return "node-to-node mesh" if self.name.startswith("mesh") else "peer"

    def cells(self) -> tuple[str, ...]:
        """A row of the table."""
        return (str(self.address or "?"), self.kind, self.state, self.since, self.info)


def ask(path: str, command: str, *, seconds: float = SECONDS) -> list[str]:
    """The lines of BIRD's answer. Raises `Unavailable` that names the cause; `Malformed`."""
    deadline = Deadline(seconds)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        try:
            sock.settimeout(seconds)
            sock.connect(path)
            buffer = b""
            _, buffer = _answer(sock, buffer, deadline)  # the greeting
            sock.sendall(command.encode() + b"\n")
            lines, _ = _answer(sock, buffer, deadline)
        except OSError as error:
            raise Unavailable(f"{path}: {_cause(error, seconds)}") from error
    return lines


def sessions(lines: Iterable[str]) -> Iterator[Session]:
    """The BGP sessions of a `show protocols all`."""
    found: Session | None = None
    for line in lines:
        if match := _SESSION.match(line):
            if found is not None:
                yield found
            found = Session(match["name"], match["state"], match["since"], match["info"].strip())
        elif found is None or (line and not line[0].isspace()):
            if found is not None:
                yield found
            found = None
        elif match := _NEIGHBOUR.match(line):
            found = _with_address(found, match["address"])
        elif (match := _ERROR.match(line)) and match["error"] not in found.info:
            said = f"{found.info} ({match['error'].strip()})"
            found = Session(found.name, found.state, found.since, said, found.address)
    if found is not None:
        yield found


def _with_address(session: Session, text: str) -> Session:
    try:
        address = ip_address(text)
    except ValueError as error:
        raise Malformed(f"BIRD names the neighbour {text!r}") from error
    return Session(session.name, session.state, session.since, session.info, address)


def _answer(sock: socket.socket, buffer: bytes, deadline: Deadline) -> tuple[list[str], bytes]:
    """The texts of one whole answer, and what came after it."""
    lines: list[str] = []
    size = 0
    while True:
        while b"\n" in buffer:
            raw, buffer = buffer.split(b"\n", 1)
            text = raw.decode("utf-8", "replace")
            if text.startswith("+"):
                continue
            match = _LINE.fullmatch(text)
            if match is None and not text.startswith(" "):
                raise Malformed(f"BIRD's answer has the line {text[:80]!r}")
            lines.append(match[3] if match else text)
            if match and match[2] == " ":
                if match[1] >= "8000":
                    raise Unavailable(f"BIRD refuses: {match[3]}")
                return lines, buffer
        left = deadline.step()
        if left <= 0 or size > _MOST:
            raise TimeoutError
        sock.settimeout(left)
        try:
            part = sock.recv(65536)
        except TimeoutError:
            continue  # the deadline decides whether that was the last step
        if not part:
            raise ConnectionResetError
        size += len(part)
        buffer += part


def _cause(error: OSError, seconds: float) -> str:
    if isinstance(error, FileNotFoundError):
        return "there is no such socket: BIRD does not run here, or has never been started"
    if isinstance(error, ConnectionRefusedError):
        return "the BIRD that made it has ended: see the agent's log for why"
    if isinstance(error, ConnectionResetError | BrokenPipeError):
        return "BIRD ended in the middle of its answer"
    if isinstance(error, TimeoutError | BlockingIOError):
        return f"no answer within {seconds:g} s: BIRD hangs"
    if isinstance(error, PermissionError):
        return "permission denied: ask as root"
    return error.strerror or str(error)
