#!/usr/bin/env bash
# Run MLflow's tracking server on the head, and restart it whenever it dies.
#
#   start_mlflow.sh             start it unless it runs, and wait until it answers
#   start_mlflow.sh --no-wait   the same, without waiting
#   start_mlflow.sh --stop      stop it
#
# Settings, from the environment or ~/interplay-settings.sh:
#   INTERPLAY_MLFLOW_STORE      SQLAlchemy's URI of the store, e.g. postgresql+psycopg2://user@host/mlflow with PGPASSFILE;
#                               SQLite in INTERPLAY_MLFLOW_HOME if unset. A new head has an empty one: a study that is
#                               submitted again sends its rows, which are in the bucket
#   INTERPLAY_MLFLOW_ARTIFACTS  folder or URI of the artifacts; by default the bucket of INTERPLAY_STORAGE, or
#                               INTERPLAY_MLFLOW_HOME
#   INTERPLAY_MLFLOW_AUTH=1     require the user admin and the password in INTERPLAY_MLFLOW_HOME/admin_password
#   INTERPLAY_MLFLOW_HOME       ~/mlflow: log, store, passwords
#   INTERPLAY_LOCKS             folder of this machine for the folder of the lock files, interplay-locks-UID; by default /tmp
#   MLFLOW_HOST, MLFLOW_PORT    127.0.0.1 and 5000; with another host, only requests to the names in
#                               MLFLOW_SERVER_ALLOWED_HOSTS (default: loopback and this machine's address) are answered
set -euo pipefail
umask 077
# shellcheck source-path=SCRIPTDIR source=environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
home=$INTERPLAY_MLFLOW_HOME
host=${MLFLOW_HOST:-127.0.0.1}
port=${MLFLOW_PORT:-5000}
log=$home/server.log
mkdir -p "$home"

# The locks are on this machine, as the server is: a shared home folder may have no flock(2) (Lustre mounted without
# -o flock). Not in XDG_RUNTIME_DIR, which ends with the login while the server runs on. They are folders, because
# systemd-tmpfiles deletes old files of /tmp, but no folder that is locked.
locks=${INTERPLAY_LOCKS:-/tmp}/interplay-locks-$(id -u)
make_locks() {
  mkdir -m 0700 "$locks" 2>/dev/null || true
  # Another user who made it first could hold the locks.
  if [ -L "$locks" ] || [ ! -d "$locks" ] || [ ! -O "$locks" ]; then
    echo "start_mlflow.sh: the folder of the locks, $locks, cannot be made, is a link or not yours; remove it, or set" \
      "INTERPLAY_LOCKS to a folder on a disk of this machine in which you may make one." >&2
    exit 1
  fi
  chmod 0700 "$locks"
  locks=$locks/mlflow-$(printf %s "$home" | sha256sum | cut -c 1-16)
  mkdir -p "$locks/start" "$locks/watch"
}

# The server, its children and the loop that restarts it have this variable in their environment. Unlike a process id, it
# cannot belong to another program.
mark=INTERPLAY_MLFLOW_OF=$home
family() {
  grep -lszxF "$mark" /proc/[0-9]*/environ | tr -dc '0-9\n' | grep -vx "$$" || true
}
# SIGKILL, because an orphan of uvicorn keeps the port; SQLite and PostgreSQL survive it.
end_family() {
  local pids
  pids=$(family)
  if [ -n "$pids" ]; then
    # shellcheck disable=SC2086
    kill -KILL $pids 2>/dev/null || true
  fi
}

secret() {
  if [ ! -s "$home/$1" ]; then
    head -c 32 /dev/urandom | od -An -v -tx1 | tr -d ' \n' >"$home/$1.part"
    mv "$home/$1.part" "$home/$1"
  fi
}

