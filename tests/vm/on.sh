#!/bin/bash
# on.sh HOST COMMAND...: runs a command on one of the hosts of namespaces.sh, in this process, with
# soft0 reaching the other hosts. A device test's second process starts on the next host.
folder=$RDMA_TEST_HOSTS/$1
export RDMA_TEST_HOST=$1 RDMA_TEST_PEER_LAUNCHER=$RDMA_TEST_HOSTS/$(($1 + 1))/run
case $1 in
  [456]) address=fd09::$1 ;;
  [78]) address=10.9.7.$1 ;;
  *) address=10.9.0.$1 ;;
esac
export RDMA_TEST_ADDRESS=$address RDMA_SOFT_TCP=${RDMA_TEST_TCP-$address}
exec nsenter --net="$folder/net" --uts="$folder/uts" "${@:2}"
