"""`tortiectl` as a user of an API server, told of it by the environment."""

from __future__ import annotations

import os
from pathlib import Path

from click.testing import CliRunner, Result

from lab.apiserver import kubeconfig
from lab.apiserver.server import ApiServer
from tortiectl.cli import main


class Ctl:
    """The command line, told of a server by the environment."""

    def __init__(self, server: ApiServer, root: Path) -> None:
        self.config = root / "kubeconfig"
        kubeconfig.write(self.config, kubeconfig.render(server.url, server.tokens.users(), None))

    def __call__(self, *args: str, code: int = 0) -> Result:
        environ = {
            "KUBECONFIG": str(self.config),
            "DATASTORE_TYPE": "kubernetes",
            "CALICO_API_GROUP": "projectcalico.org/v3",
            "PATH": os.environ["PATH"],
        }
        done = CliRunner().invoke(main, args, env=environ, catch_exceptions=False)
        assert done.exit_code == code, done.output
        return done
