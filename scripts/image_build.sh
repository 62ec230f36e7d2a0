#!/usr/bin/env bash
# The image's build stage on Debian: packages, a virtual environment, the root file system.
set -euo pipefail
root=$1
cd "$(dirname "$0")/.."
if [ -z "${NO_PACKAGES:-}" ]; then # a base that has them already
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        python3 python3-venv gcc libc6-dev bird2 nftables
fi
venv=$(mktemp -d)
trap 'rm -rf "$venv"' EXIT
python3 -m venv "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check 'setuptools>=68'
"$venv/bin/pip" install --quiet --disable-pip-version-check --no-build-isolation .
./scripts/image_root.sh "$venv/bin/python" "$root"
