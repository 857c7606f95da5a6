"""The changes that experiments try, one at a time, each at the place of the program where it acts."""

from __future__ import annotations

import linecache
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Adam, AdamW, Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode

from trueloop.core.findings import CodePosition
from trueloop.core.formatting import format_float
from trueloop.sanitizer.experiments.training_site import TrainingSite, is_data
from trueloop.tracing.running_code import user_modules

SQUARED: Final = ("mse", "smooth_l1", "huber")
REGRESSION: Final = (*SQUARED, "l1")
NEAR_UNIT: Final = (0.5, 2.0)  # standard deviations for which standardised columns differ little
FAR_FROM_UNIT: Final = (0.05, 20.0)  # standard deviations beyond which the scale is the likeliest cause
MAX_SHIFT: Final = 10.0  # in standard deviations, beyond which it is, too
MIN_SATURATING: Final = 3  # sigmoids and tanhs, of which the gradient vanishes through all
MAX_MEAN: Final = 0.5  # in standard deviations
DEFAULT_SCALE: Final = (0.7, 1.4)  # of PyTorch's own initialisation
MIN_WEIGHTS: Final = 16  # values of a weight, to compare its scale
ADAM_RATE, SGD_RATE, MOMENTUM = 3e-3, 0.1, 0.9  # of the other optimizer that is tried
MAX_STATISTICS_BATCHES: Final = 16  # from which means and deviations of the inputs are computed
ACTIVATIONS: Final = {"Sigmoid": "sigmoid", "Softmax": "softmax", "Relu": "ReLU", "Tanh": "tanh"}
FUNCTIONS: Final = {
    "Sigmoid": (torch.sigmoid, F.sigmoid, Tensor.sigmoid, torch.sigmoid_),
    "Softmax": (torch.softmax, F.softmax, Tensor.softmax),
    "Relu": (torch.relu, F.relu, Tensor.relu, torch.relu_, Tensor.relu_),
    "Tanh": (torch.tanh, F.tanh, Tensor.tanh),
}
NEEDS_PROBABILITIES: Final = ("bce",)
RATES: Final = {
    10.0: "10 times",
    0.1: "a 10th of",
    100.0: "100 times",
    0.01: "a 100th of",
    1e3: "1000 times",
    1e-3: "a 1000th of",
}
DROPOUTS: Final = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
LAYERS: Final = (nn.Linear, nn.Embedding, nn.modules.conv._ConvNd, nn.RNNBase)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change of a training loop."""

    key: str
    title: str
    """What is changed, as the row of a table: "inputs standardised"."""
    advice: str
    """The change of the code, in words and code."""
    location: str = ""
    """Where the code is changed: "train.py:14: optimizer = ..."; "" = unknown."""
    after: str = ""
    """Key of the change that this one goes further than; it is not tried if that one raises the loss."""
    is_late: bool = False
    """Whether others are likelier causes: the data are near unit scale."""
    apply: Callable[[], None]


def possible_changes(site: TrainingSite) -> list[Change]:
    """Return the changes that apply to a program, likely causes first."""
    makers = (
        _inputs, _targets, _last_activation, _clipping, _decay, _rates, _hidden_activations, _other_optimizer, _dropout,
        _initialisation,
    )  # fmt: skip
    found = [change for make in makers for change in make(site)]
    return sorted(found, key=lambda change: change.is_late)


def probes(site: TrainingSite) -> list[Change]:
    """Return the changes that cure nothing but tell causes apart: one batch, at several rates, and random labels."""
    one_batch = partial(_repeat_batch, site)
    found = [Change(key="one batch", title="one batch only", advice="", apply=one_batch)]
    for factor in (10.0, 0.1):

        def both(factor: float = factor) -> None:
            one_batch()
            _scale_rates(site, factor)

        found.append(Change(key=f"one batch {factor}", title="one batch only", advice="", apply=both))
    return [*found, Change(key="random labels", title="random labels", advice="", apply=partial(_random_labels, site))]


# Inputs and targets -----------------------------------------------------------------------------------------------


class _Standardiser:
    """Standardises the columns, or channels, of the data that a model gets, by those seen so far."""

    def __init__(self, site: TrainingSite) -> None:
        self._site = site
        self._seen: dict[tuple[int, int], tuple[int, Tensor, Tensor]] = {}

    def __call__(self, values: Tensor) -> Tensor:
        dim = column_dimension(self._site, values)
        rows = values.detach().movedim(dim, -1).reshape(-1, values.shape[dim]).double()
        key = values.dim(), values.shape[dim]
        count, total, squares = self._seen.get(key, (0, torch.zeros((), dtype=torch.double), torch.zeros(())))
        if count < MAX_STATISTICS_BATCHES:
            total, squares = total + rows.mean(0), squares + rows.square().mean(0)
            count += 1
            self._seen[key] = count, total, squares
        mean = total / count
        deviation = (squares / count - mean.square()).clamp(min=0).sqrt()
        deviation = torch.where(deviation > 1e-8 * (1 + mean.abs()), deviation, torch.ones_like(deviation))
        return ((values.movedim(dim, -1) - mean) / deviation).movedim(-1, dim).to(values.dtype)


def column_dimension(site: TrainingSite, values: Tensor) -> int:
    """Return the dimension of the columns or channels of a model's input."""
    layers = (nn.Linear, nn.RNNBase, nn.modules.conv._ConvNd)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    first = next((m for known in site.models for m in known.module.modules() if isinstance(m, layers)), None)
    is_convolution = first is not None and not isinstance(first, nn.Linear | nn.RNNBase)
    return 1 if values.dim() == 2 or values.dim() > 3 or is_convolution else values.dim() - 1


