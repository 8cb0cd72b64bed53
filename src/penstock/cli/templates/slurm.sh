#!/bin/bash
# A data service of penstock beside a training program, in one job of Slurm, rendered by:
#   $command
#
# Submit it: sbatch FILE. Every node must see $folder, and have penstock and your modules.
#SBATCH --job-name=$name
#SBATCH --nodes=$nodes
#SBATCH --ntasks-per-node=$workers_per_node
#SBATCH --cpus-per-task=$cpus
#SBATCH --time=$time
#SBATCH --signal=B:TERM@60
${partition}set -euo pipefail

# What this job keeps: the token, the address, the journal and the logs.
run=$folder/$${SLURM_JOB_ID:?this is a job for sbatch}
umask 077
mkdir -p "$$run"
[ -s "$$run/token" ] || python3 -c 'import secrets; print(secrets.token_hex(32))' >"$$run/token"
export PENSTOCK_TOKEN_FILE="$$run/token"

host=$$(hostname)
port=$$((20000 + SLURM_JOB_ID % 20000))
export PENSTOCK_SERVICE="grpc://$$host:$$port"

penstock dispatcher --host "$$host" --port "$$port" --work-dir "$$run/journal" \
    >>"$$run/dispatcher.log" 2>&1 &
dispatcher=$$!

# One worker for each task. Slurm sends them SIGTERM: they finish what was requested from them.
# Native libraries would start a thread for each core of the node.
OMP_NUM_THREADS=$${OMP_NUM_THREADS:-$cpus} srun \
    bash -c 'exec penstock worker --dispatcher "$$0" --host "$$(hostname)" --drain-timeout 30' \
    "$$host:$$port" >>"$$run/workers.log" 2>&1 &
workers=$$!

# Ends the training program first, the dispatcher last.
stop() {
    trap - EXIT TERM INT
    for process in $${training-} "$$workers" "$$dispatcher"; do
        kill "$$process" 2>/dev/null && wait "$$process" || true
    done
    exit "$$1"
}
trap 'stop $$?' EXIT
trap 'stop 143' TERM INT

# Programs of other jobs wait for this file: it holds the address of the service.
echo "$$PENSTOCK_SERVICE" >"$$run/address.new"
mv "$$run/address.new" "$$run/address"

$training
