"""`python -m lab.apiserver`: see `lab apiserver --help`."""

from __future__ import annotations

from lab.apiserver.command import apiserver

if __name__ == "__main__":
    apiserver(prog_name="python -m lab.apiserver")
