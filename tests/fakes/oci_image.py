"""An OCI archive with busybox in it, for runtimes that have no registry."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tarfile
from pathlib import Path

IMAGE = "docker.io/library/tortie-test:latest"


def image(*command: str) -> bytes:
    """The archive; a container of it runs busybox with these words."""
    busybox = shutil.which("busybox")
    assert busybox, "busybox is missing; run `make setup`"
    layer = archive({"bin/busybox": Path(busybox).read_bytes()}, mode=0o755)
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Cmd": ["/bin/busybox", *command]},
        "rootfs": {"type": "layers", "diff_ids": [digest(layer)]},
    }
    blobs = [layer, json.dumps(config).encode()]
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": described(blobs[1], "application/vnd.oci.image.config.v1+json"),
        "layers": [described(layer, "application/vnd.oci.image.layer.v1.tar")],
    }
    blobs.append(json.dumps(manifest).encode())
    index = {
        "schemaVersion": 2,
        "manifests": [
            {
                **described(blobs[2], "application/vnd.oci.image.manifest.v1+json"),
                "annotations": {"io.containerd.image.name": IMAGE},
            }
        ],
    }
    files = {f"blobs/sha256/{digest(blob).partition(':')[2]}": blob for blob in blobs}
    files["index.json"] = json.dumps(index).encode()
    files["oci-layout"] = b'{"imageLayoutVersion": "1.0.0"}'
    return archive(files)


def archive(files: dict[str, bytes], mode: int = 0o644) -> bytes:
    """A tar file."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), mode
            tar.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def digest(data: bytes) -> str:
    """As OCI names a blob."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def described(data: bytes, kind: str) -> dict[str, object]:
    """A blob's descriptor."""
    return {"mediaType": kind, "digest": digest(data), "size": len(data)}
