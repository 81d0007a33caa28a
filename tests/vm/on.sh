#!/bin/bash
# on.sh HOST COMMAND...: runs a command on one of the hosts of namespaces.sh, in its own process,
# with soft0 reaching the other hosts from this host's address of RDMA_TEST_FAMILY (4 or 6).
case ${RDMA_TEST_FAMILY:-4} in
  4) export RDMA_SOFT_TCP=10.9.0.$1 ;;
  6) export RDMA_SOFT_TCP=fd09::$1 ;;
esac
export RDMA_SOFT_KEY=${RDMA_SOFT_KEY:-$RDMA_TEST_HOSTS/key}
exec nsenter --net="$RDMA_TEST_HOSTS/$1/net" --uts="$RDMA_TEST_HOSTS/$1/uts" "${@:2}"
