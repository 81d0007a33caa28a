# What the scripts of cases with two programs of the connection manager share: $port, $out (a folder for what they say), and how
# they are started and judged. Sourced.

port=${RDMA_TEST_PORT:-7174} out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

# Says why the case has failed, with what the programs said.
fail() {
  echo "FAILED: $1"
  tail -n 20 "$out"/*
  exit 1
}

# As `sleep`, which would be one more program to start in an emulated machine. In a shell of its own: it sets $!.
pause() ( read -rt "$1" <> <(:) )

# Waits until somebody listens on the port.
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

# Runs a program; the case has failed if it does.
well() { # whose, command
  begin "$@"
  ended_well $! "$1"
}

# Waits for a program in the background.
ended_well() { # process, whose
  local status=0
  wait "$1" || status=$?
  [ $status -eq 0 ] || fail "$2 ended with status $status"
}
