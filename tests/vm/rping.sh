#!/bin/bash
# cases: our `rping` against rdmacm-utils' rping, in both roles, and with itself. `client_*`: our
# client, the C server; `server_*`: our server, the C client; `pair_*`: both are ours. `v4` and `v6`
# are the addresses, a number is the size; other words stand with their cases. `list DEVICE` prints
# the cases, `run CASE` runs one.
set -u

list() {
  case $1 in rxe | siw) ;; *) return 0 ;; esac
  local role
  for role in client server; do
    printf '%s\n' "${role}_"{v4_64,v4_4096,v4_65535,v6_64,v6_65535}
  done
  printf '%s\n' pair_{v4_26,v4_65536,v6_64}
  printf '%s\n' client_texts server_texts client_source client_persistent server_persistent pair_persistent \
    refused_by_nobody client_loses_server server_loses_client
}

# Waits until a running program has printed a ping's text.
pinging() { # whose
  local _
  for _ in $(seq 400); do
    [[ $(<"$out/$1.stdout") != *'ping data'* ]] || return 0
    pause 0.05
  done
  fail "$1 shows no pings"
}

# The number of lines with a ping's text in an output.
pings() { grep -c "ping data: rdma-ping-[0-9]*: " "$out/$1.stdout"; }

transfer() { # role, family, size
  local role=$1 address=$RDMA_TEST_ADDRESS size=$3 count=20 server
  [ "$2" = v4 ] || address=$RDMA_TEST_ADDRESS6
  local both=(-a "$address" -p "$port" -S "$size" -v)
  case $role in
    client)
      begin theirs "$theirs" -s "${both[@]}" && server=$! && listening
      well ours "$ours" -c "${both[@]}" -V -C $count
      ended_well $server theirs ;;
    server)
      begin ours "$ours" -s "${both[@]}" && server=$! && listening
      well theirs "$theirs" -c "${both[@]}" -V -C $count
      ended_well $server ours ;;
    pair)
      well ours "$ours" -a "$address" -p "$port" -S "$size" -C $count
      grep -q "^$count pings of $size bytes by .*$address.*$port: all" "$out/ours.stdout" || fail 'it says something else'
      return ;;
  esac
  [ "$(pings ours)" -eq $count ] || fail "ours printed $(pings ours) pings"
  [ "$(pings theirs)" -eq $count ] || fail "theirs printed $(pings theirs) pings"
}

# Our program must print the C program's texts. One of the two ends is always ours: on siw, two C
# programs can wait for each other forever.
texts() { # role
  local both=(-a "$RDMA_TEST_ADDRESS" -p "$port" -S 200 -v -C 70) who other server
  for who in "$ours" "$theirs"; do
    [ "$who" = "$ours" ] && other=$theirs || other=$ours
    if [ "$1" = client ]; then
      begin server "$other" -s "${both[@]:0:6}" && server=$! && listening
      well client "$who" -c "${both[@]}"
    else
      begin server "$who" -s "${both[@]:0:6}" -v && server=$! && listening
      well client "$other" -c "${both[@]}"
    fi
    ended_well $server server
    grep 'ping data' "$out/$1.stdout" >"$out/texts.$([ "$who" = "$ours" ] && echo ours || echo theirs)"
  done
  [ "$(wc -l <"$out/texts.theirs")" -eq 70 ] || fail 'theirs did not print the texts'
  diff "$out/texts.ours" "$out/texts.theirs" >"$out/difference" || fail 'the texts differ'
}

persistent() { # whose server, whose clients
  local both=(-a "$RDMA_TEST_ADDRESS" -p "$port" -S 1000) clients=() server n options=()
  [ "$1" = "$theirs" ] || options=(--clients 6)
  begin server "$1" -s -P "${both[@]}" "${options[@]}" && server=$! && listening
  # Three clients one after the other, then three at the same time.
  for n in 1 2 3; do well "client$n" "$2" -c "${both[@]}" -V -C 5; done
  for n in 4 5 6; do
    begin "client$n" "$2" -c "${both[@]}" -v -V -C 200
    clients+=($!)
    # The C server keeps one request: a second one that comes before its main thread has taken the
    # first replaces it, and the first client gets no answer.
    [ "$1" != "$theirs" ] || pinging "client$n"
  done
  for n in 4 5 6; do ended_well "${clients[n - 4]}" "client$n"; done
  if [ "$1" = "$theirs" ]; then kill $server; else ended_well $server server; fi
}

# The program must fail with one line that has the words, with a failure's exit status, before its
# limit.
failed() { # status, words
  [ "$1" -eq 1 ] || fail "ours ended with status $1"
  [ "$(grep -vc '^waiting for ' "$out/ours.stderr")" -eq 1 ] || fail 'ours did not say one line'
  grep -q "$2" "$out/ours.stderr" || fail "ours did not say: $2"
}

run() {
  local address=$RDMA_TEST_ADDRESS status=0 server
  . tests/vm/cm_peers.sh
  ours=$(type -P rping) theirs=/usr/bin/rping
  [ "$ours" != "$theirs" ] || { echo "our rping is not in PATH"; exit 1; }
  case $1 in
    client_texts) texts client ;;
    server_texts) texts server ;;
    client_source)
      begin theirs "$theirs" -s -a "$address" -p "$port" && server=$! && listening
      well ours "$ours" -c -a "$address" -I "$address" -p "$port" -V -C 5
      ended_well $server theirs ;;
    client_persistent) persistent "$theirs" "$ours" ;;
    server_persistent) persistent "$ours" "$theirs" ;;
    pair_persistent) persistent "$ours" "$ours" ;;
    refused_by_nobody)
      begin ours "$ours" -c -a "$address" -p "$port" -C 1
      wait $! || status=$?
      failed $status "cannot connect to $address:$port" ;;
    client_loses_server)
      begin theirs "$theirs" -s -a "$address" -p "$port" && server=$! && listening
      begin ours "$ours" -c -a "$address" -p "$port" -v
      pinging ours
      # Kills the program itself; $server is the shell that limits its time.
      pkill -KILL -P $server
      wait $! || status=$?
      failed $status 'ping ' ;;
    server_loses_client)
      begin ours "$ours" -s -a "$address" -p "$port" -v && server=$! && listening
      begin theirs "$theirs" -c -a "$address" -p "$port"
      pinging ours
      pkill -KILL -P $!
      wait $server || status=$?
      # Between two pings a disconnect is a client's normal end; within a ping it is an error.
      [ $status -eq 0 ] || failed $status 'ping ' ;;
    *_*_*) IFS=_ read -r role family size <<<"$1"; transfer "$role" "$family" "$size" ;;
    *) echo "there is no case $1"; exit 2 ;;
  esac
}

case ${1-} in
  list | run) "$@" ;;
  *) echo "usage: rping.sh list DEVICE | run CASE"; exit 2 ;;
esac
