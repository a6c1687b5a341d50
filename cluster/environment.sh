# shellcheck shell=bash
# To be sourced: the environment of every process of the cluster. What is exported here before `ray start --head` is what
# the drivers of jobs see. setup_node.sh puts it first in ~/.bashrc, for `ray exec` and `ray attach`.
case ":$PATH:" in
  *":$HOME/interplay-env/bin:"*) ;;
  *) export PATH="$HOME/interplay-env/bin:$PATH" ;;
esac
# The code of a job's working folder comes before it.
case ":${PYTHONPATH:-}:" in
  *":$HOME/interplay:"*) ;;
  *) export PYTHONPATH="$HOME/interplay${PYTHONPATH:+:$PYTHONPATH}" ;;
esac
# Ray's launcher sets these for each of its commands; all trials would inherit one thread and no warnings.
unset OMP_NUM_THREADS PYTHONWARNINGS
# By default a client does not authenticate even where it has the token (ray 2.60).
export RAY_AUTH_MODE=token
export RAY_USAGE_STATS_ENABLED=0
export MLFLOW_DISABLE_TELEMETRY=true

# INTERPLAY_STORAGE and the region: written by setup_node.sh, from `metadata` of the cluster's file.
# shellcheck source=/dev/null
if [ -r "$HOME/interplay-cluster.sh" ]; then . "$HOME/interplay-cluster.sh"; fi
# Your own, if you have any: README.md, "Settings of your own".
# shellcheck source=/dev/null
if [ -r "$HOME/interplay-settings.sh" ]; then . "$HOME/interplay-settings.sh"; fi

# A job's working folder is deleted after it.
export INTERPLAY_RESULTS="${INTERPLAY_RESULTS:-$HOME/results}"
# Only the machine that runs MLflow has this folder: the head.
export INTERPLAY_MLFLOW_HOME="${INTERPLAY_MLFLOW_HOME:-$HOME/mlflow}"
if [ -d "$INTERPLAY_MLFLOW_HOME" ] && [ -z "${INTERPLAY_TRACKING:-}" ]; then
  INTERPLAY_TRACKING=${MLFLOW_HOST:-127.0.0.1}
  # Not an address that can be asked.
  INTERPLAY_TRACKING=http://${INTERPLAY_TRACKING/#0.0.0.0/127.0.0.1}:${MLFLOW_PORT:-5000}
  export INTERPLAY_TRACKING
fi
if [ -r "$INTERPLAY_MLFLOW_HOME/admin_password" ]; then
  export MLFLOW_TRACKING_USERNAME=admin
  MLFLOW_TRACKING_PASSWORD=$(<"$INTERPLAY_MLFLOW_HOME/admin_password")
  export MLFLOW_TRACKING_PASSWORD
fi
