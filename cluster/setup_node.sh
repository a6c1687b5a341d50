#!/usr/bin/env bash
# Set up a machine: the pinned packages in ~/interplay-env, and the cluster's environment in every shell.
# `ray up` runs it on the head after a change of a file or of the configuration, and once on every worker. On a machine
# that is set up, it ends within a second.
#
# An existing environment is used, and nothing is downloaded, if it has all packages of pyproject.toml in the versions
# of constraints.txt: INTERPLAY_ENV=/path (its bin/python), which an image may set in /etc/environment, else the python
# on PATH.
set -euo pipefail
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
environment=$HOME/interplay-env
stamp=$HOME/.interplay-env.stamp

# Check that a python has every package for a cluster in its pinned version; print what it lacks.
complete() {
  "$1" - "$repository/pyproject.toml" <<'PYTHON' |
import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path(sys.argv[1]).read_text())["project"]
extras = project["optional-dependencies"]
print(project["name"], *project["dependencies"], *extras["train"], *extras["cluster"], sep="\n")
PYTHON
    "$1" -m pip install --dry-run --no-index --disable-pip-version-check -c "$repository/constraints.txt" -r /dev/stdin
}

# The versions of constraints.txt were chosen with Python 3.11.
new_python() {
  local candidate
  for candidate in python3.11 python3.12 python3.13 python3; do
    if "$candidate" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  return 1
}

# Refuse a driver that is too old for the CUDA of torch, before 3 GB are downloaded: CUDA 13 needs 580, 12 needs 525.
# torch pins its CUDA packages itself, so constraints.txt has none of them.
check_driver() {
  local driver least=580
  driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1) || return 0
  if [[ "$driver" =~ ^([0-9]+)\. ]] && [ "${BASH_REMATCH[1]}" -lt "$least" ]; then
    echo "$(hostname) has NVIDIA's driver $driver, and torch's CUDA 13 needs $least or newer. Take a newer image (the one of" \
      "cluster/account.sh has 595), or offer an environment with an older CUDA by INTERPLAY_ENV." >&2
    exit 1
  fi
}

# Where a cluster file has `provider: {type: aws}`: the head has Ray's copy of it, the workers the head's file.
on_aws() {
  grep -qsE '"?type"?: *"?aws"?' ~/ray_bootstrap_config.yaml || grep -qs INTERPLAY_METADATA ~/interplay-cluster.sh
}

# Ubuntu's upgrades begin within minutes of the first start. One of NVIDIA's driver breaks the running cells ("Driver/library
# version mismatch"). One that runs already is not killed, because that may leave packages half installed.
stop_upgrades() {
  local units=(apt-daily.timer apt-daily-upgrade.timer unattended-upgrades.service)
  if systemctl is-active -q "${units[@]}" 2>/dev/null && sudo -n true 2>/dev/null; then
    sudo -n systemctl disable -q "${units[@]}" || true
    sudo -n systemctl stop --no-block "${units[@]}" || true
    echo "Automatic upgrades of packages are off on $(hostname): one of the GPU's driver would end running cells."
  fi
}

# Run apt-get until it succeeds. On a new machine apt-daily holds the lock of the package lists, at which apt-get fails at
# once: DPkg::Lock::Timeout is for the lock of dpkg alone.
patience=${INTERPLAY_APT_PATIENCE:-300}
apt_get() {
  local deadline=$((SECONDS + patience)) output
  until output=$(sudo -n DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=60 "$@" 2>&1); do
    if [ $SECONDS -ge $deadline ]; then
      echo "$(hostname): apt-get $1 has failed for $patience s, at last with" \
        "\"$(grep -m 1 '^E' <<<"$output" || tail -n 1 <<<"$output")\"; end what holds apt's lock, or take an image with" \
        "Python 3.11 or newer and its venv module." >&2
      exit 1
    fi
    sleep 5
  done
}

install_packages() {
  local python
  check_driver
  if ! new_python >/dev/null && command -v apt-get >/dev/null && sudo -n true; then
    echo "No Python of 3.11 or newer with venv; asking apt for python3-venv."
    if command -v cloud-init >/dev/null; then timeout "$patience" cloud-init status --wait >/dev/null 2>&1 || true; fi
    apt_get update -qq
    apt_get install -y -qq python3-venv
  fi
  python=$(new_python) || {
    echo "$(hostname) has no Python of 3.11 or newer with its venv module. Take an image that has one (Ubuntu 24.04" \
      "does, as 3.12), or install python3.11 and python3.11-venv." >&2
    exit 1
  }
  if [ -L "$environment" ]; then rm "$environment"; fi
  echo "Installing into $environment with $python: some minutes, once."
  "$python" -m venv "$environment"
  "$environment/bin/python" -m pip install -q --disable-pip-version-check --no-cache-dir \
    -c "$repository/constraints.txt" -e "${repository}[cluster]"
}

# AWS's GPU images mount the instance store there, for root only.
nvme=${INTERPLAY_NVME:-/opt/dlami/nvme}
if mountpoint -q "$nvme" && [ ! -w "$nvme/interplay" ] && sudo -n true 2>/dev/null; then
  sudo -n install -d -o "$(id -u)" -g "$(id -g)" "$nvme/interplay"
fi

if on_aws; then stop_upgrades; fi