def _inputs(site: TrainingSite) -> Iterable[Change]:
    data = [each for each in site.inputs if is_data(each)]
    if not data:
        return
    columns = [each.detach().movedim(column_dimension(site, each), -1).flatten(0, -2).double() for each in data]
    means = torch.cat([each.mean(0) for each in columns])
    deviations = torch.cat([each.std(0, correction=0) for each in columns])
    varying = deviations > 0
    if not varying.any():
        return
    low, high = deviations[varying].min().item(), deviations[varying].max().item()
    shift = (means[varying] / deviations[varying]).abs().max().item()
    if NEAR_UNIT[0] <= low and high <= NEAR_UNIT[1] and shift <= MAX_MEAN:
        return
    spread = f"{format_float(low)} to {format_float(high)}" if high > 1.01 * low else format_float(low)
    location = site.models[0].location if site.models else None
    yield Change(
        key="inputs",
        title="inputs standardised",
        advice="subtract the mean of each input column and divide by its standard deviation, both of the training "
        f"set: x = (x - mean) / std (now the deviations are {spread})",
        location=_line(location),
        is_late=not _is_far(low, high, shift),
        apply=lambda: setattr(site, "change_input", _Standardiser(site)),
    )


def _targets(site: TrainingSite) -> Iterable[Change]:
    loss = next((each for each in site.losses if each.kind in REGRESSION), None)
    if loss is None or len(loss.targets) < 2 or not loss.targets.is_floating_point():
        return
    targets = loss.targets.detach().double()
    by_column = targets.dim() == 2 and targets.shape[1] > 1
    mean = targets.mean(0) if by_column else targets.mean()
    deviation = targets.std(0, correction=0) if by_column else targets.std(correction=0)
    deviation = torch.where(deviation > 0, deviation, torch.ones_like(deviation))
    low, high = deviation.min().item(), deviation.max().item()
    if NEAR_UNIT[0] <= low and high <= NEAR_UNIT[1] and (mean / deviation).abs().max().item() <= MAX_MEAN:
        return
    power = 2 if loss.kind in SQUARED else 1
    size, width = loss.answers.numel(), loss.targets.shape[-1] if by_column else 1

    def change(output: Tensor) -> Tensor:
        """Return what the model says in standardised units, in the program's units."""
        if output.dim() and output.is_floating_point() and _fits(output, size, width):
            mean_here, scale = mean.to(output), deviation.to(output)
            scaled = output * 1
            if scaled.requires_grad:
                scaled.register_hook(partial(_divide, scale**power))

            return mean_here + scale * scaled
        return output

    shown = f"{format_float(low)} to {format_float(high)}" if high > 1.01 * low else format_float(low)
    yield Change(
        key="targets",
        title="targets standardised",
        advice="train on y = (y - mean) / std, with mean and std of the training targets, and convert predictions "
        f"back: prediction * std + mean (now mean {format_float(mean.mean().item())}, deviation {shown})",
        location=_line(site.loss_location),
        is_late=not _is_far(low, high, (mean / deviation).abs().max().item()),
        apply=lambda: setattr(site, "change_output", change) if site.models else site.change_answers(change),
    )


