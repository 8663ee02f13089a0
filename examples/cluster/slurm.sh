#!/bin/bash
# A Ray cluster on the nodes of a Slurm job: sbatch slurm.sh config.yaml rounds=1000
# Federations and your own classes lie on storage that all nodes see; `fedarena resume` goes on with another job.
#SBATCH --job-name=fedarena
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --time=04:00:00
#SBATCH --signal=B:TERM@120  # so that the run ends in order before its time is over
##SBATCH --gpus-per-task=4   # then: engine.device=cuda, and a worker per GPU

set -euo pipefail
export RAY_worker_niceness=0 RAY_USAGE_STATS_ENABLED=0
# A folder of the job, with a short name: paths of sockets must not be longer than 107 characters.
export RAY_TMPDIR=${RAY_TMPDIR:-/tmp/r$SLURM_JOB_ID}
port=6379

head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address=$(srun --nodes=1 --ntasks=1 -w "$head" hostname --ip-address | awk '{print $1}')

srun --nodes=1 --ntasks=1 -w "$head" \
    ray start --head --node-ip-address="$address" --port=$port --num-cpus="$SLURM_CPUS_PER_TASK" --block &
sleep 15
if [ "$SLURM_JOB_NUM_NODES" -gt 1 ]; then
    srun --nodes=$((SLURM_JOB_NUM_NODES - 1)) --ntasks=$((SLURM_JOB_NUM_NODES - 1)) --exclude="$head" \
        ray start --address="$address:$port" --num-cpus="$SLURM_CPUS_PER_TASK" --block &
fi

# The driver runs beside the head; machines that come later get workers as soon as they are there.
fedarena run "$@" engine=ray engine.address="$address:$port" &
driver=$!
trap 'kill -TERM $driver' TERM
wait $driver || wait $driver
