"""Keep dropout and BatchNorm layers in eval mode."""

from typing import Any

from torch import nn

BatchNorm = nn.modules.batchnorm._BatchNorm  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - torch has no public name
Dropout = nn.modules.dropout._DropoutNd  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def layers_in_train_mode(model: nn.Module, layer_class: Any) -> list[str]:
    """Return the names of the layers of a class that are in train mode."""
    return [name for name, module in model.named_modules() if isinstance(module, layer_class) and module.training]


def freeze_mode(model: nn.Module, layer_class: Any) -> None:
    """Set every layer of a class to eval mode and make its `train()` a no-op."""
    for module in model.modules():
        if isinstance(module, layer_class):
            module.eval()
            module.train = _make_inert_train(module)  # pyright: ignore[reportAttributeAccessIssue] - of this copy only


def disable_dropout(model: nn.Module) -> None:
    """Disable dropout layers, and the dropout inside attention and recurrent layers."""
    freeze_mode(model, Dropout)
    for module in model.modules():
        if isinstance(module, (nn.MultiheadAttention, nn.RNNBase)):
            module.dropout = 0.0


def _make_inert_train(module: nn.Module) -> Any:
    def train(mode: bool = True) -> nn.Module:
        del mode
        return module

    return train
