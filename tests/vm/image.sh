#!/bin/bash
# image.sh KERNEL PACKAGES OUT [FOLDER_OF_MORE_MODULES]: OUT/{vmlinux,initrd} from the unpacked
# packages: the kernel without its decompressor (slow in an emulated machine), a static busybox, and
# the needed modules, in the order of loading.
set -euo pipefail
K=$(realpath "$1") P=$(realpath "$2") O=$3; shift 3; MORE=("$@"); HERE=$(dirname "$(realpath "$0")"); B=$P/usr/bin/busybox
[ -x "$B" ] || B=$P/bin/busybox
# The kernel requests checksum modules at run time: modules.dep does not list them.
MODS="virtio_pci virtio_net 9pnet_virtio 9p overlay dummy veth sch_netem crc32_generic crc32c_generic
      rdma_rxe siw ib_uverbs rdma_ucm ib_umad"
mkdir -p "$O"; W=$(mktemp -d); trap 'rm -rf "$W"' EXIT; mkdir -p "$W"/{bin,dev,proc,sys,mnt,ko}
KO=$(find "$K" -maxdepth 4 -path '*lib/modules/*' -type d -print -quit)
Z=$(find "$K" -name 'vmlinuz*' -type f -print -quit)
for c in 'xz \xfd7zXZ\x00' 'zstd \x28\xb5\x2f\xfd'; do
  at=$(LC_ALL=C grep -aboP "${c#* }" "$Z" | head -1 | cut -d: -f1) || continue
  [ -n "$at" ] || continue
  # Other bytes follow the payload, so only the output shows success, not the exit status.
  tail -c +$((at + 1)) "$Z" | ${c% *} -dcq >"$O"/vmlinux 2>/dev/null || true
  [ "$(head -c 4 "$O"/vmlinux | tail -c 3)" = ELF ] && break
done
[ "$(head -c 4 "$O"/vmlinux | tail -c 3)" = ELF ] || { echo "image.sh: no kernel in $Z" >&2; exit 1; }
declare -A seen=()
add() { # what it depends on first, then itself
  [ -n "${seen[$1]:-}" ] && return; seen[$1]=1; local f t=$W/ko/$1.ko m
  f=$(find ${MORE[@]+"${MORE[@]}"} "$KO" -name "${1//_/[-_]}.ko*" -print -quit)
  case $f in '') return;; *.xz) xz -dc "$f" >"$t";; *.zst) zstd -dcq "$f" >"$t";; *) cp "$f" "$t";; esac
  for m in $(tr '\0' '\n' <"$t" | LC_ALL=C sed -n 's/^depends=//p' | head -1 | tr ,- ' _'); do add "$m"; done
  echo "$1" >>"$W"/ko/order
}
for m in $MODS; do add "$m"; done
cp "$B" "$W"/bin/busybox; cp "$HERE"/init "$W"/init; chmod +x "$W"/init
(cd "$W"; find . | "$B" cpio -o -H newc 2>/dev/null | gzip -1) >"$O"/initrd
