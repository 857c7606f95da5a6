"""Finds evaluations on training samples whose variables are called held out: ``val_loader``, ``x_test``."""

import inspect
import itertools
import re
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from trueloop.core.findings import CodePosition
from trueloop.tracing.events import NO_REFS, BackwardEnded, LoaderStarted, ModelCalled, Ref, Refs, TracingGap
from trueloop.tracing.frame_variables import variables
from trueloop.tracing.row_digests import has_storage, row_digests
from trueloop.tracing.user_location import is_user_code
from trueloop.tracing.weak_id_dict import WeakIdDict

MIN_SAMPLES: Final = 16  # of an evaluation
MIN_SHARE: Final = 0.05  # of them that were trained on
MIN_SHARED: Final = 20  # of them that were trained on, or more than half of them
MAX_SAMPLES: Final = 50_000  # per model
MAX_FRAMES: Final = 8
MAX_HELD_OUT: Final = 16  # evaluations of one model that are distinguished, by line and data
MAX_OPEN_CALLS: Final = 16
MAX_PENDING: Final = 16  # batches
MIN_FEATURES: Final = 8  # numbers in a sample; shorter ones may be equal by chance
HELD_OUT_WORDS: Final = frozenset(("val", "valid", "validation", "test", "dev", "eval", "heldout", "holdout", "unseen"))
TRAINING_WORDS: Final = frozenset(("train", "training", "tr", "trn", "fit"))
_WORD: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_PREFIXED: Final = re.compile(r"[xy](va|val|valid|te|test|dev)")


def is_held_out_name(name: str) -> bool:
    """Return True if the name of a variable says that its samples are held out: "val_loader", "xTest", "xte"."""
    words = {word.lower() for word in _WORD.findall(name)}
    if words & TRAINING_WORDS:
        return False
    return bool(words & HELD_OUT_WORDS) or any(_PREFIXED.fullmatch(word) for word in words)


class NamedEvaluation(NamedTuple):
    """An evaluation on samples of which some were trained on."""

    name: str
    """The variable with the held-out samples, or with their loader."""
    shared: int
    """Number of samples that were trained on."""
    samples: int
    location: CodePosition | None
    loader: Ref | None


class _Call(NamedTuple):
    model: Ref
    rows: Tensor


def _no_hashes() -> Tensor:
    return torch.zeros(0, dtype=torch.long, device="cpu")


@dataclass(slots=True)
class _HeldOut:
    """Samples that are called held out, and the latest evaluation of a model on them."""

    name: str
    loader: Ref | None
    location: CodePosition | None
    rows: list[Tensor] = field(default_factory=list[Tensor])
    """Hashes of the samples of an evaluation that has not ended."""
    features: int = 0
    clean: Tensor = field(default_factory=_no_hashes)
    """Hashes of samples that were not trained on before an evaluation; if they are later, it is a final training on all
    data."""
    found: NamedEvaluation | None = None


@dataclass(slots=True)
class _Model:
    parameters: Refs = NO_REFS
    is_trained: bool = False
    trained: Tensor = field(default_factory=_no_hashes)
    """Hashes of the samples that were trained on."""
    pending: list[Tensor] = field(default_factory=list[Tensor])
    """Hashes of further samples."""
    held_out: dict[tuple[object, ...], _HeldOut] = field(default_factory=dict[tuple[object, ...], _HeldOut])
    weights: Tensor | None = None
    """Sum of the first weights at the latest evaluation; None in training."""

    def add_pending(self) -> None:
        self.trained = torch.cat([self.trained, *self.pending]).unique()
        self.pending = []


