# In the guest, from /out/command: makes the device, then runs the lines of /out/plan (seconds, name, command; tabs between),
# each with its output in /out/log and its result as a line of /out/results.
device() {
  # A fenced queue of rxe stands still after a receiver was not ready (6.1, 6.12, 7.2; a C program shows it, too), so that most runs
  # of tests/random.rs with fences end in a timeout and none without. It executes requests in order anyway.
  [ "$1" != rxe ] || export RDMA_TEST_UNFENCED=1
  ip link add d0 type dummy && ip addr add 10.9.0.1/24 dev d0 && ip link set d0 up || return
  rdma link add "${1}0" type "$1" netdev d0 || return
  # The address reaches the table of GIDs a moment later.
  for _ in $(seq 100); do
    grep -q ACTIVE "/sys/class/infiniband/${1}0/ports/1/state" && case $1 in
      rxe) grep -q 0a09:0001 "/sys/class/infiniband/${1}0/ports/1/gids/1" ;; esac && return
    sleep 0.1
  done
  echo "guest: ${1}0 does not become active"; return 1
}

result() { # status, seconds, name
  local word=ok
  case $1 in 0) grep -aq 'SKIP ' "$log" && word=skipped ;; 124 | 137) word=TIMEOUT ;; *) word=FAILED ;; esac
  printf '%s\t%s\t%s\t%s\n' "$word" "$1" "$2" "$3" >>/out/results
  printf '%-58s %s  %s s\n' "$3" "$word" "$2"
}

run() {
  local limit name command begin n=0 log
  mkdir -p /out/log
  while IFS=$'\t' read -r limit name command; do
    n=$((n + 1)) log=/out/log/$n begin=${EPOCHREALTIME/./}
    timeout -k 5 "$limit" bash -c "$command" </dev/null >"$log" 2>&1
    result $? "$(awk "BEGIN { printf \"%.1f\", (${EPOCHREALTIME/./} - $begin) / 1e6 }")" "$name"
  done </out/plan
  echo end >>/out/results
}
