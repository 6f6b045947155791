#!/usr/bin/env bash
# A small Slurm cluster on this machine, on the loopback address only, without systemd. Run as root.
#   tests/slurm/start.sh [NODES]      nodes are called n1, n2, …; 1 when not said
# Safe to run again: what runs is left alone, what is missing is started. Everything (key, configuration, state, logs,
# process ids) is in $DECANUS_SLURM, by default a folder of the temporary ones. Afterwards: export SLURM_CONF=…/slurm.conf
set -euo pipefail
nodes=${1:-1}
dir=${DECANUS_SLURM:-${TMPDIR:-/tmp}/decanus-slurm}
port=${DECANUS_SLURM_PORT:-16830} # the controller's; node i has port + i
[ "$(id -u)" = 0 ] || { echo "start.sh: run it as root (the nodes start jobs for users)" >&2; exit 2; }

for program in slurmctld slurmd munged sbatch unshare; do
    command -v "$program" >/dev/null && continue
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge util-linux >/dev/null
    break
done

# Whether the process of a file is there, and is that program.
alive() { [ -s "$1" ] && [ "$(cat "/proc/$(cat "$1")/comm" 2>/dev/null)" = "$2" ]; }

mkdir -p "$dir" "$dir/log" "$dir/run" "$dir/state"
chmod 755 "$dir" "$dir/log" "$dir/run"
install -d -m 0755 -o munge -g munge "$dir/munge"
if [ ! -s "$dir/munge/key" ]; then
    (umask 077 && dd if=/dev/urandom of="$dir/munge/key" bs=1024 count=1 status=none)
    chown munge:munge "$dir/munge/key"
    chmod 400 "$dir/munge/key"
fi
if ! alive "$dir/munge/munged.pid" munged; then
    rm -f "$dir/munge/socket" "$dir/munge/socket.lock" "$dir/munge/munged.pid"
    setpriv --reuid munge --regid munge --clear-groups munged --num-threads=2 --socket="$dir/munge/socket" \
        --key-file="$dir/munge/key" --pid-file="$dir/munge/munged.pid" --log-file="$dir/munge/munged.log" \
        --seed-file="$dir/munge/seed"
fi

{
    cat <<CONF
ClusterName=decanus
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmctldPort=$port
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$dir/munge/socket,cred_expire=5
CredType=cred/munge
# Daemons bind their own addresses, which are loopback ones.
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool-%n
SlurmctldPidFile=$dir/run/slurmctld.pid
SlurmdPidFile=$dir/run/slurmd-%n.pid
SlurmctldLogFile=$dir/log/slurmctld.log
SlurmdLogFile=$dir/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=10000
SlurmdParameters=config_overrides
ReturnToService=2
# How long a node may be silent before its jobs are lost.
SlurmdTimeout=10
SlurmctldTimeout=10
KillWait=2
MessageTimeout=10
MinJobAge=300
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
PropagateResourceLimits=NONE
CONF
    for i in $(seq 1 "$nodes"); do
        echo "NodeName=n$i NodeHostname=n$i NodeAddr=127.0.0.1 Port=$((port + i)) CPUs=2 RealMemory=2000 State=UNKNOWN"
    done
    echo "PartitionName=main Nodes=n[1-$nodes] Default=YES MaxTime=INFINITE State=UP"
} >"$dir/slurm.conf.new"
export SLURM_CONF=$dir/slurm.conf
if ! cmp -s "$dir/slurm.conf.new" "$SLURM_CONF"; then
    mv "$dir/slurm.conf.new" "$SLURM_CONF"
    # Another number of nodes: the controller has to be told from the beginning.
    if alive "$dir/run/slurmctld.pid" slurmctld; then
        kill "$(cat "$dir/run/slurmctld.pid")"
        while alive "$dir/run/slurmctld.pid" slurmctld; do sleep 0.1; done
    fi
fi
rm -f "$dir/slurm.conf.new"

alive "$dir/run/slurmctld.pid" slurmctld || { rm -f "$dir/run/slurmctld.pid"; slurmctld -f "$SLURM_CONF"; }
for i in $(seq 1 "$nodes"); do
    mkdir -p "$dir/spool-n$i"
    alive "$dir/run/slurmd-n$i.pid" slurmd && continue
    rm -f "$dir/run/slurmd-n$i.pid"
    # A host name of its own for each node and its jobs, and an /etc/hosts that knows it.
    { cat /etc/hosts; echo "127.0.0.1 n$i"; } >"$dir/run/hosts-n$i"
    unshare --uts --mount sh -c \
        'hostname "$1" && mount --bind "$2" /etc/hosts && exec slurmd -f "$3"' sh "n$i" "$dir/run/hosts-n$i" "$SLURM_CONF"
done

for _ in $(seq 1 300); do
    # A node that an earlier run left down is put back.
    for node in $(sinfo -h -N -o '%N %T' 2>/dev/null | awk '$2 ~ /^(down|drain)/ && $2 !~ /\*$/ {print $1}'); do
        scontrol update nodename="$node" state=resume 2>/dev/null || true
    done
    up=$(sinfo -h -N -o '%t' 2>/dev/null | grep -cE '^(idle|mix|alloc|comp)$' || true)
    [ "$up" -ge "$nodes" ] && { echo "$up node(s) are up; export SLURM_CONF=$SLURM_CONF"; exit 0; }
    sleep 0.2
done
echo "start.sh: the nodes do not come up" >&2
tail -n 20 "$dir"/log/*.log >&2
exit 1
