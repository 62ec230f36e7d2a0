"""`tortiectl` as a user of an API server, told of it by the environment."""

from __future__ import annotations

import os
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

        self.environ = {
            "KUBECONFIG": str(self.config),
            "DATASTORE_TYPE": "kubernetes",
            "CALICO_API_GROUP": "projectcalico.org/v3",
            "PATH": os.environ["PATH"],
        }

    def __call__(self, *args: str, code: int = 0) -> Result:
        """A command that ends."""
        done = CliRunner().invoke(main, args, env=self.environ, catch_exceptions=False)
        assert done.exit_code == code, done.output
        return done

    def start(self, *args: str) -> Running:
        """One that goes on."""
        return Running([sys.executable, "-u", "-m", "tortiectl.cli", *args], dict(self.environ))
