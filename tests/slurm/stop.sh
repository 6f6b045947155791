#!/usr/bin/env bash
# Stops what start.sh started, each by its process id, and removes its folder.
set -u
dir=${DECANUS_SLURM:-${TMPDIR:-/tmp}/decanus-slurm}
stop() { # file, program
    [ -s "$1" ] || return 0
    pid=$(cat "$1")
    [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = "$2" ] || return 0
    kill "$pid"
    for _ in $(seq 1 100); do
        [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = "$2" ] || return 0
        sleep 0.1
    done
    kill -9 "$pid"
}
[ -e "$dir/slurm.conf" ] || exit 0
export SLURM_CONF=$dir/slurm.conf
timeout 5 scancel --user=root 2>/dev/null && sleep 0.5
for file in "$dir"/run/slurmd-*.pid; do stop "$file" slurmd; done
stop "$dir/run/slurmctld.pid" slurmctld
stop "$dir/munge/munged.pid" munged
rm -rf "$dir"