def _is_far(low: float, high: float, shift: float) -> bool:
    """Return True for deviations from ``low`` to ``high`` that are far from 1, or a mean of so many deviations."""
    return low < FAR_FROM_UNIT[0] or high > FAR_FROM_UNIT[1] or shift > MAX_SHIFT


def _divide(divisor: Tensor, gradient: Tensor) -> Tensor:
    return gradient / divisor


def _fits(output: Tensor, size: int, width: int) -> bool:
    """Return True for an output that has the shape of the answers, up to the size of the batch."""
    return (
        output.shape[-1] == width
        if width > 1
        else output.numel() // len(output) == max(1, size // len(output)) or (output.numel() == size)
    )


def _repeat_batch(site: TrainingSite) -> None:
    """Give the program the batch of the first update again and again."""
    if site.batch is not None:
        site.repeats_batch = True
        return
    inputs = [each.detach().clone() for each in site.inputs]
    targets = [each.targets.detach().clone() for each in site.losses]
    if inputs and len(targets) == 1:
        kept = {(each.shape, each.dtype): each for each in reversed(inputs)}
        site.change_input = lambda values: kept.get((values.shape, values.dtype), values)
        site.change_targets(lambda _, target: targets[0] if target.shape == targets[0].shape else target)


def can_repeat_batch(site: TrainingSite) -> bool:
    """Return True if the program can be given one batch again and again."""
    is_measured = len(site.losses) == 1 and any(is_data(each) for each in site.inputs)
    return site.batch is not None or (is_measured and site.losses[0].kind != "l1")


def can_shuffle_labels(site: TrainingSite) -> bool:
    """Return True if each sample can be given a random target."""
    targets = site.losses[0].targets if len(site.losses) == 1 else None
    return targets is not None and targets.dim() > 0 and any(i.dim() and len(i) == len(targets) for i in site.inputs)


def _random_labels(site: TrainingSite) -> None:
    """Give each sample a random target, which is always the same for the same input."""
    pool = site.losses[0].targets.detach().clone()
    generator = torch.Generator().manual_seed(0)
    weights: dict[int, Tensor] = {}

    def change(_: Any, target: Tensor) -> Tensor:
        rows = next((each for each in site.inputs if each.dim() and len(each) == len(target)), None)
        if rows is None or target.dim() != pool.dim() or not torch.is_grad_enabled():
            return target
        flat = rows.detach().reshape(len(rows), -1).double().cpu()
        width = flat.shape[1]
        if width not in weights:
            weights[width] = torch.rand(width, dtype=torch.double, generator=generator)
        scores = flat @ weights[width]
        numbers = (torch.frexp(scores).mantissa * 7919).frac().abs()  # like random numbers, but the same every time
        return pool[(numbers * len(pool)).long().clamp(max=len(pool) - 1).to(pool.device)]

    site.change_targets(change)


# Optimizers -------------------------------------------------------------------------------------------------------


def _rates(site: TrainingSite) -> Iterable[Change]:
    for factor, words in RATES.items():
        known = site.optimizers[0] if site.optimizers else None
        rate = None if known is None else float(known.optimizer.param_groups[0]["lr"])
        shown = "multiply the learning rate by " + format_float(factor)
        if rate:
            shown = f"lr={float(f'{rate * factor:.3g}'):g} instead of lr={rate:g}"
        yield Change(
            key=f"rate {factor:g}",
            title=f"{words} the learning rate",
            advice=shown,
            location=_line(known.location if known else None),
            after=f"rate {previous:g}" if (previous := factor / 10 if factor > 1 else factor * 10) != 1 else "",
            apply=partial(_scale_rates, site, factor),
        )


def _scale_rates(site: TrainingSite, factor: float) -> None:
    """Multiply the rates for the time of each step, so that schedules do not see it."""
    saved: list[Any] = []

    def before(optimizer: Optimizer, *_: Any) -> None:
        saved[:] = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * factor

    def after(optimizer: Optimizer, *_: Any) -> None:
        for group, rate in zip(optimizer.param_groups, saved, strict=False):
            group["lr"] = rate

    register_optimizer_step_pre_hook(before)
    register_optimizer_step_post_hook(after)
    site.gradient_factor = factor


