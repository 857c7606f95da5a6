"""Choose the number of loader processes."""

import time
from collections.abc import Callable

from trueloop.core.cores import available_cores
from trueloop.data.sample_rng import preserve_cpu_generators

PROBE_SAMPLES = 5  # number of samples to read; the first one opens files and imports modules, and is not timed
MIN_EPOCH_READ_S = 2.0  # starting a worker takes 0.1 s, or 3 s if it has to import torch
MIN_SAMPLE_S = 50e-6  # sending a sample between processes takes about this time
MAX_WORKERS = 8


def choose_workers(read: Callable[[list[int]], object], samples: int, processes: int) -> int:
    """Read a few samples, measure the time, and return the number of worker processes.

    The number is 0 if an epoch is read in less than 2 s or a sample in less than 50 µs; otherwise it is the number of
    cores per training process minus one for the training, at most 8.

    Args:
        read: function that reads and collates the samples with given indices.
        samples: number of samples read per epoch and process.
        processes: number of training processes, which are assumed to share this machine's cores.

    Cost: reads at most 5 samples.
    """
    workers = min(available_cores() // processes - 1, MAX_WORKERS)
    if workers < 1 or samples <= PROBE_SAMPLES:
        return 0
    with preserve_cpu_generators():
        first, *probes = (probe * (samples - 1) // (PROBE_SAMPLES - 1) for probe in range(PROBE_SAMPLES))
        read([first])
        start = time.perf_counter()
        read(probes)
        sample_s = (time.perf_counter() - start) / (PROBE_SAMPLES - 1)
    return workers if sample_s > MIN_SAMPLE_S and sample_s * samples > MIN_EPOCH_READ_S else 0
