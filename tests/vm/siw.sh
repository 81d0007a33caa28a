#!/bin/bash
# siw.sh HEADERS SOURCE PACKAGES OUT: builds OUT/siw.ko, which Debian's kernels lack, from the
# unpacked source and headers packages of the kernel.
set -euo pipefail
H=$(realpath "$1")/usr/src S=$(realpath "$2") P=$(realpath "$3") O=$(realpath -m "$4"); mkdir -p "$O"
tarball=$(find "$S" -name 'linux-source-*.tar.xz' -print -quit)
name=$(basename "$tarball" .tar.xz)
tar -xJf "$tarball" -C "$O" --strip-components=5 "$name/drivers/infiniband/sw/siw"
tree=$(find "$H" -maxdepth 1 -name 'linux-headers-*-amd64' -print -quit)
# Replaces the installation folder of the headers, which only this line of the Makefile names.
sed -i "s|include /usr/src|include $H|" "$tree"/Makefile
# The programs of the build scripts need libelf, which the machine may lack.
export LD_LIBRARY_PATH=$P/usr/lib/x86_64-linux-gnu
make -s -C "$tree" M="$O" CONFIG_RDMA_SIW=m PAHOLE=true modules
strip -g "$O"/siw.ko
