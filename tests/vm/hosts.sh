#!/bin/bash
# cases: programs on soft0 between hosts of namespaces.sh: C programs by `soft-rdma`, jobs of ranks,
# a program that is killed, a link that is set down, a plan of faults. `list DEVICE` prints the
# cases, `run CASE` runs one.
set -u

list() {
  [ "$1" = hosts ] || return 0
  printf '%s\n' off_without_tcp wrong_key {rc,uc,ud,srq}_pingpong{,_ipv6} \
    ib_{write_bw,write_lat,read_bw,read_lat,atomic_lat,send_bw,send_ud,send_uc,many_qps} ib_write_bw_ipv6 killed_{server,client} \
    rping rping_ipv6 our_rping {ucmatose,udaddy,rstream}{,_ipv6} write_bw_by_cm \
    fi_{dgram,msg} ucx_rc ucx_ud ucx_rdmacm mpi_{rc,ud,ofi} \
    pingpong pingpong_jumbo faults faults_end faults_die faults_port_down faults_of_a_job \
    link_down_for_a_while link_down_for_good lost_host two_users forks processes_64 \
    all_reduce all_reduce_3_hosts all_reduce_32 killed_rank compose \
    all_gather all_to_all broadcast reduce reduce_scatter gather scatter sendrecv hypercube barrier training_step
  # Each pair of processes on two hosts has a connection of its own: 1,024 of them.
  [ -z "${RDMA_TEST_LONG:-}" ] || echo all_reduce_64
}

# The program that runs a command on a host.
on() { # host
  echo "$RDMA_TEST_HOSTS/$1/run"
}

# Waits until somebody listens at the case's port on a host, for a process that may end before.
listens() { # host, process
  local pattern
  printf -v pattern ':%04X [0-9A-F]+:0000 0A ' "$port"
  until nsenter --net="$RDMA_TEST_HOSTS/$1/net" grep -qE "$pattern" /proc/net/tcp /proc/net/tcp6; do
    kill -0 "$2" || fail "nobody listens on host $1"
    pause 0.05 || :
  done
}

# Installs nothing: a case without its program is skipped.
needs() { # program
  command -v "$1" >/dev/null || { echo "SKIP $1 is not installed"; exit 0; }
}

# Runs a program on hosts 1 and 2, the client with the server's address as its last argument.
pair() { # command...
  local server
  needs "$1"
  begin server "$(on 1)" soft-rdma ${sysfs:+--sysfs} "$@" && server=$! && listens 1 $server
  well client "$(on 2)" soft-rdma ${sysfs:+--sysfs} "$@" 10.9.0.1
  ended_well $server server
}

# Waits until somebody listens by the connection manager on a host.
listens_by_cm() { # host, process
  until nsenter --net="$RDMA_TEST_HOSTS/$1/net" grep -q ' 00010000 .*@rdma-soft-cm' /proc/net/unix; do
    kill -0 "$2" || fail "nobody listens on host $1"
    pause 0.05 || :
  done
}

# Runs two programs that meet by the connection manager, the first on host 1 or 4, the second on
# the next.
cm_pair() { # host, command... -- command...
  local server host=$1
  local -a first=()
  shift
  until [ "$1" = -- ]; do first+=("$1"); shift; done
  shift
  needs "$2"
  begin server "$(on "$host")" "${first[@]}" && server=$! && listens_by_cm "$host" $server
  well client "$(on $((host + 1)))" "$@"
  ended_well $server server
}

# Like `pair`, with soft0's links by IPv6; the programs meet by IPv4.
pair6() { # command...
  local server
  needs "$1"
  begin server env RDMA_TEST_TCP=fd09::1 "$(on 1)" soft-rdma ${sysfs:+--sysfs} "$@" && server=$! && listens 1 $server
  well client env RDMA_TEST_TCP=fd09::2 "$(on 2)" soft-rdma ${sysfs:+--sysfs} "$@" 10.9.0.1
  ended_well $server server
}

# Programs between which no link comes about: the client fails, and says why.
no_pair() { # what the client says, variable=value of the client, command...
  local server client
  needs "$4"
  begin server "$(on 1)" "${@:3}" && server=$! && listens 1 $server
  begin client "$(on 2)" env "$2" "${@:3}" 10.9.0.1 && client=$!
  failed $client 'the client'
  grep -qF -- "$1" "$out/client.stderr" || fail "the client does not say '$1'"
  kill $server; wait $server
  return 0
}

