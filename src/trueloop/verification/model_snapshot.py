"""Copies the user's model before a proof, and restores it if the user's code changed it."""

from torch import Tensor, nn


class ModelSnapshot:
    """A copy of the parameters, buffers, gradients and train/eval modes of a model.

    Args:
        model: the model to copy.

    Cost: one copy of the model's tensors.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._tensors = {name: tensor.detach().clone() for name, tensor in _named(model)}
        self._grads = {name: _copy(parameter.grad) for name, parameter in model.named_parameters()}
        self._modes = [(module, module.training) for module in model.modules()]

    def restore(self) -> list[str]:
        """Restore the model; return the names of changed tensors and the classes of modules with a changed mode."""
        changed = [name for name, tensor in _named(self._model) if not _same(tensor, self._tensors.get(name))]
        for name, tensor in _named(self._model):
            if name in changed and name in self._tensors:
                tensor.data.copy_(self._tensors[name])
        for name, parameter in self._model.named_parameters():
            if not _same(parameter.grad, self._grads.get(name)):
                changed.append(f"{name}.grad")
                parameter.grad = _copy(self._grads.get(name))
        changed += [type(module).__name__ for module, mode in self._modes if module.training != mode]
        for module, mode in self._modes:
            module.training = mode
        return changed


def _named(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [*model.named_parameters(), *model.named_buffers()]


def _copy(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach().clone()


def _same(now: Tensor | None, before: Tensor | None) -> bool:
    if now is None or before is None:
        return now is before
    if now.shape != before.shape or now.dtype != before.dtype:
        return False
    if now.is_sparse or before.is_sparse:
        now, before = now.to_dense(), before.to_dense()
    return bool(((now == before) | ((now != now) & (before != before))).all())  # noqa: PLR0124 - not a number
