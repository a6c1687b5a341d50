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
print(project["name"], *project["dependencies"], *project["optional-dependencies"]["cluster"], sep="\n")
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

install_packages() {
  local python
  check_driver
  if ! new_python >/dev/null && command -v apt-get >/dev/null && sudo -n true; then
    echo "No Python of 3.11 or newer with venv; asking apt for python3-venv."
    sudo -n apt-get -o DPkg::Lock::Timeout=300 update -qq
    sudo -n DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install -y -qq python3-venv >/dev/null
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

# Two machines may share one home folder.
exec 9>"$HOME/.interplay-env.lock"
flock 9

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