# A lock for a shared home folder without flock(2) (Lustre mounted without -o flock): a folder, which one machine alone can
# make. It has one file, named after its owner, who writes to it every 5 s. The lock of an owner that is gone is taken
# over by renaming its file, in which one machine alone succeeds.
lock_by_folder() {
  local lock=$HOME/.interplay-env.lock.d here mine owner beat seen='' since=$SECONDS
  here=$(cat /proc/sys/kernel/random/boot_id).$(readlink /proc/self/ns/pid | tr -dc 0-9)
  mine=$here.$$
  until mkdir "$lock" 2>/dev/null; do
    if [ ! -d "$lock" ] && [ ! -w "$HOME" ]; then
      echo "$(hostname) cannot write to $HOME." >&2
      exit 1
    fi
    owner=$(find "$lock" -type f -printf '%f\n' -quit 2>/dev/null || true)
    beat=$owner:$(cat "$lock/$owner" 2>/dev/null || true)
    if [ "$beat" != "$seen" ]; then seen=$beat since=$SECONDS; fi
    # Of a process that was killed and had the same number.
    if [ "$owner" = "$mine" ]; then break; fi
    # A process of this machine is looked up; another machine has 90 s, longer than NFS and Lustre cache what they read.
    if [ -n "$owner" ] && { [ $((SECONDS - since)) -ge 90 ] ||
      { [ "${owner%.*}" = "$here" ] && ! kill -0 "${owner##*.}" 2>/dev/null; }; } &&
      mv -T "$lock/$owner" "$lock/$mine" 2>/dev/null; then
      echo "The setup that held $lock is gone; going on in its place."
      break
    elif [ -z "$owner" ] && [ $((SECONDS - since)) -ge 90 ]; then
      rmdir "$lock" 2>/dev/null || true
    fi
    sleep 1
  done
  echo 0 >"$lock/$mine"
  (
    beat=0
    while kill -0 $$ 2>/dev/null && [ -e "$lock/$mine" ]; do
      sleep 5
      # No file is made: the lock may have been given back meanwhile.
      if [ -e "$lock/$mine" ]; then echo $((beat += 1)) >"$lock/$mine"; fi
    done
  ) >/dev/null 2>&1 &
  # shellcheck disable=SC2064
  trap "kill $! 2>/dev/null || true; rm -f '$lock/$mine'; rmdir '$lock' 2>/dev/null || true" EXIT
}

# Two machines may share one home folder.
exec 9>"$HOME/.interplay-env.lock"
flock 9 2>/dev/null || lock_by_folder

# First in ~/.bashrc, which returns early in shells without a terminal, such as those of `ray exec`.
line='if [ -f ~/interplay/cluster/environment.sh ]; then source ~/interplay/cluster/environment.sh; fi'
touch ~/.bashrc
if ! grep -qxF "$line" ~/.bashrc; then
  profile=$(readlink -f ~/.bashrc)
  # Replace the file in one step, with its owner and mode.
  cp -p "$profile" "$profile.part"
  { echo "$line" && cat "$profile"; } >"$profile.part"
  mv "$profile.part" "$profile"
fi

wanted=$(cat "$repository/pyproject.toml" "$repository/constraints.txt" | sha256sum | cut -d' ' -f1)
ready() {
  [ -x "$environment/bin/python" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] &&
    { [ -z "${INTERPLAY_ENV:-}" ] || [ "$(readlink "$environment")" = "$INTERPLAY_ENV" ]; }
}
if ! ready; then
  rm -f "$stamp"
  # Search PATH without the link that an earlier run has made.
  offered=${INTERPLAY_ENV:+$INTERPLAY_ENV/bin/python}
  offered=${offered:-$(PATH=${PATH//"$environment/bin:"/} type -P python python3 | head -n 1 || true)}
  if [ -n "$offered" ] && reason=$(complete "$offered" 2>&1); then
    if [ -d "$environment" ] && [ ! -L "$environment" ]; then rm -rf "$environment"; fi
    ln -sfn "$(dirname "$(dirname "$offered")")" "$environment"
    echo "$offered has the pinned packages."
  elif [ -n "${INTERPLAY_ENV:-}" ]; then
    echo "INTERPLAY_ENV=$INTERPLAY_ENV cannot be used, by pip's check:" >&2
    grep -v '^Requirement already' <<<"$reason" >&2 || true
    echo "Rebuild it from this version's pyproject.toml and constraints.txt, or unset INTERPLAY_ENV to have them installed." >&2
    exit 1
  else
    install_packages
  fi
  if command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q '^GPU ' &&
    ! "$environment/bin/python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    echo "$(hostname) has a GPU, but the installed torch cannot use it: its driver is older than torch's CUDA, or the" \
      "packages come from an index of CPU builds. Take a newer image, or see pip's configuration there." >&2
    exit 1
  fi
  echo "$wanted" >"$stamp"
fi

# Ray writes the configuration on the head only.
if [ -r ~/ray_bootstrap_config.yaml ]; then
  "$environment/bin/python" - <<'PYTHON' >~/interplay-cluster.sh.part
import shlex
from pathlib import Path

import yaml

config = yaml.safe_load((Path.home() / "ray_bootstrap_config.yaml").read_text())
metadata = config.get("metadata", {})
if config["provider"]["type"] == "aws":
    region = config["provider"]["region"]
    values = {
        "INTERPLAY_STORAGE": f"s3://{metadata['bucket']}/interplay",
        "AWS_REGION": region,
        "AWS_DEFAULT_REGION": region,
        # Where a spot machine finds the notice that it will be taken away.
        "INTERPLAY_METADATA": "http://169.254.169.254",
    }
else:
    values = {"INTERPLAY_STORAGE": metadata["storage"]}
values["INTERPLAY_CLUSTER"] = config["cluster_name"]
for name, value in values.items():
    print(f"export {name}={shlex.quote(value)}")
PYTHON
  mv ~/interplay-cluster.sh.part ~/interplay-cluster.sh
fi
