#!/usr/bin/env bash
# The image's whole root file system, by the commands of its Dockerfile's build stage; also `make
# image-root` and the tests: what is tried out there is what is shipped.
set -euo pipefail
python=$1 root=$2
case $root in /*) ;; *) root=$PWD/$root ;; esac
[ "$root" != / ] && [ ! -e "$root" ] || { echo "image_root: $root is there already" >&2; exit 1; }
cd "$(dirname "$0")/.."

static() { ${CC:-cc} -std=c11 -pedantic -Wall -Wextra -Wconversion -Werror -Os -s -static -o "$2" "$1"; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
[ -x cni_plugin/shim.bin ] || static cni_plugin/shim.c cni_plugin/shim.bin
static scripts/launch.c "$work/launch"

programs=()
for name in nft bird birdc; do
    programs+=("$(PATH=$PATH:/usr/sbin:/sbin command -v "$name")") || { echo "image_root: no $name" >&2; exit 1; }
done
"$python" scripts/bundle.py "$root/opt/tortie/bundle" "$work/launch" "${programs[@]}"

install -d -m 0755 "$root"/{etc/tortie,run,var/lib/tortie,var/log/tortie,host,proc,sys,dev}
install -d -m 1777 "$root/tmp"
ln -s ../run "$root/var/run"
echo 'root:x:0:0:root:/:/nowhere
tortie:x:65532:65532:tortie:/:/nowhere' >"$root/etc/passwd"
echo 'root:x:0:
tortie:x:65532:' >"$root/etc/group"
echo 'hosts: files dns' >"$root/etc/nsswitch.conf"
