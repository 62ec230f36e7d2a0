#!/usr/bin/env bash
# Make the virtual environment and, as root on Debian, install the system tools the product drives.
set -euo pipefail
venv=$1; shift
cd "$(dirname "$0")/.."

missing=()
for deb in "$@"; do
    dpkg-query -W -f='${Status}' "$deb" 2>/dev/null | grep -q 'ok installed' || missing+=("$deb")
done
python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
if [ ${#missing[@]} -gt 0 ]; then
    if [ "$(id -u)" != 0 ]; then
        echo "setup: missing Debian packages: ${missing[*]}" >&2
        echo "setup: run as root, or: apt-get install ${missing[*]}" >&2
        exit 1
    fi
    apt-get update -qq
    # The packages start a system-wide bird and etcd; ours run beside them, by their own rules.
    own_policy=0
    policy=$(mktemp)
    trap 'rm -f "$policy"; [ "$own_policy" = 0 ] || rm -f /usr/sbin/policy-rc.d' EXIT
    printf '#!/bin/sh\nexit 101\n' > "$policy"
    if [ ! -e /usr/sbin/policy-rc.d ]; then
        install -m 0755 "$policy" /usr/sbin/policy-rc.d; own_policy=1
    fi
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
fi

[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check --upgrade 'setuptools>=68'
"$venv/bin/pip" install --quiet --disable-pip-version-check --editable '.[dev]'
