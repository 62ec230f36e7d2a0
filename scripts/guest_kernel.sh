#!/usr/bin/env bash
# guest_kernel.sh DIRECTORY: put Debian's cloud kernel and the modules of a QEMU guest there. The package is only
# unpacked: installing it would give this machine another kernel, and make an initramfs for it.
set -euo pipefail
to=$1
modules="failover net_failover virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci virtio_blk virtio_net"
if [ "$(dpkg --print-architecture)" != amd64 ]; then
    echo "setup: no QEMU guest: its kernel and busybox are for amd64" >&2
    exit 0
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 0755 "$work"   # apt fetches as a user of its own
chown _apt "$work" 2>/dev/null || true
cd "$work"
package() { apt-cache depends linux-image-cloud-amd64 2>/dev/null | awk '/Depends:/ { print $2; exit }'; }
fetch() { name=$(package); [ -n "$name" ] && apt-get download -qq "$name"; }
if ! fetch; then
    echo "setup: looking for linux-image-cloud-amd64 anew" >&2
    apt-get update -qq
    fetch
fi
dpkg-deb -x ./*.deb tree
mkdir -p "$OLDPWD/$to.new"
new=$OLDPWD/$to.new
for module in $modules; do
    find tree -name "$module.ko" -exec cp {} "$new/" \;
    [ -e "$new/$module.ko" ] || { echo "setup: the kernel has no module $module" >&2; exit 1; }
done
cp tree/boot/vmlinuz-* "$new/vmlinuz"
rm -rf "${OLDPWD:?}/$to"
mv "$new" "$OLDPWD/$to"
