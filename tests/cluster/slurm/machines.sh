#!/usr/bin/env bash
# Two machines of a Slurm played by one, for tests: run as the first process of namespaces of its own (mounts, network,
# processes, names). It writes FOLDER/ready and waits; killing it ends all it has started.
set -euo pipefail
folder=$1
address=10.9.0.1

mount --make-rprivate /
hostname machine
ip link set lo up
# A network that ends here: both its ends are ours.
ip link add eth0 type veth peer name eth1
ip addr add "$address/24" dev eth0
ip link set eth0 up
ip link set eth1 up

# Over the real ones, in this mount namespace alone.
for place in /run /etc/munge /var/log; do mount -t tmpfs tmpfs "$place"; done
ray=$(dirname "$(mktemp -u)")/ray
mkdir -p "$ray"
mount -t tmpfs tmpfs "$ray"
printf '127.0.0.1 localhost\n%s machine\n' "$address" >"$folder/hosts"
mount --bind "$folder/hosts" /etc/hosts

mkdir -p /run/munge /var/log/munge "$folder/state" "$folder/n1" "$folder/n2"
head -c 1024 /dev/urandom >/etc/munge/munge.key
chmod 600 /etc/munge/munge.key
chown -R munge:munge /etc/munge /run/munge /var/log/munge
setpriv --reuid=munge --regid=munge --clear-groups munged

cat >"$folder/slurm.conf" <<CONF
ClusterName=test
SlurmctldHost=machine($address)
SlurmUser=root
AuthType=auth/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/%n
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd-%n.pid
NodeName=n1 NodeHostname=machine NodeAddr=$address Port=17001 CPUs=2
NodeName=n2 NodeHostname=machine NodeAddr=$address Port=17002 CPUs=2
PartitionName=all Nodes=n[1-2] Default=YES
CONF
export SLURM_CONF=$folder/slurm.conf
slurmctld -D >"$folder/slurmctld.log" 2>&1 &
for machine in n1 n2; do slurmd -D -N "$machine" >"$folder/$machine.log" 2>&1 & done
until [ "$(sinfo -h -N -t idle -o %N | wc -l)" = 2 ]; do sleep 0.5; done
touch "$folder/ready"
wait
