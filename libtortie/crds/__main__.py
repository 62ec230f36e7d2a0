"""`python -m libtortie.crds [DIRECTORY]`: write every definition (default: this tree's own)."""

from __future__ import annotations

import sys
from importlib.resources import files
from pathlib import Path

from libtortie.crds.manifests import manifests


def write(directory: Path) -> None:
    """Make the files of a directory those of the model; files of kinds that are gone go."""
    wanted = {directory / one.path: one.text for one in manifests()}
    for path in directory.glob("v*/*.yaml"):
        if path not in wanted:
            path.unlink()
    for path, text in wanted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    write(Path(*sys.argv[1:]) if sys.argv[1:] else Path(str(files("conf") / "crds")))
