"""How long after the status file is there does the policy wait return?"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from cni_plugin.policy_gate import FilePolicyGate

WRITER = """
import json, os, sys, time
path = sys.argv[1]
for line in sys.stdin:
    time.sleep(0.05)  # the other side is waiting by then
    with open(path + ".new", "w") as file:
        json.dump({"containerID": line.strip()}, file)
    os.replace(path + ".new", path)
    print(time.monotonic(), flush=True)
"""


def waits(directory: Path, count: int) -> list[float]:
    """Milliseconds from the rename, in another process, to the return; one for each round."""
    directory.mkdir()
    gate = FilePolicyGate(directory, lambda: True)
    name = "k8s default%2Fweb-0 eth0"
    times: list[float] = []
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(directory / name)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as writer:
        assert writer.stdin and writer.stdout
        for number in range(count):
            writer.stdin.write(f"c{number}\n")
            writer.stdin.flush()
            assert gate.wait(name, f"c{number}", 60.0)
            returned = time.monotonic()
            times.append((returned - json.loads(writer.stdout.readline())) * 1000)
        writer.stdin.close()
    return [max(each, 0.0) for each in times]
