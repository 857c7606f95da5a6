"""What a rerun knows of the training loop it is in, and the places where a change can act on it."""

from __future__ import annotations

import copy
import functools
import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter  # pyright: ignore[reportPrivateUsage]

from trueloop.core.findings import CodePosition
from trueloop.sanitizer.experiments.contained_files import ContainedFiles
from trueloop.tracing.events import MeasuredLoss
from trueloop.tracing.losses import RESHAPES, operation_name, parent
from trueloop.tracing.patch import Patches

LOSSES: Final = (
    "cross_entropy", "nll_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits", "mse_loss", "l1_loss",
    "smooth_l1_loss", "huber_loss",
)  # fmt: skip
"""Functions whose second argument is the target."""

TensorChange = Callable[[Tensor], Tensor]


class KnownModel(NamedTuple):
    """A model that the program calls, with the line of its latest call."""

    module: nn.Module
    location: CodePosition | None


class KnownOptimizer(NamedTuple):
    """An optimizer, with the line that creates it."""

    optimizer: Optimizer
    location: CodePosition | None


class TrainingSite:
    """The models, optimizers and data of a rerun; installed once PyTorch is imported.

    Args:
        seed: 0 = the program's own seeds; others are added to these.
        files: where ``torch.save`` writes to.
    """

    def __init__(self, seed: int, files: ContainedFiles) -> None:
        self._seed, self._files, self._depth = seed, files, 0
        self.models: list[KnownModel] = []
        self.optimizers: list[KnownOptimizer] = []
        self.losses: list[MeasuredLoss] = []
        """The losses of the first backward pass."""
        self.loss_location: CodePosition | None = None
        self.inputs: list[Tensor] = []
        """The data that the latest outermost call of a model got."""
        self.batch: tuple[int, Any] | None = None
        """Id of the dataset whose loader returned the latest batch, and the batch."""
        self.change_input: TensorChange | None = None
        """Changes the data that a model gets, in training and evaluation."""
        self.change_output: TensorChange | None = None
        """Changes the tensors that a model returns."""
        self.around_call: Callable[[], AbstractContextManager[Any]] = nullcontext
        """Entered for each outermost call of a model."""
        self.repeats_batch = False
        """Whether loaders return `batch` again and again."""
        self.last_operation = ""
        """The operation that made the output of the latest outermost call: "Sigmoid"."""
        self.gradient_factor = 1.0
        """What gradients are multiplied by where the program updates its weights itself."""
        self.operations: Sequence[str] = ()
        """The operations in the graph of the first loss: "Sigmoid"."""
        self.patches = Patches()

    def install(self) -> None:
        """Record models and batches, and make the rerun repeatable and fit to be forked."""
        torch.set_num_threads(1)  # a forked child would wait for the threads of its parent
        torch.set_num_threads = lambda num: None  # type: ignore[assignment]
        torch.manual_seed(self._seed)
        random.seed(self._seed)
        if self._seed:
            torch.manual_seed = torch.random.manual_seed = _shifted(torch.manual_seed, self._seed)
            random.seed = _shifted(random.seed, self._seed)
        self.patches.replace(nn.Module, "__call__", self._model_call)
        self.patches.replace(DataLoader, "__init__", _without_workers)
        self.patches.replace(_BaseDataLoaderIter, "__next__", self._next_batch)
        torch.save = self._saving(torch.save)

    def clear_gradients(self) -> None:
        """Set to zero the gradients of the first backward pass, which ran before the change.

        Adam would remember a large one for a thousand updates.
        """
        owners = [p for known in self.optimizers for group in known.optimizer.param_groups for p in group["params"]]
        for parameter in (*owners, *(p for known in self.models for p in known.module.parameters())):
            if parameter.grad is not None:
                parameter.grad.zero_()

    def change_targets(self, change: Callable[[Tensor, Tensor], Tensor]) -> None:
        """Change what PyTorch's losses compare with: ``change(answers, targets)`` returns other targets."""

        def changed(original: Callable[..., Any]) -> Callable[..., Any]:
            def loss(input: Any, target: Any, *args: Any) -> Any:  # noqa: A002
                return original(input, change(input, target), *args)

            return loss

        self._replace_losses(changed)

    def change_answers(self, change: TensorChange) -> None:
        """Change what PyTorch's losses compare with the targets, for a model that is a plain function."""

        def changed(original: Callable[..., Any]) -> Callable[..., Any]:
            def loss(input: Any, *args: Any) -> Any:  # noqa: A002
                return original(change(input) if torch.is_grad_enabled() else input, *args)

            return loss

        self._replace_losses(changed)

    def _replace_losses(self, make: Callable[[Any], Callable[..., Any]]) -> None:
        for name in LOSSES:
            self.patches.swap_code(getattr(F, name), make)

    def _model_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __call__(module: nn.Module, /, *args: Any, **options: Any) -> Any:  # noqa: N807
            if self._depth or next(module.parameters(), None) is None:
                return original(module, *args, **options)
            self._depth = 1
            try:
                return self._outermost(original, module, args, options)
            finally:
                self._depth = 0

        return __call__

    def _outermost(self, call: Callable[..., Any], module: nn.Module, args: Any, options: Any) -> Any:
        if self.change_input is not None:
            args, options = map_tensors((args, options), lambda t: self.change_input(t) if is_data(t) else t)  # pyright: ignore[reportOptionalCall]
        if torch.is_grad_enabled():
            self.inputs = [each for each in tensors_of((args, options)) if not each.requires_grad]
        with self.around_call():
            output = call(module, *args, **options)
        if torch.is_grad_enabled():
            self.last_operation = _last_operation(output)
        return output if self.change_output is None else map_tensors(output, self.change_output)

    def _next_batch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __next__(iterator: Any) -> Any:  # noqa: N807
            batch, dataset = original(iterator), id(iterator._dataset)  # noqa: SLF001
            if self.repeats_batch and self.batch is not None and self.batch[0] == dataset:
                return copy.deepcopy(self.batch[1])
            if not self.repeats_batch:
                self.batch = dataset, batch
            return batch

        return __next__

    def _saving(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def save(obj: Any, f: Any, *args: Any, **options: Any) -> Any:
            is_path = isinstance(f, str) or hasattr(f, "__fspath__")
            return original(obj, self._files.write_path(f) if is_path else f, *args, **options)

        return save


def is_data(tensor: Tensor) -> bool:
    """Return True for numbers that a model gets as data: real, with samples and columns, and not only 0 and 1."""
    if tensor.requires_grad or not tensor.is_floating_point() or tensor.dim() < 2 or tensor.numel() < 2:
        return False
    return not bool(((tensor == 0) | (tensor == 1)).all())


def tensors_of(nested: Any) -> list[Tensor]:
    """Return the tensors in arguments or outputs, in order."""
    found: list[Tensor] = []
    map_tensors(nested, lambda tensor: found.append(tensor) or tensor)
    return found


def map_tensors(nested: Any, change: TensorChange) -> Any:
    """Return arguments or outputs with each tensor changed; containers of other classes are changed in place."""
    if isinstance(nested, Tensor):
        return change(nested)
    if type(nested) in (tuple, list):
        return type(nested)(map_tensors(each, change) for each in nested)
    if type(nested) is dict:
        return {key: map_tensors(value, change) for key, value in nested.items()}
    if isinstance(nested, dict):  # such as the outputs of transformers, which have attributes too
        for key in list(nested):
            nested[key] = map_tensors(nested[key], change)
    return nested


def _last_operation(output: Any) -> str:
    """Return the operation that made the only output of a model with a graph, without views: "Sigmoid"."""
    made_by: list[Any] = [each.grad_fn for each in tensors_of(output) if each.grad_fn is not None]
    node = made_by[0] if len(made_by) == 1 else None
    while node is not None and operation_name(node.name()) in RESHAPES:
        node = parent(node)
    return "" if node is None else operation_name(node.name())


def _shifted(seed: Callable[..., Any], by: int) -> Any:
    @functools.wraps(seed)
    def shifted(number: Any = None, *args: Any) -> Any:
        return seed(number + by if isinstance(number, int) else number, *args)

    return shifted


def _without_workers(original: Callable[..., None]) -> Callable[..., None]:
    """Return a constructor of loaders that load in this process, as forked children cannot share workers."""

    def __init__(loader: Any, *args: Any, **options: Any) -> None:  # noqa: N807
        original(loader, *args, **options)
        loader.num_workers = loader.timeout = 0
        loader.__dict__["persistent_workers"] = False

    return __init__
