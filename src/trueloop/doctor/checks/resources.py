"""Checks of cores, memory, and the limits on files and processes."""

import math
from typing import Final

from trueloop.core.formatting import format_count, format_size
from trueloop.doctor.diagnosis import PREFETCH, Diagnosis, RunRequirements, check, error, ok, unknown, warning
from trueloop.doctor.machine import SHARED_MEMORY, Machine

MIN_MEMORY: Final = 2**30  # torch with its libraries takes 0.3 to 0.6 GiB before the first tensor
SMALL_SHARED_MEMORY: Final = 256 * 2**20
"""Size below which /dev/shm is reported even if the batch size is unknown: 4 workers with batches of 32 MiB."""
BASE_FILES: Final = 64  # libraries, the journal, data files, the terminal
FILES_PER_WORKER: Final = 3  # both ends of the worker's queue, and the pipe that reports its exit
TENSORS_PER_BATCH: Final = 8  # in a large batch; each tensor in shared memory is an open file on Linux
BASE_PROCESSES: Final = 8  # threads per training process: of torch, of the journal and of checkpoints
PROCESSES_PER_WORKER: Final = 3  # the worker process, and the threads that feed its queue


@check("Cores and workers", "processor", failure="ENV002")
def check_worker_count(machine: Machine, run: RunRequirements) -> Diagnosis:
    """Check that there is a core for each loader worker, counting only the cores that this process may use."""
    usable = machine.usable_cores
    limit = f"; the cgroup's limit is {machine.quota:g} of {machine.cores}" if usable < machine.cores else ""
    cores = f"{usable:g} {'core is' if usable == 1 else 'cores are'} usable{limit}"
    total = (run.workers or 0) * run.processes
    if total > usable:
        suggested = max(0, int(usable // run.processes) - 1)
        split = f" ({run.workers} for each of {run.processes} processes)" if run.processes > 1 else ""
        return warning(
            f"{format_count(total, 'loader worker')}{split} are requested, but {cores}: workers share the "
            "cores, and each worker takes memory.",
            f"--workers {suggested} leaves a core for the training itself.",
        )
    return ok(f"{cores[0].upper()}{cores[1:]}.")


@check("Threads", "processor")
def check_threads(machine: Machine, run: RunRequirements) -> Diagnosis | None:
    """Check that there is a core for each thread of all processes: libraries ignore the limits of a container."""
    if machine.torch is None:
        return None
    threads, usable = run.threads or machine.torch.threads, machine.usable_cores
    if run.processes > 1 and run.threads is None and "OMP_NUM_THREADS" not in machine.environment:
        threads = 1  # the default of torchrun
    cores_per_process = max(1, int(usable // run.processes))
    if threads * run.processes > max(usable, run.processes):
        limit = f" (the cgroup's limit; torch counts {machine.cores})" if usable < machine.cores else ""
        count = f"{run.processes} processes of {threads} threads" if run.processes > 1 else f"{threads} threads"
        return warning(
            f"{count} per operation share {usable:g} cores{limit}: they wait for each other, and small "
            "operations become many times slower.",
            f"OMP_NUM_THREADS={cores_per_process}, or the setting --threads {cores_per_process}.",
        )
    return ok(f"{format_count(threads, 'thread')} per operation, for {usable:g} usable cores.")


@check("Memory", "memory")
def check_memory(machine: Machine, run: RunRequirements) -> Diagnosis:
    """Check that the state and batches of a run fit into the memory that the machine and the cgroup leave."""
    available, total = machine.available_bytes, machine.memory_bytes
    if available is None:
        return unknown("The system does not report how much memory is available.")
    limit = machine.memory_limit_bytes
    if limit is not None and total is not None and limit < total:
        suffix = f"; the cgroup's limit is {format_size(limit)}, of the machine's {format_size(total)}"
        remedy = "Raise the limit of the container or job."
    else:
        suffix, remedy = "", "End other programs, or use a larger machine."
    # Each process holds the state; while a checkpoint is saved, the first process also holds a copy.
    needed = (run.checkpoint_bytes or 0) * (run.processes + 1) + (run.in_flight_bytes or 0)
    message = f"{format_size(available)} of memory are available{suffix}"
    if needed > available and not machine.gpus:
        return error(f"{message}, but the state and batches of this run take {format_size(needed)}.", remedy)
    if available < MIN_MEMORY:
        return warning(f"{message}: the system kills the largest process when memory runs out.", remedy)
    return ok(f"{message}.")


@check("Shared memory", "memory", failure="ENV003")
def check_shared_memory(machine: Machine, run: RunRequirements) -> Diagnosis | None:
    """Check that the batches of loader workers fit into /dev/shm, whose default size in a container is 64 MB."""
    if machine.system != "Linux":
        return None
    if machine.shared is None:
        return unknown(f"There is no {SHARED_MEMORY} to inspect.") if run.workers != 0 else None
    free, needed = machine.shared.free_bytes, run.in_flight_bytes
    if needed is not None and needed > free:
        per_process = f" for each of {run.processes} processes" if run.processes > 1 else ""
        return error(
            f"{SHARED_MEMORY} has {format_size(free)} free; {run.workers} workers{per_process} prefetch {PREFETCH} "
            f"batches of {format_size(run.batch_bytes or 0)} into it: {format_size(needed)}. A bus error would kill a "
            "worker.",
            f"{_enlarge_shared_memory(machine, needed)} Or use fewer workers or smaller micro-batches.",
        )
    if needed is None and run.workers != 0 and machine.shared.total_bytes <= SMALL_SHARED_MEMORY:
        return warning(
            f"{SHARED_MEMORY}, through which loader workers pass batches, has a size of only "
            f"{format_size(machine.shared.total_bytes)}.",
            _enlarge_shared_memory(machine, SMALL_SHARED_MEMORY),
        )
    batches = f"; prefetched batches take {format_size(needed)}" if needed else ""
    return ok(f"{SHARED_MEMORY} has {format_size(free)} free{batches}.")


def _enlarge_shared_memory(machine: Machine, needed: int) -> str:
    gib = max(1, math.ceil(2 * needed / 2**30))
    if machine.container == "kubernetes":
        return f"Mount an emptyDir of medium: Memory and sizeLimit: {gib}Gi at {SHARED_MEMORY}."
    if machine.container:
        return f"Enlarge it for the container: --shm-size={gib}g (shm_size in compose.yaml), or --ipc=host."
    return f"Enlarge it: mount -o remount,size={gib}G {SHARED_MEMORY}."


@check("Open files", "memory")
def check_open_files(machine: Machine, run: RunRequirements) -> Diagnosis | None:
    """Check that one process may open enough files: the workers' pipes, and a file for each tensor in shared memory."""
    if machine.open_files is None:
        return None
    soft, hard = machine.open_files
    workers = run.workers or 0
    needed = BASE_FILES + FILES_PER_WORKER * workers
    recommended = needed + PREFETCH * TENSORS_PER_BATCH * workers
    if soft < 0 or soft >= max(recommended, 2 * BASE_FILES):
        return ok(f"{'Any number of' if soft < 0 else soft} files may be open.")
    limit = "unlimited" if hard < 0 else hard if hard > soft else max(recommended, 1024)
    remedy = f'ulimit -n {limit} before the start; or torch.multiprocessing.set_sharing_strategy("file_system").'
    message = f"{soft} files may be open at the same time (ulimit -n)"
    if soft < needed:
        return error(f"{message}, but {workers} workers alone need {needed}: Too many open files.", remedy)
    return warning(
        f"{message}; {workers} workers with batches of {TENSORS_PER_BATCH} tensors need {recommended}.", remedy
    )


@check("Processes and threads", "memory")
def check_process_limit(machine: Machine, run: RunRequirements) -> Diagnosis | None:
    """Check that all processes and threads of a run can start: a container often has a limit of a few hundred."""
    free = machine.processes_left
    if free is None:
        return None
    threads = run.threads or (machine.torch.threads if machine.torch else 1)
    needed = run.processes * (BASE_PROCESSES + threads + PROCESSES_PER_WORKER * (run.workers or 0))
    if needed > free:
        return error(
            f"{free} more processes and threads may start (pids.max), but this run needs about {needed}: "
            "can't start new thread.",
            f"Raise the limit by {math.ceil((needed - free) / 100) * 100} or more (docker run --pids-limit), or use "
            "fewer workers.",
        )
    return ok(f"{free} more processes and threads may start.")
