"""Choose a number of loader processes that speeds up reading."""

import os
import time
from collections.abc import Callable

from trueloop.data.sample_rng import preserve_cpu_generators

PROBE_SAMPLES = 5  # the first read opens files and imports modules, and is not counted
MIN_EPOCH_READ_S = 2.0  # starting a worker takes 0.1 s, and 3 s where it has to import torch
MIN_SAMPLE_S = 50e-6  # sending a batch between processes costs about as much as reading at this speed
MAX_WORKERS = 8


def choose_workers(read: Callable[[list[int]], object], samples: int, processes: int) -> int:
    """Read a few samples, time them, and return the number of worker processes.

    0 where an epoch is read in less than 2 s or a sample in less than 50 us; else the cores per training process, minus
    one for the training itself, at most 8.

    Args:
        read: reads and collates the samples of these indices; the random generators are restored afterwards.
        samples: number read per epoch and process.
        processes: training processes, assumed to share this machine's cores.

    Cost: reads at most 5 samples.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    workers = min(cores // processes - 1, MAX_WORKERS)
    if workers < 1 or samples <= PROBE_SAMPLES:
        return 0
    with preserve_cpu_generators():
        first, *probes = (probe * (samples - 1) // (PROBE_SAMPLES - 1) for probe in range(PROBE_SAMPLES))
        read([first])
        start = time.perf_counter()
        read(probes)
        sample_s = (time.perf_counter() - start) / (PROBE_SAMPLES - 1)
    return workers if sample_s > MIN_SAMPLE_S and sample_s * samples > MIN_EPOCH_READ_S else 0
