#!/bin/bash
# cases: `pingpong --compat` against rdma-core's ibv_rc_pingpong, on rxe. A case's name is our side,
# a size, and more words in any order: `events` (both sides sleep), `checked` (both check contents),
# `extended` (the C program posts by ibv_wr_send), `mtu256` (and other MTUs), `uc` (the C program is
# ibv_uc_pingpong; its messages are at most 64 KiB, because one lost packet ends the case), `srq`
# (the C program is ibv_srq_pingpong, with 16 queue pairs, or with 4 for `srq4`). In cases that
# begin with `refuses` the C client gets wrong options, and our server must report them.
# `list DEVICE` prints the cases, `run CASE` runs one.
set -u

list() {
  [ "$1" = rxe ] || return 0
  local role size how mtu
  for role in client server; do
    for size in 1 63 4096 64k 1m 8m; do
      for how in _events _extended_checked; do echo "${role}_$size$how"; done
    done
    for mtu in 256 512 1024 2048 4096; do echo "${role}_64k_checked_mtu$mtu"; done
    for size in 1 63 4096 64k; do echo "${role}_${size}_uc_checked"; done
    echo "${role}_4096_uc_events"
    for size in 1 63 4096 64k; do echo "${role}_${size}_srq_checked"; done
    echo "${role}_4096_srq_events"
    echo "${role}_1m_srq4_checked_events"
  done
  printf '%s\n' refuses_other_size refuses_no_gid refuses_wrong_contents refuses_queue_pairs
}

# Prints why the case has failed, and both programs' output.
fail() {
  echo "FAILED: $1"
  tail -n +1 "$out"/*
  exit 1
}

# The C client does not wait for its server, so it is started again until it connects. No other
# error is excused. An attempt is slow in an emulated machine: the first waits until a program
# listens on the port.
c_client() {
  local status _ listens
  printf -v listens ':%04X 0+:0000 0A ' "$port"
  for _ in $(seq 200); do
    [[ ! $(</proc/net/tcp)$(</proc/net/tcp6) =~ $listens ]] || break
    # Sleeps without starting a program; in a subshell, because this sets $!.
    (read -rt 0.05 <> <(:))
  done
  for _ in $(seq 200); do
    timeout "${limit:-60}" "$program" "${theirs[@]}" 127.0.0.1 >"$out/c.stdout" 2>"$out/c.stderr"
    status=$?
    [ $status -ne 0 ] && grep -q "^Couldn't connect to" "$out/c.stderr" || return $status
    sleep 0.05
  done
  return $status
}

# Sets $device, its $gid, $port, and $out, a folder for output. $program is the C program.
prepare() {
  device=${RDMA_TEST_DEVICE:-rxe0} port=${RDMA_TEST_PORT:-18515}
  for gid in "/sys/class/infiniband/$device/ports/1/gids"/*; do [[ $(<"$gid") != *0a09:0001 ]] || break; done 2>/dev/null
  gid=${gid##*/}
  out=$(mktemp -d)
  trap 'rm -rf "$out"' EXIT
}

# Runs our server and the C client with the options in the arrays; $ours_status and $their_status
# are their exit statuses.
serve() {
  timeout 60 pingpong "${ours[@]}" --server "127.0.0.1:$port" >"$out/ours.stdout" 2>"$out/ours.stderr" &
  c_client || their_status=$?
  wait $! || ours_status=$?
}

refuses() {
  local device gid port out ours_status=0 their_status=0 theirs ours reason program=ibv_rc_pingpong limit
  prepare
  theirs=(-d "$device" -p "$port" -n 40)
  ours=(--compat --device "$device" --gid-index "$gid" --iters 40 --timeout 20)
  case $1 in
    other_size) theirs+=(-g "$gid" -s 8192) reason='give both the same size' ;;
    no_gid) reason='ibv_rc_pingpong needs -g' ;;
    wrong_contents) theirs+=(-g "$gid") ours+=(--check) reason='40 messages of 4096 bytes had wrong contents' ;;
    queue_pairs)
      # The C program reads without end if its server closes the connection.
      program=ibv_srq_pingpong theirs+=(-g "$gid" -q 4) ours+=(--srq) limit=15
      reason='the other side has 4 queue pairs and ours 16'
      ;;
    *) echo "refuse what?"; exit 2 ;;
  esac
  serve
  [ $ours_status -eq 1 ] || fail "pingpong ended with status $ours_status"
  grep -q "$reason" "$out/ours.stderr" || fail "pingpong did not say: $reason"
  [ "$1" = wrong_contents ] || [ $their_status -ne 0 ] || fail "$program noticed nothing"
}

run() {
  local words=${1//_/ } role size mtu=1024 iterations word device gid port out theirs ours ours_status=0 their_status=0
  local program=ibv_rc_pingpong
  [[ $1 != refuses_* ]] || { refuses "${1#refuses_}"; return; }
  read -r role size words <<<"$words"
  case $size in 64k) size=65536 iterations=10 ;; 1m) size=1048576 iterations=4 ;; 8m) size=8388608 iterations=2 ;; *) iterations=40 ;; esac
  theirs=() ours=()
  for word in $words; do
    case $word in
      events) theirs+=(-e) ours+=(--events) ;;
      checked) theirs+=(-c) ours+=(--check) ;;
      extended) theirs+=(-N) ;;
      mtu*) mtu=${word#mtu} ;;
      uc) program=ibv_uc_pingpong ours+=(--connection UC) ;;
      srq) program=ibv_srq_pingpong ours+=(--srq) ;;
      srq4) program=ibv_srq_pingpong theirs+=(-q 4) ours+=(--srq -q 4) ;;
      *) echo "what is $word?"; exit 2 ;;
    esac
  done
  prepare
  theirs+=(-d "$device" -g "$gid" -p "$port" -s "$size" -n "$iterations" -m "$mtu")
  ours+=(--compat --device "$device" --gid-index "$gid" --size "$size" --iters "$iterations" --mtu "$mtu" --timeout 60)
  case $role in
    client)
      timeout 60 "$program" "${theirs[@]}" >"$out/c.stdout" 2>"$out/c.stderr" &
      timeout 60 pingpong "${ours[@]}" "127.0.0.1:$port" >"$out/ours.stdout" 2>"$out/ours.stderr" || ours_status=$?
      wait $! || their_status=$?
      ;;
    server) serve ;;
    *) echo "what is $role?"; exit 2 ;;
  esac
  [ $ours_status -eq 0 ] || fail "pingpong ended with status $ours_status"
  [ $their_status -eq 0 ] || fail "$program ended with status $their_status"
  # The C program's exit status does not tell the result of its check.
  ! grep -q 'invalid data' "$out/c.stdout" || fail "$program found wrong contents"
  [[ " $words " != *' checked '* ]] || grep -q 'contents checked' "$out/ours.stdout" || fail 'pingpong did not check'
  grep -q "^$((2 * size * iterations)) bytes in" "$out/ours.stdout" || fail 'pingpong counts other bytes'
  grep -q "^$((2 * size * iterations)) bytes in" "$out/c.stdout" || fail "$program counts other bytes"
}

case ${1-} in
  list | run) "$@" ;;
  *) echo "usage: compat.sh list DEVICE | run CASE"; exit 2 ;;
esac
