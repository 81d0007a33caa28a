#!/bin/bash
# cases: lost packets (netem) and links set down: tests and programs must pass, and the kernel must
# have retransmitted. Also what only packets show: their traffic class and hop limit. rxe: two
# devices on a veth pair in one network namespace, with real packets between them. siw: its
# connections between addresses of one host go over lo, on every device.
set -uo pipefail
LOSS=2%
TESTS="messages_of_all_sizes_arrive_whole writes_and_reads_reach_exposed_memory lists_are_gathered_and_scattered_in_order
  unsignaled_requests_come_back_with_the_next_signaled_one"

if [ "$1" = list ]; then
  case $2 in
    rxe) printf '%s\n' loss_rc loss_random loss_pingpong loss_all_reduce killed_rank far_link_down far_peer_killed priorities ;;
    siw) printf '%s\n' loss_rc loss_processes ;;
  esac
  exit
fi
. tests/vm/guest.sh

veth() {
  local setting
  ip link add v1 mtu 4200 type veth peer name v2 mtu 4200 || return
  # Accepts packets to an address of this host from the other end of the pair.
  echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter
  for setting in accept_local=1 rp_filter=0 arp_ignore=1 arp_announce=2; do
    for end in v1 v2; do echo "${setting#*=}" >"/proc/sys/net/ipv4/conf/$end/${setting%=*}"; done
  done
  address v1 1 && address v2 2 && rdma link add rxe1 type rxe netdev v1 && rdma link add rxe2 type rxe netdev v2 || return
  active rxe1 0a09:0101 && active rxe2 0a09:0201 || return
  export RDMA_TEST_DEVICE=rxe1 RDMA_TEST_PEER_DEVICE=rxe2 RDMA_TEST_NETDEV=v2 RDMA_TEST_ADDRESS=10.9.1.1 RDMA_TEST_PEER_ADDRESS=10.9.2.1
}

# Has an end know the hardware address of the other one: the kernel asks for it again a second after
# a question was lost, and a queue pair waits for no more than that.
know() { # end, other end
  local address mac
  mac=$(cat "/sys/class/net/$2/address")
  for address in $(ip -o addr show dev "$2" scope global | awk '{ sub("/.*", "", $4); print $4 }'); do
    ip neigh replace "$address" lladdr "$mac" dev "$1" nud permanent || return
  done
}

# The devices' and TCP's counts of retransmitted packets, and netem's count of dropped ones.
count() { cat /sys/class/infiniband/rxe[12]/ports/1/hw_counters/"$1" | awk '{ n += $1 } END { print n }'; }
segments() { awk '/^Tcp:/ && !names { for (i = 1; i <= NF; i++) at[$i] = i; names = 1; next } /^Tcp:/ { print $at["RetransSegs"] }' /proc/net/snmp; }
dropped() { tc -s qdisc show | awk '/qdisc netem/ { on = 1 } on && /dropped/ { sub(",", "", $7); n += $7; on = 0 } END { print n + 0 }'; }

# The path of the test binary of that name.
binary() { awk -v name="$1" '$1 == name { print $2 }' target/vm/tests.txt; }

# Runs tests of the test binary of that name, or of that module of the binary `it`.
tests() {
  local binary module=$1; shift
  binary=$(binary "$module")
  [ -n "$binary" ] || { binary=$(binary it); set -- "${@/#/$module::}"; }
  for test in "$@"; do
    # The harness passes a run whose name matches no test, so the name is checked first.
    [ "$("$binary" --list --format=terse --exact "$test")" = "$test: test" ] || { echo "there is no test $test"; return 1; }
    (cd tests && "$binary" --exact "$test" --nocapture --test-threads=1) || return
  done
}

pingpong_both() {
  local server status
  RDMA_DEVICE=${RDMA_TEST_PEER_DEVICE:-$RDMA_DEVICE} pingpong --server "127.0.0.1:$RDMA_TEST_PORT" "$@" & server=$!
  sleep 1
  RDMA_DEVICE=$RDMA_TEST_DEVICE pingpong "$@" "127.0.0.1:$RDMA_TEST_PORT"; status=$?
  wait $server && return $status
}

