#!/bin/bash
# cases: jobs of ranks in two guests, which two wires join, with a device at each end of each wire,
# and a network with two devices of each guest. `soft_*`: soft0 by TCP over the first wire takes the
# place of rxe; netem loses or delays packets there, and the wire is down for a while.
# The case runs in the first guest, and asks the second to run its ranks (guest.sh, serve).
set -uo pipefail
FIRST=10.9.0.1 SECOND=10.9.0.2 REQUESTS=/out/second/requests

if [ "$1" = list ]; then
  [ "$2" = wire ] || exit 0
  printf '%s\n' pingpong by_hand hierarchical rails rails_all_to_all cross_rail mpirun lost_host priorities \
    soft_{by_hand,loss,delay,link_down,lost_host}
  [ -z "${RDMA_TEST_LONG:-}" ] || printf '%s\n' soft_{pingpong,hierarchical,mpirun,link_down_60}
  exit
fi

# Runs a line in the second guest; prints its output, and returns its status.
remote() { # line
  local request=$REQUESTS/$BASHPID
  until [ -e /out/second/ready ]; do sleep 0.1; done
  rm -f "$request".*
  printf 'cd %q; export PATH=%q RDMA_DEVICE=%q\n%s\n%s\n' "$PWD" "$PATH" "${RDMA_DEVICE:-}" "${SOFT:-}" "$1" >"$request.new"
  mv "$request.new" "$request.sh"
  until [ -e "$request.status" ]; do sleep 0.1; done
  cat "$request.log"
  return "$(<"$request.status")"
}

# soft0 in place of rxe, in both guests: $SOFT is the second guest's preparation.
soft() {
  local key begin
  key=$(head -c 32 /dev/urandom | base64)
  begin="(umask 077; echo $key >/tmp/key.\$\$; mv /tmp/key.\$\$ /tmp/key)"
  export SOFT="$begin; export RDMA_SOFT_TCP=eth0 RDMA_SOFT_KEY=/tmp/key" RDMA_DEVICE=soft0
  eval "$SOFT"
}

# Makes the first wire lose or delay packets both ways for a command.
worse() { # netem's words, command...
  local on="tc qdisc add dev eth0 root netem $1" status
  $on && remote "$on" || return
  "${@:2}"; status=$?
  tc qdisc del dev eth0 root; remote 'tc qdisc del dev eth0 root'
  return $status
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

pingpongs() { # option...
  local server
  pingpong --server "$FIRST:$RDMA_TEST_PORT" --check "$@" & server=$!
  sleep 1
  remote "pingpong --check $* $FIRST:$RDMA_TEST_PORT" && wait $server
}

# Starts the server of a stream of writes from the second guest; its client is `$stream`.
stream() { # seconds
  local both="pingpong --op write --test bw --size 64K -D $1 --timeout 60"
  stream="$both $FIRST:$RDMA_TEST_PORT"
  # shellcheck disable=SC2086
  $both --server "$FIRST:$RDMA_TEST_PORT" & server=$!
  sleep 1
}

# Runs the client, and sets the first wire down in the middle of the stream. Prints whether the
# client has outlived that.
cut_wire() { # seconds
  remote "$stream & client=\$! sent=/sys/class/net/eth0/statistics/tx_bytes
    before=\$(<\$sent)
    until [ \$((\$(<\$sent) - before)) -gt 1000000 ]; do kill -0 \$client || exit; sleep 0.1; done
    ip link set eth0 down; sleep $1
    if kill -0 \$client; then echo 'NOTE the client lives'; else echo 'NOTE the client has ended'; fi
    ip link set eth0 up
    wait \$client"
}

SHORT=(--min 8 --max 256K --factor 32 --iters 2 --warmup 1)
[[ $2 != soft_* ]] || soft
case ${2#soft_} in
  pingpong) pingpongs --op write --size 64K -n 50 ;;
  loss) worse 'loss 2%' pingpongs --op send --test bw --size 4096 -n 200 ;;
  delay) worse 'delay 20ms' pingpongs --op write --test lat --size 256K -n 5 ;;
  # The stream goes on once TCP has sent again.
  link_down)
    stream 15
    cut_wire 5 | tee /tmp/client && grep -q 'NOTE the client lives' /tmp/client && wait "$server" ;;
  # Both sides take the other for dead after 10 s; when the wire is back, others meet.
  link_down_60)
    stream 80
    ! cut_wire 60 | tee /tmp/client && grep -q 'NOTE the client has ended' /tmp/client &&
      ! wait "$server" && pingpongs --op write --size 64K -n 5 ;;
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
      --host "$FIRST:2,$SECOND:2" -n 4 -x PATH -x RDMA_DEVICE ${SOFT:+-x RDMA_SOFT_TCP -x RDMA_SOFT_KEY} \
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
