"""The QEMU guest's echo server, run on this machine in a namespace of its own."""

import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "lab" / "guest_echo.c"
BURST = 800
"""More datagrams than a socket's usual room holds (256 of this size)."""
_INSIDE = """
import os, signal, socket, subprocess, sys
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
server = subprocess.Popen([sys.argv[1]], stdout=subprocess.PIPE)
try:
    assert server.stdout.readline() == b"ready\\n"
    client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    client.setsockopt(socket.SOL_SOCKET, 33, 8 << 20)  # SO_RCVBUFFORCE
    client.connect(("127.0.0.1", 7))
    client.settimeout(20)
    server.send_signal(signal.SIGSTOP)
    os.waitpid(server.pid, os.WUNTRACED)
    for number in range(int(sys.argv[2])):
        client.send(number.to_bytes(4, "big") + bytes(28))
    server.send_signal(signal.SIGCONT)
    for number in range(int(sys.argv[2])):
        assert int.from_bytes(client.recv(64)[:4], "big") == number
finally:
    server.kill()
"""


def test_what_came_while_the_guest_stood_is_echoed_when_it_goes_on(tmp_path: Path) -> None:
    server = tmp_path / "echo"
    subprocess.run(["cc", "-O2", "-Wall", "-Werror", "-o", server, SOURCE], check=True)
    inside = ["unshare", "-n", sys.executable, "-c", _INSIDE, str(server), str(BURST)]
    done = subprocess.run(inside, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
