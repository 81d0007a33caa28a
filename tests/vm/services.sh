#!/bin/bash
# cases: the services `kv`, `rpc` and `file_copy`, as an operator runs them. `list DEVICE` prints
# the cases, `run CASE` runs one.
set -u

list() {
  local by_tcp
  case $1 in
    rxe) by_tcp='kv_by_tcp rpc_by_tcp file_copy_by_tcp kv_server_dies_by_tcp' ;;
    siw) by_tcp=iwarp_refuses_tcp ;;
    *) return 0 ;;
  esac
  printf '%s\n' kv kv_load rpc rpc_load file_copy file_copy_goes_on kv_server_dies $by_tcp
}

# Starts a server on the case's port, and waits until it says that it listens.
serve() { # program, arguments after the address
  local _
  begin server "$1" serve "${at[@]}" "${@:2}"
  for _ in $(seq 400); do
    [[ $(<"$out/server.stdout") != *'listening on '* ]] || return 0
    pause 0.05
  done
  fail 'the server does not listen'
}

# Runs a client that must print a text.
prints() { # text, command
  well client "${@:2}"
  [[ $(<"$out/client.stdout") == *"$1"* ]] || fail "the client does not print: $1"
}

# Runs a client that must fail, and say why on standard error.
refused() { # text, command
  local status=0
  begin client "${@:2}"
  wait $! || status=$?
  [ $status -eq 1 ] || fail "the client ended with status $status"
  [[ $(<"$out/client.stderr") == *"$1"* ]] || fail "the client does not say: $1"
}

# Kills the server itself; $server is the shell that limits its time.
kill_server() {
  pkill -KILL -P "$server"
  wait "$server"
}

keys() {
  serve kv && server=$!
  prints 'sequence number 1' kv put "${at[@]}" colour red
  prints red kv get "${at[@]}" colour
  refused 'its sequence number is 1' kv put "${at[@]}" colour blue --expect 0
  prints 'sequence number 2' kv put "${at[@]}" colour blue --expect 1
  prints blue kv get "${at[@]}" colour
  prints deleted kv delete "${at[@]}" colour
  refused 'the key does not exist' kv get "${at[@]}" colour
}

calls() {
  serve rpc && server=$!
  prints hello rpc call "${at[@]}" echo hello
  prints 42 rpc call "${at[@]}" sum '40 2'
  refused 'no answer came within 200 ms' rpc call "${at[@]}" sleep 5000 --deadline 200
}

# Makes a tree with files of no byte, of a part of a message, and of several messages.
tree() {
  mkdir -p "$out/from/deep/deeper" "$out/to"
  : >"$out/from/empty"
  head -c 1000 /dev/urandom >"$out/from/deep/short"
  head -c 3000001 /dev/urandom >"$out/from/deep/deeper/long"
}

files() {
  tree
  serve file_copy "$out/to" && server=$!
  prints ' 0 of which were there before' file_copy send "${at[@]}" "$out/from"
  diff -r "$out/from" "$out/to/from" || fail 'the files differ'
  prints ' 3001001 of which were there before' file_copy send "${at[@]}" "$out/from"
}

# The receiver is killed in mid-copy; the next copy sends the rest.
files_go_on() {
  local _ status=0 sender
  mkdir -p "$out/from" "$out/to"
  head -c 32M /dev/zero >"$out/from/long"
  serve file_copy "$out/to" && server=$!
  begin client file_copy send "${at[@]}" "$out/from" && sender=$!
  for _ in $(seq 1000); do
    [ -z "$(find "$out/to" -size +2M)" ] || break
    pause 0.01
  done
  kill_server
  wait "$sender" || status=$?
  # A fast copy may have been over.
  [ $status -le 1 ] || fail "the sender ended with status $status"
  serve file_copy "$out/to" && server=$!
  well client file_copy send "${at[@]}" "$out/from"
  [[ $(<"$out/client.stdout") != *' 0 of which were there before'* ]] || fail 'the copy began again'
  cmp "$out/from/long" "$out/to/from/long" || fail 'the files differ'
}

# Clients under load end with an error soon after their server.
clients_lose_server() {
  local status=0 load
  serve kv && server=$!
  begin client kv load "${at[@]}" --transport rdma --seconds 30 --keys 100 && load=$!
  pause 4
  kill_server
  wait "$load" || status=$?
  [ $status -eq 1 ] || fail "the load ended with status $status"
}

# iWARP connects by the connection manager only, which the error says.
refuse_tcp() {
  refused 'iWARP connects by the connection manager only' kv serve "${at[@]}"
  refused 'iWARP connects by the connection manager only' kv get "${at[@]}" colour
}

run() {
  local address=$RDMA_TEST_ADDRESS server= at
  . tests/vm/cm_peers.sh
  at=(--port "$port" "$address")
  case $1 in
    *_by_tcp | iwarp_refuses_tcp) at+=(--exchange tcp) ;;
  esac
  case ${1%_by_tcp} in
    kv) keys ;;
    kv_load) prints rdma kv load --seconds 2 --clients 4 --keys 100 --transport rdma ;;
    rpc) calls ;;
    rpc_load) prints '#' rpc load --seconds 2 --clients 4 ;;
    file_copy) files ;;
    file_copy_goes_on) files_go_on ;;
    kv_server_dies) clients_lose_server ;;
    iwarp_refuses_tcp) refuse_tcp ;;
    *) echo "there is no case $1"; exit 2 ;;
  esac
  [ -z "$server" ] || kill_server 2>/dev/null
  return 0
}

case ${1-} in
  list | run) "$@" ;;
  *) echo "usage: services.sh list DEVICE | run CASE"; exit 2 ;;
esac
