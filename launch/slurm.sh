#!/usr/bin/env bash
# Slurm:  sbatch --nodes 32 launch/slurm.sh paper_3b --out /shared/runs/3b data=/shared/data/text,/shared/data/images
#
# One agent on every node starts a rank for each GPU. Two minutes before the time limit, or when the job is preempted,
# the agents get SIGUSR1: the run saves a checkpoint, and the job is requeued.
#SBATCH --job-name=triptych
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
set -uo pipefail
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=110   # seconds for ranks to save

preempted=0
trap 'preempted=1; kill -USR1 "$step" 2>/dev/null' USR1 TERM
srun triptych train parallel.shard=8 "$@" --device cuda --nproc 8 --nnodes "$SLURM_NNODES" --rdzv-endpoint "$head:29500" &
step=$!
code=0
while kill -0 "$step" 2>/dev/null; do   # a signal interrupts `wait`, not the step
    wait "$step"
    code=$?
done
[ "$preempted" -eq 1 ] && scontrol requeue "$SLURM_JOB_ID"
exit "$code"
