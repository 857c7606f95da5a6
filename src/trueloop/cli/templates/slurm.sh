#!/bin/bash
# Made by: @MADE_BY@
# Submit it with `sbatch`. Submitted again, or requeued, it continues the same run from its last whole checkpoint.
#SBATCH --job-name=@NAME@
#SBATCH --nodes=@NODES@
#SBATCH --ntasks-per-node=1          # one trueloop per machine; it starts the @PROCESSES@ processes there
#SBATCH --cpus-per-task=@CPUS@
@GPU_LINES@#SBATCH --time=@TIME@
#SBATCH --signal=TERM@300            # 300 s before the time is up: time to finish the update and save
#SBATCH --requeue                    # after a preemption or a lost machine
#SBATCH --open-mode=append           # a requeued job goes on writing to the same file
#SBATCH --output=%x-%j.log

set -u
# Since SLURM 22.05 srun no longer takes --cpus-per-task from the job.
export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"
@GPU_ENV@
# The machines, and where they meet, are read from the variables that srun sets. No `exec`: this shell requeues below.
srun --kill-on-bad-exit=1 @COMMAND@
code=$?

# 143: told to stop, and saved. Out of time rather than preempted, the job would not be requeued by SLURM itself.
if [ "$code" -eq 143 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
