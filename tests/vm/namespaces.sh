# Hosts of one machine, as containers are: each is a network and a host name namespace with an
# interface eth0, and bridges join them. Sourced by the first process of a network, mount and pid
# namespace, with which all of this ends: nothing has a name, and nothing is left behind.
#
# Hosts 1 to 3 have 10.9.0.HOST and fd09::HOST, and an MTU of 1500. Hosts 4 to 6 are a network of
# their own with fd09::HOST alone, and hosts 7 and 8 one with 10.9.7.HOST alone, each with an MTU of
# 9000. RDMA_TEST_HOSTS is their folder, and RDMA_SOFT_KEY is soft0's key of all of them; both are
# exported. `$RDMA_TEST_HOSTS/HOST/run COMMAND...` runs a command on a host.

# Makes the hosts.
make_hosts() { # an empty folder
  local -i host
  export RDMA_TEST_HOSTS=$1 RDMA_SOFT_KEY=$1/key
  mount -t tmpfs hosts "$1" && ip link set lo up || return
  (umask 077 && head -c 32 /dev/urandom | base64 >"$1/key") || return
  # Docker's names of the hosts, for this mount namespace.
  printf '%s\n' '127.0.0.1 localhost' '10.9.0.1 one' '10.9.0.2 two' '10.9.0.3 three' >"$1/names" || return
  mount --bind "$1/names" /etc/hosts || return
  make_bridge bridge0 1500 && make_bridge bridge1 9000 && make_bridge bridge2 9000 || return
  for host in 1 2 3; do make_host "$host" bridge0 1500 "10.9.0.$host/24" "fd09::$host/64" || return; done
  for host in 7 8; do make_host "$host" bridge2 9000 "10.9.7.$host/24" || return; done
  # The kernel may lack IPv6.
  [ -d /proc/sys/net/ipv6 ] || return 0
  for host in 4 5 6; do make_host "$host" bridge1 9000 "fd09::$host/64" || return; done
}

make_bridge() { # name, MTU
  ip link add "$1" mtu "$2" type bridge mcast_snooping 0 && ip link set "$1" up
}

make_host() { # number, bridge, MTU, address...
  local folder=$RDMA_TEST_HOSTS/$1
  mkdir "$folder" && touch "$folder/net" "$folder/uts" || return
  unshare --net="$folder/net" --uts="$folder/uts" hostname "host$1" || return
  # The bridges are in the namespace of process 1.
  enter_host "$1" ip link add eth0 mtu "$3" type veth peer name "port$1" mtu "$3" netns 1 || return
  ip link set "port$1" master "$2" up || return
  enter_host "$1" bash -c "$(declare -f set_up); set_up \"\$@\"" set_up "${@:4}" || return
  printf '#!/bin/bash\nexec bash %q %q "$@"\n' "$PWD/tests/vm/on.sh" "$1" >"$folder/run" && chmod +x "$folder/run"
}

# Removes a host that has lost its interface and its processes.
remove_host() { # number
  umount "$RDMA_TEST_HOSTS/$1/net" "$RDMA_TEST_HOSTS/$1/uts" && rm -r "${RDMA_TEST_HOSTS:?}/$1"
}

# Sets up the interfaces of the host in which it runs.
set_up() { # address...
  local address detection=/proc/sys/net/ipv6/conf/eth0/accept_dad
  # IPv6 may be off. Its addresses are usable at once.
  [ ! -e $detection ] || echo 0 >$detection
  ip link set lo up && ip link set eth0 up || return
  for address; do
    case $address in
      *:*) [ ! -e $detection ] || ip addr add "$address" dev eth0 nodad || return ;;
      *) ip addr add "$address" dev eth0 || return ;;
    esac
  done
}

# Runs a command in the namespaces of a host, with no other change.
enter_host() { # host, command...
  nsenter --net="$RDMA_TEST_HOSTS/$1/net" --uts="$RDMA_TEST_HOSTS/$1/uts" "${@:2}"
}
