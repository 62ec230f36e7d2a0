"""Bundles of a few files, as `scripts/bundle.py` lays them out."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

RUNS = "#!/bin/sh\necho '{\"supportedVersions\": []}'\n"


def make_bundle(
    directory: Path, version: str = "1.0", *, program: str = RUNS, text: str = "", **manifest: Any
) -> Path:
    """A bundle whose fallback is a shell script; `manifest` changes what its manifest says."""
    files = {
        "bin/launch": (program, 0o755),
        "lib/module.py": (f"# of {version} {text}\n", 0o644),
        "lib/deep/er/data": ("x" * 5000, 0o600),
    }
    said: dict[str, Any] = {"bin/tortie-cni": {"link": "launch"}, "bin/python3": {"link": "launch"}}
    for name, (content, mode) in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        path.chmod(mode)
        digest = hashlib.sha256(content.encode()).hexdigest()
        said[name] = {"mode": mode, "size": len(content), "sha256": digest}
    for name in ("tortie-cni", "python3"):
        (directory / "bin" / name).symlink_to("launch")
    body = {"version": version, "machine": os.uname().machine, "files": said, **manifest}
    (directory / "bundle.json").write_text(json.dumps(body))
    return directory


def tree(directory: Path) -> dict[str, tuple[str | bytes, int]]:
    """Everything below a directory: content or target of the link, and the mode."""
    found: dict[str, tuple[str | bytes, int]] = {}
    for path in sorted(directory.rglob("*")):
        name = str(path.relative_to(directory))
        if path.is_symlink():
            found[name] = (str(path.readlink()), 0)
        elif path.is_file():
            found[name] = (path.read_bytes(), path.stat().st_mode & 0o777)
        else:
            found[name + "/"] = ("", path.stat().st_mode & 0o777)
    return found
