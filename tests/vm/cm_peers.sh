# Shared by the scripts of cases with two programs of the connection manager: $port, $out (a folder
# for output), and functions that start the programs and check their ends. Sourced.

port=${RDMA_TEST_PORT:-7174} out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

# Prints why the case has failed, and the programs' output.
fail() {
  echo "FAILED: $1"
  tail -n 20 "$out"/*
  exit 1
}

# Sleeps without starting a program, which is slow in an emulated machine. Runs in a subshell,
# because it sets $!.
pause() ( read -rt "$1" <> <(:) )

# Waits until a program listens on the port.
listening() {
  local _ pattern="LISTEN[^"$'\n'"]*:$port "
  for _ in $(seq 200); do
    [[ ! $(rdma resource show cm_id 2>/dev/null) =~ $pattern ]] || return 0
    pause 0.05
  done
  fail "nobody listens on port $port"
}

# Starts a program in the background.
begin() { # whose, command
  local who=$1
  shift
  timeout 60 "$@" >"$out/$who.stdout" 2>"$out/$who.stderr" &
}

# Runs a program; the case fails if the program does.
well() { # whose, command
  begin "$@"
  ended_well $! "$1"
}

# Waits for a background program, which must succeed.
ended_well() { # process, whose
  local status=0
  wait "$1" || status=$?
  [ $status -eq 0 ] || fail "$2 ended with status $status"
}
