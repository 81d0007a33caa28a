#!/bin/bash
# cases: jobs of ranks in two guests, which two wires join, with a device at each end of each wire,
# and a network with two devices of each guest.
# The case runs in the first guest, and asks the second to run its ranks (guest.sh, serve).
set -uo pipefail
FIRST=10.9.0.1 SECOND=10.9.0.2 REQUESTS=/out/second/requests

if [ "$1" = list ]; then
  [ "$2" != wire ] || printf '%s\n' pingpong by_hand hierarchical rails rails_all_to_all cross_rail mpirun lost_host priorities
  exit
fi

# Runs a line in the second guest; prints its output, and returns its status.
remote() { # line
  local request=$REQUESTS/$BASHPID
  until [ -e /out/second/ready ]; do sleep 0.1; done
  rm -f "$request".*
  printf 'cd %q; export PATH=%q RDMA_DEVICE=%q\n%s\n' "$PWD" "$PATH" "${RDMA_DEVICE:-}" "$1" >"$request.new"
  mv "$request.new" "$request.sh"
  until [ -e "$request.status" ]; do sleep 0.1; done
  cat "$request.log"
  return "$(<"$request.status")"
}

# mpirun starts its daemon in the second guest by this script, as it would by ssh: HOST LINE...
if [ "$1" = agent ]; then
  shift 2
  remote "$*"
  exit
fi

# Runs a job of four ranks, two in each guest; the output of rank 0 is in /tmp/rank0 then.
job() { # program, option...
  local rank status=0 remote_ranks=() line
  for rank in 2 3; do
    line="$* --world 4 --rank $rank --root $FIRST:$RDMA_TEST_PORT"
    remote "$line" & remote_ranks+=($!)
  done
  "$@" --world 4 --rank 1 --root "$FIRST:$RDMA_TEST_PORT" & remote_ranks+=($!)
  "$@" --world 4 --rank 0 --root "$FIRST:$RDMA_TEST_PORT" | tee /tmp/rank0 || status=1
  for rank in "${remote_ranks[@]}"; do wait "$rank" || status=1; done
  return $status
}

# The packets that this guest has sent by a device.
sent() { cat "/sys/class/infiniband/$1/ports/1/hw_counters/sent_pkts"; }

# Both rails must carry a part of the job's packets.
on_both_rails() { # device, device, command...
  local -a before=("$(sent "$1")" "$(sent "$2")") after
  "${@:3}" --device "$1,$2" || return
  after=("$(sent "$1")" "$(sent "$2")")
  echo "NOTE packets: $((after[0] - before[0])) by $1, $((after[1] - before[1])) by $2"
  [ $((after[0] - before[0])) -gt 100 ] && [ $((after[1] - before[1])) -gt 100 ]
}

SHORT=(--min 8 --max 256K --factor 32 --iters 2 --warmup 1)
case $2 in
  pingpong)
    pingpong --server "$FIRST:$RDMA_TEST_PORT" --op write --check --size 64K -n 50 & server=$!
    sleep 1
    remote "pingpong --op write --check --size 64K -n 50 $FIRST:$RDMA_TEST_PORT" && wait $server ;;
  by_hand) job all_reduce --algo ring "${SHORT[@]}" ;;
  hierarchical)
    job all_reduce --algo hierarchical "${SHORT[@]}" && job all_gather --algo hierarchical "${SHORT[@]}" ;;
  rails) on_both_rails rxe0 rxe1 job all_reduce --rails 2 --qps-per-connection 2 "${SHORT[@]}" ;;
  # The wires are networks of their own, so a rail reaches the rail of the same number only.
  rails_all_to_all) on_both_rails rxe0 rxe1 job all_to_all --rails all --cross-rail 0 "${SHORT[@]}" ;;
  # Each guest begins at another rail, so the first rail of this one reaches the second of the
  # other.
  cross_rail)
    on_both_rails rxe2 rxe3 job all_reduce --rails 2 --cross-rail 1 "${SHORT[@]}" &&
      on_both_rails rxe2 rxe3 job all_to_all --rails all --cross-rail 1 "${SHORT[@]}" &&
      ip neigh show dev eth2 | grep 10.9.2.4 ;;
  mpirun)
    [ -n "$(command -v mpirun)" ] || { echo "SKIP mpirun is not installed"; exit; }
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    mpirun --mca plm_rsh_agent "bash tests/vm/wire.sh agent" --mca oob_tcp_if_include eth0 --bind-to none \
      --host "$FIRST:2,$SECOND:2" -n 4 -x PATH -x RDMA_DEVICE \
      all_reduce --root "$FIRST:$RDMA_TEST_PORT" --algo hierarchical "${SHORT[@]}" ;;
  priorities)
    # The connection manager sets the connection up; a test captures its packets.
    line="pingpong --cm --op send --size 64 -n 50 --traffic-class 104"
    test=capture::packets_of_two_hosts_have_the_class_of_their_job
    it=$(awk '$1 == "it" { print $2 }' target/vm/tests.txt)
    RDMA_TEST_CAPTURE=eth0 "$it" --exact "$test" --nocapture >/tmp/capture 2>&1 & capture=$!
    until grep -q capturing /tmp/capture; do kill -0 $capture || { cat /tmp/capture; exit 1; }; sleep 0.1; done
    # shellcheck disable=SC2086
    $line --server "$FIRST:$RDMA_TEST_PORT" & server=$!
    sleep 1
    remote "$line $FIRST:$RDMA_TEST_PORT" && wait $server && wait $capture
    status=$?
    cat /tmp/capture
    exit $status ;;
  lost_host)
    # The second guest's wires are cut in the middle; the ranks of the first end and name the cause.
    line="--world 2 --root $FIRST:$RDMA_TEST_PORT --min 64K --max 64K --iters 1000000 --timeout 6"
    remote "all_reduce --rank 1 $line & sleep 8; ip link set eth0 down; wait; ip link set eth0 up" >/tmp/rank1 & other=$!
    # shellcheck disable=SC2086
    all_reduce --rank 0 $line 2>/tmp/rank0; status=$?
    cat /tmp/rank0
    wait $other
    echo "NOTE the survivor's status is $status"
    # Rank 0 notices the silence itself, or rank 1 does so first and says it when its wire is back.
    { [ $status = 1 ] || [ $status = 3 ]; } && grep -q '^all_reduce: rank 1 ' /tmp/rank0 ;;
  *) echo "no case $2"; exit 2 ;;
esac