def _other_optimizer(site: TrainingSite) -> Iterable[Change]:
    if not site.optimizers:
        return
    is_adam = any(isinstance(known.optimizer, Adam | AdamW) for known in site.optimizers)
    name = "SGD with momentum" if is_adam else f"Adam for {type(site.optimizers[0].optimizer).__name__}"
    call = f"SGD(..., lr={SGD_RATE:g}, momentum={MOMENTUM:g})" if is_adam else f"Adam(..., lr={ADAM_RATE:g})"

    def make(groups: Sequence[Any]) -> Optimizer:
        if is_adam:
            return torch.optim.SGD(groups, lr=SGD_RATE, momentum=MOMENTUM)
        return torch.optim.Adam(groups, lr=ADAM_RATE)

    yield Change(
        key="optimizer",
        title=name,
        advice=f"torch.optim.{call}",
        location=_line(site.optimizers[0].location),
        apply=lambda: _replace_steps(site, make),
    )


def _replace_steps(site: TrainingSite, make: Callable[[Sequence[Any]], Optimizer]) -> None:
    for known in site.optimizers:
        groups = known.optimizer.param_groups
        inner = make([{"params": g["params"], "weight_decay": g.get("weight_decay") or 0.0} for g in groups])
        known.optimizer.step = inner.step  # type: ignore[method-assign]


def _decay(site: TrainingSite) -> Iterable[Change]:
    decays = [(k, float(g.get("weight_decay") or 0)) for k in site.optimizers for g in k.optimizer.param_groups]
    if not (largest := max((decay for _, decay in decays), default=0.0)):
        return
    known = next(known for known, decay in decays if decay == largest)

    def apply() -> None:
        for each in site.optimizers:
            for group in each.optimizer.param_groups:
                group["weight_decay"] = 0.0

    yield Change(
        key="decay",
        title="no weight decay",
        advice=f"weight_decay=0 instead of {largest:g}",
        location=_line(known.location),
        apply=apply,
    )


def _clipping(site: TrainingSite) -> Iterable[Change]:
    lines = [
        (path, number, line.strip())
        for path in user_modules().values()
        for number, line in enumerate(linecache.getlines(path), 1)
        if "clip_grad_" in line and "import" not in line
    ]
    if not lines:
        return

    def apply() -> None:
        for function in (nn.utils.clip_grad_norm_, nn.utils.clip_grad_value_):
            site.patches.replace_inner(function, _not_clipping)

    yield Change(
        key="clipping",
        title="no gradient clipping",
        advice="leave out the clipping, or clip at a larger norm",
        location="{}:{}: {}".format(*lines[0]),
        apply=apply,
    )


def _not_clipping(original: Callable[..., Any]) -> Callable[..., Any]:
    def clip_grad(parameters: Any, *args: Any, **options: Any) -> Any:
        options = {name: value for name, value in options.items() if name not in ("max_norm", "clip_value")}
        return original(parameters, math.inf, *args[1:], **options)

    return clip_grad


# Models -----------------------------------------------------------------------------------------------------------


def _dropout(site: TrainingSite) -> Iterable[Change]:
    modules = [module for known in site.models for module in known.module.modules()]
    layers: list[Any] = [each for each in modules if isinstance(each, DROPOUTS)]
    others: list[Any] = [each for each in modules if isinstance(getattr(each, "dropout", None), float)]
    largest = max([float(each.p) for each in layers] + [each.dropout for each in others], default=0.0)
    if not largest:
        return

    def apply() -> None:
        for layer in layers:
            layer.p = 0.0
        for module in others:
            module.dropout = 0.0

    yield Change(
        key="dropout", title="no dropout", advice=f"set the probability of dropout layers to 0 (now up to {largest:g})",
        location=_line(site.models[0].location), apply=apply,
    )  # fmt: skip


def _initialisation(site: TrainingSite) -> Iterable[Change]:
    layers = [m for k in site.models for m in k.module.modules() if isinstance(m, LAYERS)]
    unusual = [
        layer for layer in layers if (scale := _scale(layer)) and not DEFAULT_SCALE[0] < scale < DEFAULT_SCALE[1]
    ]
    if not unusual:
        return

    def apply() -> None:
        for layer in layers:
            layer.reset_parameters()
            for parameter in layer.parameters():
                parameter.grad = None

    yield Change(
        key="initialisation",
        title="PyTorch's own initialisation",
        advice=f"leave out the initialisation of {type(unusual[0]).__name__} layers: their weights are "
        f"{format_float(_scale(unusual[0]) or 0)} times as large as PyTorch makes them",
        apply=apply,
    )