# Our own programs meet by --server. Both compare what arrives.
pingpongs() { # host of the server, its address, host of the client, option...
  local server
  begin server "$(on "$1")" pingpong --server "$2:$port" --check "${@:4}" && server=$!
  well client "$(on "$3")" pingpong --check "${@:4}" "$2:$port"
  ended_well $server server
}

# Starts a job of ranks that are spread evenly over the first hosts.
job() { # hosts, ranks, command...
  local -i rank
  ranks=()
  for ((rank = 0; rank < $2; rank++)); do
    begin "rank$rank" "$(on $((rank * $1 / $2 + 1)))" "${@:3}" --world "$2" --rank "$rank" --root "10.9.0.1:$port"
    ranks+=($!)
  done
}

# Runs a job, which must succeed.
job_well() { # hosts, ranks, command...
  local rank
  job "$@"
  for rank in "${!ranks[@]}"; do ended_well "${ranks[rank]}" "rank$rank"; done
}

# Runs the C program of sums on two hosts by Open MPI, whose daemons start by the hosts' scripts, as
# they would by ssh.
mpi_sums() { # mpirun's options...
  needs mpirun
  needs mpicc
  mkdir "$out/bin"
  mpicc -o "$out/bin/mpi_sums" xtask/src/thirdparty/mpi_sums.c || fail 'mpicc fails'
  printf '#!/bin/bash\nexec "$RDMA_TEST_HOSTS/${1##*.}/run" bash -c "${*:2}"\n' >"$out/bin/agent"
  chmod +x "$out/bin/agent"
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 UCX_NET_DEVICES=soft0:1 UCX_IB_GID_INDEX=0
  well mpirun "$(on 1)" mpirun --mca plm_rsh_agent "$out/bin/agent" --mca oob_tcp_if_include eth0 --bind-to none \
    --host 10.9.0.1:2,10.9.0.2:2 -n 4 -x PATH -x UCX_NET_DEVICES -x UCX_IB_GID_INDEX "$@" soft-rdma --sysfs "$out/bin/mpi_sums"
}

# Another user of host 1, at an address of its own, reaches root's processes there and host 2.
two_users() { # ibv_rc_pingpong's options...
  local server command=(soft-rdma ibv_rc_pingpong "$@")
  local -a nobody=(setpriv --reuid 65534 --regid 65534 --clear-groups)
  needs ibv_rc_pingpong
  "${nobody[@]}" true 2>/dev/null || { echo 'SKIP only root can become another user'; exit 0; }
  nobody=("$(on 1)" "${nobody[@]}" env -u RDMA_SOFT_KEY RDMA_SOFT_TCP=10.9.0.101 RDMA_SOFT_KEY_FD=9)
  nsenter --net="$RDMA_TEST_HOSTS/1/net" ip addr add 10.9.0.101/24 dev eth0 || fail 'there is no second address'
  begin server "$(on 1)" "${command[@]}" && server=$! && listens 1 $server
  well client "${nobody[@]}" "${command[@]}" 10.9.0.1 9<"$RDMA_SOFT_KEY"
  ended_well $server server
  begin server "${nobody[@]}" "${command[@]}" 9<"$RDMA_SOFT_KEY" && server=$! && listens 1 $server
  well client "$(on 2)" "${command[@]}" 10.9.0.1
  ended_well $server server
  nsenter --net="$RDMA_TEST_HOSTS/1/net" ip addr del 10.9.0.101/24 dev eth0
}

# As many processes on each of two hosts, all at once, which are connected in pairs. Each soft-rdma
# starts all of its host.
processes() { # pairs
  local -i n first=30000
  local server all='ports=$1 last=$2; shift 2
    for ((port = ports; port <= last; port++)); do "$0" -p $port "$@" & all+=($!); done
    for one in "${all[@]}"; do wait $one || exit; done'
  local -a command=(soft-rdma bash -c "$all" ibv_rc_pingpong $first $((first + $1 - 1)) -g 0 -e -c -n 50)
  needs ibv_rc_pingpong
  begin server "$(on 1)" "${command[@]}" && server=$!
  for ((n = 0; n < $1; n++)); do port=$((first + n)) listens 1 $server; done
  well client "$(on 2)" "${command[@]}" 10.9.0.1
  ended_well $server server
  [ "$(grep -c 'iters in' "$out/client.stdout")" -eq "$1" ] || fail 'not all pairs have met'
}

