"""What the two processes that fork others, the zygote and the arena's judge, do before and after a fork."""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from trueloop.failures.load import catalogue, known_errors


def warm_up() -> None:
    """Import what torch, the catalogue and the datasets import late: the first optimizer alone imports 800 modules."""
    import torch

    torch.set_num_threads(1)  # with two threads, a step on small tensors takes 75 to 270 ms instead of 2 to 7
    torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])
    if find_spec("sklearn") is not None:
        import_module("sklearn.datasets")
    catalogue()
    known_errors()


def limit_memory(extra_bytes: int) -> None:
    """Limit the memory of this process to the present amount and some extra bytes, on Linux; write no core dumps."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except OSError:  # not Linux
        return
    _, hard_limit = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + extra_bytes, hard_limit))
