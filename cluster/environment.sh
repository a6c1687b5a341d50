# shellcheck shell=bash
# To be sourced: the environment of every process of the cluster. Drivers of jobs inherit it from `ray start --head`.
# setup_node.sh sources it first in ~/.bashrc, for `ray exec` and `ray attach`.
case ":$PATH:" in
  *":$HOME/interplay-env/bin:"*) ;;
  *) export PATH="$HOME/interplay-env/bin:$PATH" ;;
esac
# A job's working folder comes before it.
case ":${PYTHONPATH:-}:" in
  *":$HOME/interplay:"*) ;;
  *) export PYTHONPATH="$HOME/interplay${PYTHONPATH:+:$PYTHONPATH}" ;;
esac
# Ray's launcher sets these for its commands; trials would inherit one thread and no warnings.
unset OMP_NUM_THREADS PYTHONWARNINGS
# By default, a client with a token does not use it (ray 2.60).
export RAY_AUTH_MODE=token
export RAY_USAGE_STATS_ENABLED=0
export MLFLOW_DISABLE_TELEMETRY=true
# Seconds between SIGTERM and SIGKILL for the driver of a stopped job, which ends as soon as its cells have saved; by default
# 3, in which no cell saves (ray 2.60). `interplay submit` sets it for its jobs; this is for `ray job submit`.
export RAY_JOB_STOP_WAIT_TIME_S=${RAY_JOB_STOP_WAIT_TIME_S:-600}

# INTERPLAY_STORAGE and the region, written by setup_node.sh from `metadata` of the cluster file.
# shellcheck source=/dev/null
if [ -r "$HOME/interplay-cluster.sh" ]; then . "$HOME/interplay-cluster.sh"; fi
# Your own settings: see README.md, "Settings of your own".
# shellcheck source=/dev/null
if [ -r "$HOME/interplay-settings.sh" ]; then . "$HOME/interplay-settings.sh"; fi

# The instance store of AWS's GPU machines, where setup_node.sh makes this folder: a 40 GB corpus read from the network disk
# takes 0.1 to 0.3 s per step until it is in memory, and an 18 GB checkpoint a minute (gp3 writes 250 MB/s).
if [ -w "${INTERPLAY_NVME:-/opt/dlami/nvme}/interplay" ]; then
  export INTERPLAY_CACHE=${INTERPLAY_CACHE:-${INTERPLAY_NVME:-/opt/dlami/nvme}/interplay}
  export INTERPLAY_SCRATCH=${INTERPLAY_SCRATCH:-${INTERPLAY_NVME:-/opt/dlami/nvme}/interplay}
fi
# Not in a job's working folder, which is deleted after the job.
export INTERPLAY_RESULTS="${INTERPLAY_RESULTS:-$HOME/results}"
# Only the head, which runs MLflow, has this folder.
export INTERPLAY_MLFLOW_HOME="${INTERPLAY_MLFLOW_HOME:-$HOME/mlflow}"
if [ -d "$INTERPLAY_MLFLOW_HOME" ] && [ -z "${INTERPLAY_TRACKING:-}" ]; then
  INTERPLAY_TRACKING=${MLFLOW_HOST:-127.0.0.1}
  # 0.0.0.0 is not an address to connect to.
  INTERPLAY_TRACKING=http://${INTERPLAY_TRACKING/#0.0.0.0/127.0.0.1}:${MLFLOW_PORT:-5000}
  export INTERPLAY_TRACKING
fi
if [ -r "$INTERPLAY_MLFLOW_HOME/admin_password" ]; then
  export MLFLOW_TRACKING_USERNAME=admin
  MLFLOW_TRACKING_PASSWORD=$(<"$INTERPLAY_MLFLOW_HOME/admin_password")
  export MLFLOW_TRACKING_PASSWORD
fi

# A proxy reaches neither the servers of this machine nor AWS's metadata service. Programs read either name.
direct=${no_proxy:-${NO_PROXY:-}}
for host in 127.0.0.1 localhost 169.254.169.254 ${MLFLOW_HOST:-}; do
  case ",$direct," in
    *",$host,"* | ",*,") ;;
    *) direct=${direct:+$direct,}$host ;;
  esac
done
export no_proxy="$direct" NO_PROXY="$direct"
unset direct host
