"""`tortiectl` as a user of an API server, told of it by the environment."""

from __future__ import annotations

import sys
from pathlib import Path

from click.testing import CliRunner, Result

from lab.apiserver import kubeconfig
from lab.apiserver.server import ApiServer
from tests.fakes.kubectl import Running
from tortiectl.cli import main


class Ctl:
    """The command line, told of a server by the environment."""

    def __init__(self, server: ApiServer, root: Path) -> None:
        self.config = root / "kubeconfig"
        kubeconfig.write(self.config, kubeconfig.render(server.url, server.tokens.users(), None))

        self.programs = root / "bin"
        self.programs.mkdir()
        self.environ = {
            "KUBECONFIG": str(self.config),
            "DATASTORE_TYPE": "kubernetes",
            "CALICO_API_GROUP": "projectcalico.org/v3",
            "PATH": str(self.programs),
            "HOME": str(root),
        }

    def __call__(self, *args: str, code: int = 0) -> Result:
        """A command that ends."""
        done = CliRunner().invoke(main, args, env=self.environ, catch_exceptions=False)
        assert done.exit_code == code, done.output
        return done

    def program(self, name: str, script: str) -> None:
        """A program of the user's: otherwise there is none on the path."""
        path = self.programs / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def start(self, *args: str) -> Running:
        """One that goes on."""
        return Running([sys.executable, "-u", "-m", "tortiectl.cli", *args], dict(self.environ))
