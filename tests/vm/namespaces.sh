# Three hosts of one machine, as `docker compose` makes them: each is a network and a host name
# namespace with an interface eth0, 10.9.0.N and fd09::N, and a bridge joins them. Sourced by the
# first process of a network, mount and pid namespace, with which all of this ends.
#
# Exports RDMA_TEST_HOSTS, the folder of the hosts; on.sh runs a command on one of them.

HOSTS=3

# Makes the hosts, and the key of soft0 that they share.
make_hosts() { # folder
  local -i n
  export RDMA_TEST_HOSTS=$1
  mkdir -p "$1" && mount -t tmpfs hosts "$1" && ip link set lo up || return
  (umask 077 && head -c 32 /dev/urandom | base64 >"$1/key") || return
  ip link add bridge0 type bridge mcast_snooping 0 && ip link set bridge0 up || return
  for ((n = 1; n <= HOSTS; n++)); do
    mkdir "$1/$n" && touch "$1/$n/net" "$1/$n/uts" || return
    unshare --net="$1/$n/net" --uts="$1/$n/uts" hostname "host$n" || return
    # The first process (1) is in the bridge's namespace.
    enter_host "$n" ip link add eth0 type veth peer name "port$n" netns 1 || return
    ip link set "port$n" master bridge0 up && enter_host "$n" bash -c "$(declare -f addresses); addresses $n" || return
  done
  # The program that starts the second process of a test.
  printf '#!/bin/bash\nexec bash %q 2 "$@"\n' "$PWD/tests/vm/on.sh" >"$1/second" && chmod +x "$1/second"
}

# Sets up the interfaces of the host in which it runs.
addresses() { # host
  # IPv6 may be off. Its addresses are usable at once.
  ! cd /proc/sys/net/ipv6/conf/eth0 2>/dev/null || echo 0 >accept_dad
  ip link set lo up && ip link set eth0 up && ip addr add "10.9.0.$1/24" dev eth0 || return
  [ ! -e accept_dad ] || ip addr add "fd09::$1/64" dev eth0 nodad
}

# Runs a command in the namespaces of a host.
enter_host() { # host, command
  nsenter --net="$RDMA_TEST_HOSTS/$1/net" --uts="$RDMA_TEST_HOSTS/$1/uts" "${@:2}"
}

# Runs a command where the bridge is.
at_bridge() { # command
  nsenter --target 1 --net "$@"
}
