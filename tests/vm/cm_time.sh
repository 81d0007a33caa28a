#!/bin/bash
# cases: our `cm_time` against rdmacm-utils' cmtime, in both roles, and with itself.
# `list DEVICE` prints the cases, `run CASE` runs one.
set -u

list() {
  case $1 in
    rxe | siw) printf '%s\n' apart_v6 client server ;;
  esac
}

# Checks that our program has printed this number of tables, in which every step took some time.
tables() { # number
  [ "$(grep -c '^connections/s [0-9.]*[1-9]' "$out/ours.stdout")" -eq "$1" ] || fail "ours did not print $1 tables"
  [ "$(grep -c '^full connect *: ' "$out/ours.stdout")" -eq "$1" ] || fail 'a table lacks a step'
}

run() {
  . tests/vm/cm_peers.sh
  local address=${RDMA_TEST_ADDRESS:-} server
  case $1 in
    apart_v6)
      address=$RDMA_TEST_ADDRESS6
      begin server cm_time -b "$address" -p "$port" -c 10 && server=$! && listening
      well ours cm_time -s "$address" -b "$address" -p "$port" -c 10 -n 4
      tables 1 && ended_well $server server ;;
    client)
      begin theirs cmtime -b "$address" -p "$port" && server=$! && listening
      # The C server serves several rounds unless its first connection is the last to end.
      well ours cm_time -s "$address" -p "$port" -c 10 -n 4,1,10
      # The C server does not end by itself.
      tables 3 && kill $server ;;
    server)
      begin ours cm_time -b "$address" -p "$port" -c 10 && server=$! && listening
      well theirs cmtime -s "$address" -p "$port" -c 10
      ! grep -q 'error: ' "$out/theirs.stdout" || fail 'theirs could not connect'
      ended_well $server ours ;;
    *) echo "there is no case $1"; exit 2 ;;
  esac
}

case ${1-} in
  list | run) "$@" ;;
  *) echo "usage: cm_time.sh list DEVICE | run CASE"; exit 2 ;;
esac
