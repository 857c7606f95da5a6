"""Keep weights (at the start) and buffers (after every window) equal on all processes."""

from torch import Tensor, nn

from trueloop.core.errors import InvalidModel
from trueloop.training.distributed.processes import Processes


def broadcast_state(model: nn.Module, processes: Processes) -> None:
    """Broadcast the first process's parameters and buffers.

    Raises:
        InvalidModel: their names, shapes or dtypes differ between processes.
    """
    descriptions = {name: (tuple(t.shape), str(t.dtype), t.requires_grad) for name, t in _named_tensors(model).items()}
    by_rank = processes.all_gather_object(descriptions)
    for rank, other in enumerate(by_rank):
        differing = [name for name in {**by_rank[0], **other} if by_rank[0].get(name) != other.get(name)]
        if differing:
            raise InvalidModel(
                f"Process {rank} has built a different model than process 0: {differing[0]} is "
                f"{other.get(differing[0], 'absent')}, not {by_rank[0].get(differing[0], 'absent')}.",
                fix="Build the model from the same settings on every process.",
            )
    processes.broadcast(list(_named_tensors(model).values()))


class BufferSync:
    """Keeps buffers that training changes (BatchNorm statistics) equal to those of the first process.

    Args:
        model: model, the same on every process; if one buffer of a module changes, all its buffers are synchronised.
        processes: processes of the run.
    """

    def __init__(self, model: nn.Module, processes: Processes) -> None:
        self._processes = processes
        self._owners = [(module, name) for module in model.modules() for name, _ in module.named_buffers(recurse=False)]
        self._initial_state = self._state()
        self._tracked: list[int] | None = None
        """Indices of the buffers that are known to change; None before the first window."""

    def sync_tracked(self) -> None:
        """Broadcast the buffers that are known to change; called after every window."""
        self._processes.broadcast(self.tracked_buffers())

    def tracked_buffers(self) -> list[Tensor]:
        """Return the buffers to broadcast after a window; after the first window, find and broadcast them."""
        if self._tracked is None:
            self.track_and_sync()
            return []
        return [getattr(*self._owners[index]) for index in self._tracked]

    def track_and_sync(self) -> None:
        """Find buffers that changed on any process, track them from now on, and broadcast all tracked ones."""
        state = self._state()
        modified = {self._owners[i][0] for i, initial in enumerate(self._initial_state) if state[i] != initial}
        changed = [
            index
            for index, (module, _) in enumerate(self._owners)
            if module in modified or _writes_without_version(module)
        ]
        by_rank = self._processes.all_gather_object(changed)
        self._tracked = sorted({*(self._tracked or ()), *(index for each in by_rank for index in each)})
        self.sync_tracked()

    def _state(self) -> list[tuple[int, int]]:
        buffers = (getattr(module, name) for module, name in self._owners)
        return [(id(b), 0 if b.is_inference() else b._version) for b in buffers]  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - the only sign of a write


def _writes_without_version(module: nn.Module) -> bool:
    """Return True for layers whose kernels write buffers (running statistics) without increasing their version."""
    return isinstance(module, nn.modules.batchnorm._NormBase)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - batch and instance norm


def _named_tensors(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}
