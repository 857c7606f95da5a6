"""Copy the user's model before a proof, and restore it if the user's code changed it."""

from torch import Tensor, nn


class ModelSnapshot:
    """A copy of the parameters, buffers, gradients and train/eval modes of a model.

    Args:
        model: the model to copy.

    Cost: one copy of the model's tensors.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._tensors = {name: tensor.detach().clone() for name, tensor in named_tensors(model)}
        self._grads = {name: _copy(parameter.grad) for name, parameter in model.named_parameters()}
        self._modes = [(module, module.training) for module in model.modules()]

    def restore(self) -> list[str]:
        """Restore the model; return the names of changed tensors and the classes of modules with a changed mode."""
        changed = [name for name, tensor in named_tensors(self._model) if not _same(tensor, self._tensors.get(name))]
        for name, tensor in named_tensors(self._model):
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


def named_tensors(model: nn.Module) -> list[tuple[str, Tensor]]:
    """Return the parameters and buffers of a model by name."""
    return [*model.named_parameters(), *model.named_buffers()]


def _copy(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach().clone()


def _same(current: Tensor | None, saved: Tensor | None) -> bool:
    if current is None or saved is None:
        return current is saved
    if current.shape != saved.shape or current.dtype != saved.dtype:
        return False
    if current.is_sparse or saved.is_sparse:
        current, saved = current.to_dense(), saved.to_dense()
    return bool(((current == saved) | ((current != current) & (saved != saved))).all())  # noqa: PLR0124 - not a number