def _scale(layer: Any) -> float | None:
    """Return the size of a layer's first weight, compared with that of a new layer; None if it cannot be compared."""
    weight = next((p for p in layer.parameters(recurse=False) if p.dim() > 1 and p.numel() >= MIN_WEIGHTS), None)
    if weight is None:
        return None
    saved = [p.detach().clone() for p in layer.parameters(recurse=False)]
    norm = weight.detach().norm().item()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        layer.reset_parameters()
        usual = weight.detach().norm().item()
        for parameter, values in zip(layer.parameters(recurse=False), saved, strict=True):
            parameter.copy_(values)
    return max(norm, 1e-9) / usual if usual and math.isfinite(norm) else None


class _WithoutLast(TorchFunctionMode):
    """Leaves out the last of the activations of a kind in one call of a model."""

    def __init__(self, functions: Sequence[Any], last: int | None) -> None:
        super().__init__()
        self._functions, self._last = functions, last
        self.count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self._functions:
            self.count += 1
            if self.count == self._last:
                return args[0]
        return func(*args, **(kwargs or {}))


def _last_activation(site: TrainingSite) -> Iterable[Change]:
    loss = next(iter(site.losses), None)
    name = site.last_operation or (loss.last_operation[0] if loss else "")
    if loss is None or name not in ACTIVATIONS or loss.kind in NEEDS_PROBABILITIES:
        return
    functions = FUNCTIONS[name]
    counts: list[int] = []

    def around() -> Any:
        if not torch.is_grad_enabled():
            return nullcontext()
        if counts and counts[-1] < 0:
            return _WithoutLast(functions, -counts[-1])
        return _Counting(functions, counts)

    yield Change(
        key="activation",
        title=f"without the last {ACTIVATIONS[name]}",
        advice=f"leave out the {ACTIVATIONS[name]} at the end of the model"
        + ("" if loss.kind in REGRESSION else "; the loss contains its own"),
        location=_line(site.models[0].location if site.models else None),
        apply=lambda: setattr(site, "around_call", around),
    )


class _Rectified(TorchFunctionMode):
    """Puts a ReLU in the place of sigmoids and tanhs in one call of a model, but not of the last operation."""

    def __init__(self, functions: Sequence[Any], kept: int) -> None:
        super().__init__()
        self._functions, self._left = functions, kept

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self._functions:
            self._left -= 1
            if self._left >= 0:
                return torch.relu(args[0])
        return func(*args, **(kwargs or {}))


def _hidden_activations(site: TrainingSite) -> Iterable[Change]:
    saturating = [name for name in site.operations if name in ("Sigmoid", "Tanh")]
    hidden = len(saturating) - (site.last_operation in ("Sigmoid", "Tanh"))
    if hidden < MIN_SATURATING:
        return
    functions = [each for name in ("Sigmoid", "Tanh") for each in FUNCTIONS[name]]
    name = ACTIVATIONS[max(set(saturating), key=saturating.count)]

    def apply() -> None:
        site.around_call = lambda: _Rectified(functions, hidden)
        for module in (each for known in site.models for each in known.module.modules()):
            if isinstance(module, nn.Linear | nn.modules.conv._ConvNd):  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

    yield Change(
        key="hidden activations",
        title=f"ReLU for {name} between the layers",
        advice=f"nn.ReLU() for the {name} between layers, whose gradient is small in each of {hidden} of them, and "
        'nn.init.kaiming_normal_(layer.weight, nonlinearity="relu") for the layers',
        location=_line(site.models[0].location if site.models else None),
        apply=apply,
    )


class _Counting(_WithoutLast):
    """Counts the activations in a call, and appends the negated count, by which later calls find the last one."""

    def __init__(self, functions: Sequence[Any], counts: list[int]) -> None:
        super().__init__(functions, None)
        self._counts = counts

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        if self.count:
            self._counts.append(-self.count)


def _line(location: CodePosition | None) -> str:
    """Return a line of the program: "/path/train.py:14: optimizer = ..."."""
    if location is None:
        return ""
    found = location.source_location
    return f"{found.path}:{found.line}: {linecache.getline(found.path, found.line).strip()}"