artifacts=$home/artifacts
if [[ ${INTERPLAY_STORAGE:-} == *://* ]]; then artifacts=${INTERPLAY_STORAGE%/*}/mlflow; fi
artifacts=${INTERPLAY_MLFLOW_ARTIFACTS:-$artifacts}
serve() {
  local arguments
  arguments=(--host "$host" --port "$port" --workers 1 --uvicorn-opts --no-access-log
    --artifacts-destination "$artifacts")
  if [ "$host" != 127.0.0.1 ] && [ -z "${MLFLOW_SERVER_ALLOWED_HOSTS:-}" ]; then
    arguments+=(--allowed-hosts "localhost:*,127.0.0.1:*,$(hostname -I | awk '{print $1}'):$port")
  fi
  # In the environment, because `ps` shows arguments to every user, and the URI may hold a password.
  export MLFLOW_BACKEND_STORE_URI=${INTERPLAY_MLFLOW_STORE:-sqlite:///$home/mlflow.db}
  if [ "${INTERPLAY_MLFLOW_AUTH:-}" = 1 ]; then
    MLFLOW_AUTH_ADMIN_PASSWORD=$(<"$home/admin_password")
    MLFLOW_FLASK_SERVER_SECRET_KEY=$(<"$home/secret_key")
    export MLFLOW_AUTH_ADMIN_PASSWORD MLFLOW_FLASK_SERVER_SECRET_KEY
    arguments+=(--app-name basic-auth)
  fi
  # Otherwise seven processes of 235 MiB run for evaluations that no study uses (mlflow 3.17).
  export MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false
  # Basic authentication keeps its users in a file of the working folder.
  cd "$home"
  exec mlflow server "${arguments[@]}"
}

# At a start only, because a server that runs writes little, and one that cannot start a traceback each minute. The file is
# emptied and not replaced, because the loop has it open.
rotate() {
  if [ "$(stat -c %s "$log" 2>/dev/null || echo 0)" -gt 4000000 ]; then
    tail -c 4000000 "$log" >"$log.1"
    : >"$log"
  fi
}

watch() {
  local pause=1 began status
  while true; do
    began=$SECONDS
    rotate
    echo "$(date -Is) MLflow starts on $host:$port" >>"$log"
    status=0
    (serve) >>"$log" 2>&1 </dev/null 8>&- || status=$?
    end_family
    # Restart at once after a long run, and with growing pauses if it cannot start.
    if [ $((SECONDS - began)) -ge 300 ]; then pause=1; fi
    echo "$(date -Is) MLflow ended with status $status; again in $pause s" >>"$log"
    sleep "$pause" 8>&-
    pause=$((pause < 30 ? pause * 2 : 60))
  done
}

# By Python, because curl may be missing; without a proxy, which may be set for loopback too.
until_it_answers() {
  python - "http://${host/#0.0.0.0/127.0.0.1}:$port/health" <<'PYTHON'
import sys
import time
import urllib.request

direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
# A start takes 27 to 90 s on busy cores.
deadline = time.monotonic() + 180
while True:
    try:
        direct.open(sys.argv[1], timeout=5).close()
        break
    except OSError as error:
        if time.monotonic() > deadline:
            sys.exit(f"MLflow does not answer at {sys.argv[1]} after 180 s: {error}")
        time.sleep(0.5)
PYTHON
}

case ${1:-} in
  --watch) watch ;;
  --stop)
    # Twice, because the loop may just have started a process.
    end_family
    sleep 0.2
    end_family
    exit
    ;;
  "" | --no-wait) ;;
  *)
    echo "start_mlflow.sh takes --no-wait, --stop or nothing, not '$1'." >&2
    exit 2
    ;;
esac

if [ "${INTERPLAY_MLFLOW_AUTH:-}" = 1 ]; then
  secret admin_password
  secret secret_key
fi
# A server with other settings, or of another version of this script, is restarted.
settings=$(printf '%s\n' "$host" "$port" "${INTERPLAY_MLFLOW_STORE:-}" "${INTERPLAY_MLFLOW_AUTH:-}" "$artifacts" \
  "${MLFLOW_SERVER_ALLOWED_HOSTS:-}" "$(type -P mlflow)" | cat - "$0" | sha256sum)
make_locks
exec 7<"$locks/start"
flock 7 2>/dev/null || true
patience=0.1
if [ "$(cat "$home/settings" 2>/dev/null)" != "$settings" ]; then
  end_family
  patience=5
  echo "$settings" >"$home/settings"
fi
# The loop inherits the lock and holds it while it runs; a call that gets the lock starts another loop. A killed loop
# releases it a moment later.
exec 8<"$locks/watch"
held=0
flock -E 75 -w "$patience" 8 2>/dev/null || held=$?
if [ "$held" != 0 ] && [ "$held" != 75 ]; then
  # The mark of the processes serves, but for two first calls in one instant.
  echo "start_mlflow.sh: $locks cannot be locked (flock(2) fails there), so two calls at once may start MLflow twice; set" \
    "INTERPLAY_LOCKS to a folder on a disk of this machine." >&2
  if [ -z "$(family)" ]; then held=0; fi
fi
if [ "$held" = 0 ]; then
  # End a server whose loop was killed: it would still answer below.
  end_family
  env "$mark" setsid nohup bash "$0" --watch >>"$log" 2>&1 </dev/null 7>&- &
fi
exec 7>&- 8>&-
if [ "${1:-}" = --no-wait ]; then exit; fi
until_it_answers || {
  echo "The end of its log, $log:" >&2
  tail -n 20 "$log" >&2
  exit 1
}
