#!/bin/bash
# cases: after all tests, the kernel has as many objects of each kind as before the first.
case $1 in
  list) case $2 in soft | hosts) ;; *) echo nothing_is_left_behind ;; esac ;;
  run)
    # A connection's identifier may live until its last timer has run.
    for _ in $(seq 100); do
      rdma resource show | cmp -s - /tmp/resources && exit
      sleep 0.1
    done
    echo before; cat /tmp/resources; echo after; rdma resource show
    for kind in qp mr cq pd cm_id srq; do echo "$kind"; rdma resource show "$kind"; done
    exit 1 ;;
esac