# Runs the services of compose.yaml, each on a host, with the settings of the file.
compose() {
  local -i host=0
  local service rank command
  export RDMA_TEST_TCP=auto
  ranks=()
  while read -r service command; do
    host+=1
    # shellcheck disable=SC2086
    begin "$service" "$(on $host)" ${command//7000/$port} && ranks+=($!)
  done < <(awk '/^  [a-z]+:$/ { name = $1 } $1 == "command:" { $1 = name; print }' tests/vm/compose.yaml)
  [ $host -eq 3 ] || fail "compose.yaml has $host services"
  for rank in "${ranks[@]}"; do ended_well "$rank" 'a service'; done
}

# Bytes that a host has received.
received() { # host
  nsenter --net="$RDMA_TEST_HOSTS/$1/net" awk '$1 == "eth0:" { print $2 }' /proc/net/dev
}

# Waits until a transfer to a host is under way; the process must live.
transferring() { # host, process
  local -i before
  before=$(received "$1")
  until [ $(($(received "$1") - before)) -gt 10000000 ]; do
    kill -0 "$2" || fail 'the transfer has ended before'
    pause 0.05 || :
  done
}

# Starts perftest's stream of writes of this many seconds from a host to another.
stream() { # seconds, host of the server (1), host of the client (2)
  needs ib_write_bw
  local to=${2:-1} from=${3:-2} both=(soft-rdma ib_write_bw -F -x 0 -p "$port" -D "$1")
  begin server "$(on "$to")" "${both[@]}" && server=$! && listens "$to" $server
  begin client "$(on "$from")" "${both[@]}" "10.9.0.$to" && client=$!
  transferring "$to" $client
}

# Waits for a program that must end with an error: the status of timeout is 124.
failed() { # process, whose
  local status=0
  wait "$1" || status=$?
  [ $status -ne 0 ] && [ $status -lt 124 ] || fail "$2 ended with status $status"
}

# The survivor ends with an error, long before the stream would.
killed() { # victim, survivor, its name
  pkill -KILL -P "$1" -f ib_write_bw || fail 'there is nobody to kill'
  failed "$2" "the $3"
}

run() {
  local server client both sysfs= status=0
  . tests/vm/cm_peers.sh
  local verbs=(-g 0 -p "$port" -c -n 200) perf=(-F -x 0 -p "$port" -n 300)
  local short=(--min 8 --max 256K --factor 32 --iters 2 --warmup 1)
  case $1 in
    # The links of soft0 are the only way from host to host, so these two fail: the first has no
    # route to the server's GID.
    off_without_tcp) no_pair 'Failed to modify QP to RTR' RDMA_SOFT_TCP= soft-rdma ibv_rc_pingpong "${verbs[@]}" ;;
    wrong_key)
      (umask 077 && head -c 32 /dev/urandom | base64 >"$out/key") || fail 'no key'
      no_pair 'no link to process' RDMA_SOFT_KEY="$out/key" soft-rdma ibv_rc_pingpong "${verbs[@]}"
      grep -q 'no link to process .*: the peer has another key' "$out/client.stderr" || fail 'another reason' ;;
    ud_pingpong) pair ibv_ud_pingpong -g 0 -p "$port" -n 200 ;;
    ud_pingpong_ipv6) pair6 ibv_ud_pingpong -g 0 -p "$port" -n 200 ;;
    *_pingpong) pair "ibv_$1" "${verbs[@]}" -s 65536 ;;
    *_pingpong_ipv6) pair6 "ibv_${1%_ipv6}" "${verbs[@]}" -e ;;
    ib_write_bw_ipv6) pair6 ib_write_bw "${perf[@]}" ;;
    ib_send_ud) pair ib_send_bw "${perf[@]}" -c UD ;;
    ib_send_uc) pair ib_send_lat "${perf[@]}" -c UC -s 100000 ;;
    ib_many_qps) pair ib_write_bw "${perf[@]}" -b -q 8 ;;
    ib_*) pair "$1" "${perf[@]}" ;;
    killed_server) stream 40 && killed "$server" "$client" client ;;
    killed_client) stream 40 && killed "$client" "$server" server ;;
    pingpong)
      for op in send write read; do pingpongs 1 10.9.0.1 2 --op $op --size 64K -n 100; done
      pingpongs 1 10.9.0.1 3 --op send --events --size 64 -n 100 ;;
    pingpong_jumbo) pingpongs 4 '[fd09::4]' 5 --op write --size 1M -n 50 ;;
    faults)
      export RDMA_SOFT_FAULT='seed=7; delay=1us..1ms:p=0.05; loss:p=0.02; loss:recv:p=0.02; rnr:recv:p=0.02'
      pingpongs 1 10.9.0.1 2 --op send --size 4096 -n 300 ;;
    faults_end)
      # The server loses all that comes from the other host, so the client's requests fail.
      begin server env RDMA_SOFT_FAULT=loss=all:recv:after=50 "$(on 1)" pingpong --server "10.9.0.1:$port" -n 1000 && server=$!
      begin client "$(on 2)" pingpong -n 1000 "10.9.0.1:$port" && client=$!
      failed "$client" 'the client'
      wait "$server" || : ;;
    faults_die)
      # The server's process ends by its plan, in the middle of the transfer.
      begin server env RDMA_SOFT_FAULT=die:recv:after=50 "$(on 1)" pingpong --server "10.9.0.1:$port" -n 1000 && server=$!
      begin client "$(on 2)" pingpong -n 1000 "10.9.0.1:$port" && client=$!
      failed "$client" 'the client'
      wait "$server" || status=$?
      [ $status -eq 137 ] || fail "the server ended with status $status" ;;
    faults_port_down)
      # Packets that are lost while the port is down are sent again.
      export RDMA_SOFT_FAULT=port-down=200ms:nth=100
      pingpongs 1 10.9.0.1 2 --op send --size 4096 -n 300 ;;
    faults_of_a_job)
      export RDMA_SOFT_FAULT='seed=3; delay=1us..500us:p=0.05; late=1us..1ms:p=0.05; loss:p=0.01; rnr:recv:p=0.01'
      job_well 2 4 all_reduce "${short[@]}" ;;
    rping)
      both=(-a 10.9.0.1 -p "$port" -C 50 -V)
      cm_pair 1 soft-rdma rping -s "${both[@]}" -- soft-rdma rping -c "${both[@]}" ;;
    rping_ipv6)
      both=(-a fd09::4 -p "$port" -C 20 -S 65000 -V)
      cm_pair 4 soft-rdma rping -s "${both[@]}" -- soft-rdma rping -c "${both[@]}" ;;
    our_rping)
      both=(-a 10.9.0.1 -p "$port" -C 50 -V)
      cm_pair 1 rping -s "${both[@]}" -- soft-rdma rping -c "${both[@]}" ;;
    ucmatose_ipv6)
      both=(-f ip6 -c 20 -C 20 -m -p "$port")
      cm_pair 4 soft-rdma ucmatose -b fd09::4 "${both[@]}" -- soft-rdma ucmatose -s fd09::4 "${both[@]}" ;;
    udaddy_ipv6)
      both=(-f ip6 -c 5 -C 100)
      cm_pair 4 soft-rdma udaddy -b fd09::4 "${both[@]}" -- soft-rdma udaddy -s fd09::4 "${both[@]}" ;;
    rstream_ipv6)
      both=(-f ip6 -p "$port" -S 4096 -I 20 -C 20)
      cm_pair 4 soft-rdma rstream -b fd09::4 "${both[@]}" -- soft-rdma rstream -s fd09::4 "${both[@]}" ;;
    ucmatose) cm_pair 1 soft-rdma ucmatose -c 20 -C 20 -m -p "$port" -- soft-rdma ucmatose -s 10.9.0.1 -c 20 -C 20 -m -p "$port" ;;
    udaddy) cm_pair 1 soft-rdma udaddy -c 5 -C 100 -- soft-rdma udaddy -s 10.9.0.1 -c 5 -C 100 ;;
    rstream)
      both=(-p "$port" -S 4096 -I 20 -C 20)
      cm_pair 1 soft-rdma rstream "${both[@]}" -- soft-rdma rstream -s 10.9.0.1 "${both[@]}" ;;
    write_bw_by_cm) cm_pair 1 soft-rdma ib_write_bw -F -R -p "$port" -- soft-rdma ib_write_bw -F -R -p "$port" 10.9.0.1 ;;
    fi_*)
      needs fi_pingpong
      both=(soft-rdma fi_pingpong -p verbs -e "${1#fi_}" -I 100)
      begin server "$(on 1)" "${both[@]}" -B "$port" && server=$! && listens 1 $server
      well client "$(on 2)" "${both[@]}" -P "$port" 10.9.0.1
      ended_well $server server ;;
    ucx_rc) sysfs=1 UCX_TLS=rc_v UCX_NET_DEVICES=soft0:1 UCX_IB_GID_INDEX=0 pair ucx_perftest -p "$port" -t tag_bw -n 500 ;;
    ucx_ud) sysfs=1 UCX_TLS=ud_v UCX_NET_DEVICES=soft0:1 UCX_IB_GID_INDEX=0 pair ucx_perftest -p "$port" -t tag_lat -n 200 ;;
    ucx_rdmacm)
      # UCX's client and server meet by the connection manager. The server goes on.
      needs io_demo
      export UCX_TLS=rc_v UCX_NET_DEVICES=soft0:1 UCX_IB_GID_INDEX=0 UCX_SOCKADDR_TLS_PRIORITY=rdmacm
      begin server "$(on 1)" soft-rdma --sysfs io_demo -p "$port" -q && server=$! && listens_by_cm 1 $server
      well client "$(on 2)" soft-rdma --sysfs io_demo -p "$port" -o read,write -q -i 200 10.9.0.1
      grep -q "Client exit with status 'OK'" "$out/client.stdout" || fail 'the client has not done all'
      kill $server || fail 'there is no server'
      wait $server || : ;;
    mpi_rc) mpi_sums -x UCX_TLS=rc_v,self --mca pml ucx ;;
    mpi_ud) mpi_sums -x UCX_TLS=ud_v,self --mca pml ucx ;;
    mpi_ofi) mpi_sums --mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include 'verbs;ofi_rxm' ;;
    link_down_for_a_while)
      # Host 1 keeps its carrier. The stream goes on once TCP has sent again.
      stream 16
      ip link set port2 down && sleep 5 && ip link set port2 up
      transferring 1 "$client"
      ended_well "$client" client
      ended_well "$server" server ;;
    link_down_for_good)
      # Both sides take the other for dead after 10 s.
      stream 50
      ip link set port2 down
      failed "$client" 'the client'
      ip link set port2 up
      kill "$server" || fail 'there is no server'
      wait "$server" || : ;;
    lost_host)
      # Host 9, which is for this case alone, loses its interface and its processes at once.
      . tests/vm/namespaces.sh
      make_host 9 bridge0 1500 10.9.0.9/24 || fail 'there is no host 9'
      stream 50 9 1
      ip link del port9
      pkill -KILL -P "$server" -f ib_write_bw || fail 'there is no server'
      SECONDS=0
      failed "$client" 'the client'
      # A host that is silent for 10 s is dead.
      [ $SECONDS -lt 20 ] || fail "the client has waited for $SECONDS s"
      wait "$server" || :
      # The next host 9 has another hardware address.
      remove_host 9 && enter_host 1 ip neigh flush dev eth0 ;;
    two_users) two_users "${verbs[@]}" ;;
    forks)
      needs cc
      mkdir "$out/bin"
      cc -o "$out/bin/forks" tests/vm/forks.c -libverbs || fail 'forks.c does not compile'
      pair "$out/bin/forks" "$port" ;;
    processes_64) processes 32 ;;
    all_reduce) job_well 2 4 all_reduce "${short[@]}" ;;
    all_reduce_3_hosts) job_well 3 6 all_reduce "${short[@]}" ;;
    all_reduce_*) job_well 2 "${1#all_reduce_}" all_reduce --min 1K --max 1K --iters 2 --warmup 1 ;;
    barrier) job_well 2 4 barrier --iters 2 --warmup 1 ;;
    training_step) job_well 2 8 training_step ;;
    all_gather | all_to_all | broadcast | reduce | reduce_scatter | gather | scatter | sendrecv | hypercube)
      job_well 2 4 "$1" "${short[@]}" ;;
    compose) compose ;;
    killed_rank)
      job 2 4 all_reduce --min 64K --max 64K --iters 1000000 --timeout 20
      transferring 2 "${ranks[0]}"
      pkill -KILL -P "${ranks[3]}" || fail 'there is nobody to kill'
      for rank in 0 1 2; do
        status=0; wait "${ranks[rank]}" || status=$?
        [ $status -eq 1 ] || [ $status -eq 3 ] || fail "rank $rank ended with status $status"
      done
      grep -q '^all_reduce: .*rank 3 ended' "$out/rank0.stderr" || fail 'rank 0 does not name rank 3' ;;
    *) echo "there is no case $1"; exit 2 ;;
  esac
}

case ${1-} in
  list | run) "$@" ;;
  *) echo "usage: hosts.sh list DEVICE | run CASE"; exit 2 ;;
esac
