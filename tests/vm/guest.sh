# Sourced by /out/command in the guest: makes the device, then runs the lines of /out/plan (seconds,
# name, command, separated by tabs), with outputs in /out/log and results in /out/results. On the
# host, for the software device, only `run` is used.
OUT=${OUT:-/out}

# Sets the addresses of the device's interface.
address() { # interface, number of the network, number of the host
  local settings=/proc/sys/net/ipv6/conf/$1
  # IPv6 addresses are usable at once and stay when the link goes down, as IPv4 addresses do.
  echo 0 >"$settings/accept_dad"; echo 1 >"$settings/keep_addr_on_down"
  ip addr add "10.9.$2.${3:-1}/24" dev "$1" && ip addr add "fd09:$2::${3:-1}/64" dev "$1" nodad && ip link set "$1" up
}

active() { # device, a GID that must be there, if any
  local _
  for _ in $(seq 100); do
    # Addresses appear in the GID table a moment later.
    grep -q ACTIVE "/sys/class/infiniband/$1/ports/1/state" &&
      { [ -z "${2:-}" ] || grep -qr "$2" "/sys/class/infiniband/$1/ports/1/gids"; } && return
    sleep 0.05
  done
  echo "guest: $1 does not become active"; return 1
}

device() {
  ip link add d0 mtu 9000 type dummy && address d0 0 && rdma link add "${1}0" type "$1" netdev d0 || return
  case $1 in
    rxe)
      # A fenced queue of rxe stalls after a receiver was not ready (6.1, 6.12, 7.2; with a C
      # program, too), so most runs of random.rs with fences end in a timeout. rxe executes requests
      # in order without fences.
      export RDMA_TEST_UNFENCED=1
      active rxe0 0a09:0001 && active rxe0 fd09 || return ;;
    *) active "${1}0" || return ;;
  esac
  export RDMA_TEST_ADDRESS=10.9.0.1 RDMA_TEST_ADDRESS6=fd09::1 RDMA_TEST_NETDEV=d0
  # As the guest was started: see xtask/src/vm/guest.rs.
  export RDMA_TEST_NODES=2 RDMA_TEST_HUGE_PAGES=2M
  ! grep -qw pdpe1gb /proc/cpuinfo || RDMA_TEST_HUGE_PAGES=2M,1G
  # The counts with which leftovers.sh compares must not be empty.
  rdma resource show >/tmp/resources && grep -q "${1}0: .*qp" /tmp/resources
}

# Makes a device on each of the two wires between two guests, 10.9.WIRE.GUEST, and two in a network
# of both: 10.9.2.1 and 10.9.2.3 in the first guest, 10.9.2.2 and 10.9.2.4 in the second.
wire() { # number of this guest: 1 or 2
  local n
  # mpirun tells hosts apart by their names.
  echo "guest$1" >/proc/sys/kernel/hostname
  # Of two interfaces in one network, only the one that has an address answers for it.
  echo 1 >/proc/sys/net/ipv4/conf/all/arp_ignore; echo 2 >/proc/sys/net/ipv4/conf/all/arp_announce
  address eth0 0 "$1" && address eth1 1 "$1" && address eth2 2 "$1" && address eth3 2 $(($1 + 2)) || return
  for n in 0 1 2 3; do rdma link add "rxe$n" type rxe netdev "eth$n" || return; done
  for n in 0 1 2; do active "rxe$n" "0a09:0${n}0$1" || return; done
  active rxe3 "0a09:020$(($1 + 2))" || return
  export RDMA_DEVICE=rxe0
  rdma resource show >/tmp/resources
}

# In the second of two guests: runs the scripts that the first puts into /out/requests, each in the
# background, until the file /out/end appears. A script's output goes to NAME.log, its status to
# NAME.status.
serve() {
  local script name never
  never=$(mktemp -u); mkfifo "$never"
  mkdir -p /out/requests; : >/out/ready
  until [ -e /out/end ]; do
    for script in /out/requests/*.sh; do
      [ -e "$script" ] || continue
      name=${script%.sh}; mv "$script" "$name.begun"
      { bash "$name.begun" </dev/null >"$name.log" 2>&1; echo $? >"$name.new"; mv "$name.new" "$name.status"; } &
    done
    read -rt 0.1 <>"$never"
  done
}

# Copies files into memory, where opening and mapping need no host: the overlay copies a file that
# is touched.
keep() { # file...
  local libraries=/usr/lib/x86_64-linux-gnu
  touch -c "$@" /usr/bin/{bash,timeout,sleep,grep,rping,cmtime,ibv_{rc,uc}_pingpong,rdma} $libraries/{ld-linux-x86-64,libc,libm,libgcc_s,libtinfo}.so.* \
    $libraries/{libibverbs,librdmacm,libnl-3,libnl-route-3,libmnl,libselinux,libpcre2-8}.so.* $libraries/libibverbs/lib{rxe,siw}-rdmav34.so
} 2>/dev/null

result() { # status, milliseconds, name
  local word=ok seconds=$(($2 / 1000)).$(($2 / 100 % 10))
  case $1 in
    0) [[ $(<"$log") != *'SKIP '* ]] || word=skipped ;;
    124) word=TIMEOUT ;;
    *) word=FAILED ;;
  esac
  printf '%s\t%s\t%s\t%s\n' "$word" "$1" "$seconds" "$3" >>"$OUT"/results
  printf '%-5s %-70s %s  %s s\n' "$RDMA_DEVICE" "$3" "$word" "$seconds"
}

# limit COMMAND SECONDS: like timeout(1), but starts no program, which is slow in an emulated
# machine.
limit() {
  local job watch status
  (eval "$1") </dev/null >"$log" 2>&1 & job=$!
  (
    read -rt "$2" <>"$never"; : >"$OUT"/late; kill -TERM -- -$job
    read -rt 5 <>"$never"; kill -KILL -- -$job
  ) & watch=$!
  wait $job; status=$?
  kill -KILL -- -$watch; wait $watch
  # Kills the processes that the command has left running.
  kill -KILL -- -$job
  [ ! -e "$OUT"/late ] || { rm "$OUT"/late; return 124; }
  return $status
} 2>/dev/null

run() {
  local seconds name command begin log never
  local -i n=0
  # Makes each job a process group of its own.
  set -m
  mkdir -p "$OUT"/log
  never=$(mktemp -u); mkfifo "$never"
  while IFS=$'\t' read -r seconds name command; do
    n+=1 log=$OUT/log/$n begin=${EPOCHREALTIME/./}
    export RDMA_TEST_PORT=$((20000 + 10 * n))
    limit "$command" "$seconds"
    result $? $(((${EPOCHREALTIME/./} - begin) / 1000)) "$name"
  done <"$OUT"/plan
  rm -f "$never"
  echo end >>"$OUT"/results
}
