#!/usr/bin/env bash
# Slurm:  sbatch --nodes 32 launch/slurm.sh paper_3b --out /shared/runs/3b data=/shared/data/text,/shared/data/pictures
#
# One agent on every node starts a rank for each GPU. Two minutes before the time is over, or when the job is preempted,
# Slurm sends SIGUSR1 to the agents; the run is saved, ends with code 75, and is put back into the queue.
#SBATCH --job-name=triptych
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --signal=USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
set -uo pipefail
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=110   # seconds that ranks have to save
srun torchrun --nnodes "$SLURM_NNODES" --nproc-per-node 8 --max-restarts 3 \
    --rdzv-backend c10d --rdzv-id "$SLURM_JOB_ID" --rdzv-endpoint "$head:29500" \
    --signals-to-handle SIGTERM,SIGINT,SIGUSR1 \
    -m triptych train "$@" --device cuda parallel.shard=8
code=$?
# Agents that were told to stop end with a code of their own, whatever their ranks ended with: the run itself knows.
if [ "$code" -ne 0 ] && [ "${SLURM_RESTART_COUNT:-0}" -lt 20 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