class NamedEvaluations:
    """Compares the samples of each evaluation with all samples that the model was trained on before."""

    def __init__(self) -> None:
        self._models = WeakIdDict[Ref, _Model]()
        self._with_graph = deque[_Call](maxlen=MAX_OPEN_CALLS)
        self._loader_names = WeakIdDict[Ref, str]()

    def on_loader_started(self, event: LoaderStarted) -> None:
        """Record under which name the program holds the loader."""
        if self._loader_names.get(event.loader) is None:
            self._loader_names.put(event.loader, _held_out_name(event.live_loader))

    def on_model_called(self, event: ModelCalled) -> None:
        """Record the samples of the call."""
        model = self._models.get(event.model) or self._models.put(event.model, _Model())
        model.parameters = event.parameters
        if event.recomputed or not isinstance(event.inputs, Tensor) or not event.inputs.is_cpu:
            return  # reading the samples elsewhere would synchronise
        if event.has_graph:
            self._end_evaluations(model, event)
            # Held-out samples that the program trains on by name are meant so, as in a search for an architecture.
            if not self._name_of(event) and (rows := row_digests(event)) is not None:
                self._with_graph.append(_Call(event.model, rows))
        elif model.is_trained:
            self._on_evaluation(model, event)

    def _on_evaluation(self, model: _Model, event: ModelCalled) -> None:
        if model.weights is None:
            model.weights = _sum_of_weights(event.live_module)
        name = self._name_of(event)
        key = event.location, event.loader, name
        held_out = model.held_out.get(key)
        if held_out is None and name and len(model.held_out) < MAX_HELD_OUT:
            held_out = model.held_out[key] = _HeldOut(name, event.loader, event.location)
        if held_out is None or held_out.found or (rows := row_digests(event)) is None:
            return
        held_out.rows.append(rows)
        held_out.features = event.inputs.numel() // len(rows)

    def _name_of(self, event: ModelCalled) -> str:
        """Return the variable that calls the samples of a call held out, "" if none does."""
        return _held_out_name(event.inputs) if event.loader is None else self._loader_names.get(event.loader) or ""

    def on_backward_ended(self, event: BackwardEnded) -> None:
        """Record the samples that were trained on."""
        calls, self._with_graph = self._with_graph, deque[_Call](maxlen=MAX_OPEN_CALLS)
        for call in calls:
            model = self._models.get(call.model)
            if model is None or model.parameters.isdisjoint(event.reached_parameters):
                self._with_graph.append(call)
                continue
            model.is_trained = True
            if len(model.trained) < MAX_SAMPLES:
                model.pending.append(call.rows)
            if len(model.pending) >= MAX_PENDING:
                model.add_pending()

    def on_tracing_gap(self, event: TracingGap) -> None:
        """Discard calls that may have been trained on."""
        self._with_graph.clear()

    def find(self) -> Iterator[NamedEvaluation]:
        """Yield the evaluations on training samples, at the end of the program."""
        for model in self._models.values():
            self._decide(model)
            yield from (each.found for each in model.held_out.values() if each.found is not None)

    def _end_evaluations(self, model: _Model, event: ModelCalled) -> None:
        """Decide about the evaluations that have ended; forget the trained samples if the weights were set again."""
        weights, model.weights = model.weights, None
        if weights is None:
            return
        self._decide(model)
        if not torch.equal(weights, _sum_of_weights(event.live_module)):
            model.trained = _no_hashes()

    def _decide(self, model: _Model) -> None:
        model.add_pending()
        for each in model.held_out.values():
            if not each.rows:
                continue
            rows, each.rows = torch.cat(each.rows), []
            is_trained = torch.isin(rows, model.trained)
            shared = int((is_trained & ~torch.isin(rows, each.clean)).sum())
            each.clean = torch.cat([each.clean, rows[~is_trained]]).unique()[:MAX_SAMPLES]
            if _is_leak(rows, shared, len(model.trained), each.features):
                each.found = NamedEvaluation(each.name, shared, len(rows), each.location, each.loader)


def _sum_of_weights(model: nn.Module) -> Tensor:
    """Return the sum of a few parameters, which every change of the weights changes."""
    sums: list[Tensor] = []
    for parameter in itertools.islice(model.parameters(), 4):
        to_local = getattr(parameter, "to_local", None)  # of a sharded parameter: summing all parts would communicate
        weight = parameter if to_local is None else to_local()
        sums.append(weight.detach().double().sum())
    return torch.stack(sums)


def _is_leak(rows: Tensor, shared: int, trained: int, features: int) -> bool:
    """Return True unless so many common samples are natural, as among inputs with few different values."""
    duplicates = len(rows) - len(rows.unique()) + (features < MIN_FEATURES)
    natural_share = 2 * duplicates * trained / len(rows) ** 2
    share = shared / len(rows)
    enough = shared >= MIN_SHARED or share > 0.5
    return len(rows) >= MIN_SAMPLES and enough and share >= max(MIN_SHARE, 2 * natural_share)


def _held_out_name(value: Any) -> str:
    """Return the name of a variable of the running functions with a value, if all its names say it is held out."""
    names = list(_names(value))
    is_training = any({word.lower() for word in _WORD.findall(name)} & TRAINING_WORDS for name in names)
    return "" if is_training else next(filter(is_held_out_name, names), "")


def _names(value: Any) -> Iterator[str]:
    """Yield the names of the variables, attributes and keys in the running user functions that hold a value.

    The parameters of a function are left out: what they are called says what the function is for, not what it gets.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    count = 0
    while frame is not None and count < MAX_FRAMES:
        if is_user_code(frame.f_code):
            count += 1
            parameters = inspect.getargs(frame.f_code).args
            for name, held in variables(frame).items():
                if name not in parameters and _is_same(held, value):
                    yield name
                elif name == "self" or type(held) is dict:
                    fields: dict[Any, Any] = held if type(held) is dict else getattr(held, "__dict__", {})
                    yield from (str(key) for key, each in list(fields.items())[:64] if _is_same(each, value))
        frame = frame.f_back


def _is_same(held: Any, value: Any) -> bool:
    """Return True if a variable holds a value, or the tensor of which the value is a part."""
    if held is value or not isinstance(value, Tensor) or not isinstance(held, Tensor):
        return held is value and isinstance(value, Tensor | DataLoader)
    if not has_storage(held) or not has_storage(value) or not value.numel():
        return False
    return held.untyped_storage().data_ptr() == value.untyped_storage().data_ptr() and held.ndim >= value.ndim