all_reduce_both() {
  local other status job=(--transport verbs --world 2 --root "127.0.0.1:$RDMA_TEST_PORT" "$@")
  RDMA_DEVICE=${RDMA_TEST_PEER_DEVICE:-$RDMA_DEVICE} all_reduce --rank 1 "${job[@]}" & other=$!
  RDMA_DEVICE=$RDMA_TEST_DEVICE all_reduce --rank 0 "${job[@]}"; status=$?
  wait $other && return $status
}

# One of two ranks is killed in the middle; the other must end with an error.
killed_rank() {
  local other first job=(--transport verbs --world 2 --root "127.0.0.1:$RDMA_TEST_PORT" --min 64K --max 64K --iters 1000000)
  all_reduce --rank 1 "${job[@]}" & other=$!
  all_reduce --rank 0 "${job[@]}" & first=$!
  sleep 4
  kill -0 $first && kill -9 $other || return
  if wait $first; then echo "the survivor says that all is well"; return 1; else echo "NOTE the survivor's status is $?"; fi
}

# The count of objects at the start of the run: the previous case may still be freeing its objects.
before=$(</tmp/resources)
interface=lo
undo() { { echo 64 >/proc/sys/net/ipv4/ip_default_ttl; tc qdisc del dev lo root; ip link set lo mtu 65536 gso_max_segs 65535; rdma link del rxe1; rdma link del rxe2; ip link del v1; } 2>/dev/null; }
trap undo EXIT
if [[ $RDMA_DEVICE == rxe* && $2 != killed* ]]; then
  veth || exit
  interface="v1 v2"
  # These tests do not exist for iWARP.
  TESTS+=" atomics_return_what_was_there write_with_immediate_notifies_after_the_data immediate_data_arrives_in_host_order"
fi
case $2 in loss_*)
  # lo carries 64 KiB in one packet, so 2 % of a test's packets may be less than one packet.
  [ "$interface" != lo ] || ip link set lo mtu 4096 gso_max_segs 1 || exit
  [ "$interface" = lo ] || { know v1 v2 && know v2 v1; } || exit
  for one in $interface; do tc qdisc add dev "$one" root netem loss $LOSS || exit; done ;;
esac
again() { # what was sent again
  if [ "$interface" = lo ]; then segments; else echo $(($(count completer_retry_err) + $(count duplicate_request) + $(count rcvd_seq_err))); fi
}
sent_again=$(again)
case $2 in
  loss_rc) tests rc $TESTS ;;
  loss_processes) tests processes two_processes_do_everything writes_complete_while_the_target_sleeps ;;
  loss_random) tests random random_requests_between_processes random_requests_within_a_process ;;
  loss_pingpong)
    pingpong_both --op send --check --test lat -n 20 --size 16K && pingpong_both --op write --check --test bw -n 20 --size 64K &&
      pingpong_both --op read --check --test bw -n 20 --size 64K ;;
  loss_all_reduce) all_reduce_both --min 1K --max 256K --factor 16 --iters 2 --warmup 1 ;;
  killed_rank) killed_rank ;;
  far_link_down) tests faults a_link_set_down_in_mid_transfer_ends_it_and_comes_back ;;
  far_peer_killed) tests faults a_peer_killed_in_mid_transfer_ends_it ;;
  priorities)
    # Linux takes the hop limit of RoCE from the route.
    echo 9 >/proc/sys/net/ipv4/ip_default_ttl
    tests capture packets_of_a_connection_have_its_class_and_a_hop_limit_of_the_route \
      packets_of_a_service_have_its_class_and_a_hop_limit_of_the_route ;;
  *) echo "no case $2"; exit 2 ;;
esac
status=$?
case $2 in loss_*)
  echo "NOTE $(dropped) packets dropped, $(($(again) - sent_again)) sent again or missed"
  [ "$(dropped)" -gt 0 ] && [ "$(again)" -gt "$sent_again" ] || { echo "nothing was lost"; status=1; } ;;
esac
undo
# The devices of this case are gone, so none of its objects may be left.
for _ in $(seq 50); do [ "$(rdma resource show)" = "$before" ] && exit $status; sleep 0.1; done
echo "left behind:"; rdma resource show; exit 1
