#!/usr/bin/python3 -IS
"""The CNI executable: carry one request to the agent and its answer back. Nothing else.

Python's start-up is the floor of every pod's start, so this file imports os, sys and _socket
only (a test holds `sys.modules` to a list) and parses no JSON. `shim.c` is the same in C.

- Nobody listens (ENOENT, ECONNREFUSED): run the fallback in our place; stdin is still unread.
- Anything else, above all once bytes were sent: CNI error 11, "try again later" (STATUS: 50, and
  soon). The agent may have done the work; running it a second time must never happen.
"""

import _socket
import os
import sys

SOCKET = "/run/tortie/cni.sock"
FALLBACK = "/opt/tortie/bin/tortie-cni"
DEADLINE = 170.0  # seconds for the exchange: kubelet gives a sandbox 240
ASKED = os.environ.get("CNI_COMMAND") == "STATUS"
MAX_BODY = 4 << 20


def fail(message: str, stdin: bytes = b"", code: int = 11) -> None:
    """Print a CNI error and end."""
    code = 50 if ASKED and code == 11 else code
    plain = "".join(c if " " <= c <= "~" and c not in '"\\' else "?" for c in message)
    text = f'{{"cniVersion":"{version_of(stdin)}","code":{code},"msg":"{plain}"}}\n'
    finish(text.encode(), 1)


def version_of(stdin: bytes) -> str:
    """The configuration's cniVersion by its bytes; 1.0.0 when there is none to be seen."""
    rest = stdin.partition(b'"cniVersion"')[2].lstrip()
    value = rest[1:].lstrip().split(b'"', 2) if rest[:1] == b":" else []
    good = len(value) == 3 and not value[0] and 0 < len(value[1]) < 64
    return value[1].decode() if good and not value[1].strip(b"0123456789.") else "1.0.0"


def finish(output: bytes, status: int) -> None:
    """Write everything, then leave without the interpreter's tidying."""
    while output:
        try:
            output = output[os.write(1, output) :]
        except BlockingIOError:
            os.set_blocking(1, True)
        except OSError:  # nobody is left to be told
            os._exit(1)
    os._exit(status)


def open_standard_files() -> None:
    """A closed one would become the socket's."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open("/dev/null", os.O_RDWR)


def read_stdin() -> bytes:
    """Standard input, bounded. One that cannot be read is as good as empty: the agent says so."""
    data = b""
    while len(data) <= MAX_BODY // 2:
        try:
            chunk = os.read(0, 65536)
        except BlockingIOError:
            os.set_blocking(0, True)
            continue
        except OSError:
            return data
        if not chunk:
            return data
        data += chunk
    fail(f"the network configuration on stdin exceeds {MAX_BODY // 2} bytes", data, 6)
    return b""  # not reached


def connect(arguments: list[str]) -> _socket.socket:
    """A connection to the agent; does not return when there is none."""
    try:
        sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        sock.settimeout(DEADLINE)
        sock.connect(SOCKET)
        return sock
    except (FileNotFoundError, ConnectionRefusedError):
        pass
    except OSError as error:
        why = f"the agent at {SOCKET} is not answering: {error.strerror or error}"
        fail(why, read_stdin())  # for its cniVersion
    try:
        os.execv(FALLBACK, [FALLBACK, *arguments])
    except OSError as error:
        there = isinstance(error, FileNotFoundError) and os.access(FALLBACK, os.F_OK)
        why = "its interpreter is missing" if there else str(error.strerror)
        fail(f"no agent listens at {SOCKET} and {FALLBACK} cannot run: {why}", read_stdin())
    raise SystemExit(1)  # not reached


def request(stdin: bytes) -> bytes:
    """The frame of our environment and stdin (the layout is frame.py's)."""
    env = b"\0".join(k + b"=" + v for k, v in os.environb.items() if k.startswith(b"CNI_"))
    body = len(env).to_bytes(4, "big") + env + stdin
    if len(body) > MAX_BODY:
        fail("the CNI_ environment is too large", stdin, 4)
    return b"TTR1" + len(body).to_bytes(4, "big") + body


def receive(sock: _socket.socket, size: int, end: float) -> bytes:
    """Exactly `size` bytes before the clock reads `end`."""
    data = b""
    while len(data) < size:
        left = end - os.times()[4]
        if left <= 0:
            raise TimeoutError
        sock.settimeout(left)
        chunk = sock.recv(min(size - len(data), 65536))
        if not chunk:
            raise ConnectionResetError
        data += chunk
    return data


def main() -> None:
    """One exchange."""
    open_standard_files()
    sock = connect(sys.argv[1:])
    stdin = read_stdin()
    frame = request(stdin)
    seconds = DEADLINE / 5 if ASKED else DEADLINE
    end = os.times()[4] + seconds
    try:
        sock.sendall(frame)
        head = receive(sock, 12, end)
        size = int.from_bytes(head[8:], "big")
        if head[:4] != b"TTA1" or size > MAX_BODY:
            fail("the agent answered with something that is not a frame of ours", stdin)
        body = receive(sock, size, end)
    except TimeoutError:
        fail(f"the agent did not answer within {seconds:g} seconds", stdin)
    except OSError:
        fail("the agent broke the connection; what it did will be completed by a retry", stdin)
    finish(body, min(int.from_bytes(head[4:8], "big"), 255))


if __name__ == "__main__":
    main()
