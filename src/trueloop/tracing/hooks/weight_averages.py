"""Finds averages of the trained weights that a program keeps, and what becomes of them.

An average is a model, or a dictionary of tensors, with the names and shapes of the trained parameters, which moves
towards them by the same share after each update. It is searched in the variables of the program and their attributes.
"""

import sys
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from types import FrameType
from typing import Any, ClassVar, Final, cast

import torch
from torch import Tensor, nn

from trueloop.core.findings import CodePosition
from trueloop.tracing.attach import Hook
from trueloop.tracing.events import AverageKept, CheckpointWritten, Event, ModelCalled, OptimizerCreated, StateLoaded
from trueloop.tracing.gradients import parameters_of
from trueloop.tracing.hooks.states import tensors_in_state
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.registry import frame_values
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import user_location

SEARCHED_FROM: Final = (4, 24, 96)
"""Numbers of updates at which averages are searched; averaging may begin after a warm-up."""
SCANS: Final = 8  # updates; a GAN makes two of them for each move of the average
MAX_SEARCHES: Final = 16
MIN_LENGTH: Final = 0.3  # of the begin of an average, compared with the trained weights
MAX_SIMILARITY: Final = 0.4  # cosine of an average and the trained weights that began elsewhere
MAX_VARIABLES: Final = 2000
COMPARED: Final = 48  # values of each matrix
MATRICES: Final = 3
MAX_RESIDUAL: Final = 0.02  # of the move of an average
MIN_UPDATES_AFTER: Final = 12
MAX_CALLS_SHARE: Final = 0.25  # of the updates; a teacher or target network is called in each one

_Values = dict[str, Tensor]


@dataclass(slots=True)
class _Candidate:
    """Tensors like the trained ones, by name, found as a variable or an attribute."""

    name: str
    owner: weakref.ref[Any] | None
    """The object with the attribute, or the model; None = a variable."""
    values: _Values
    share: float = 0.0
    """By how much it moved towards the trained weights after the latest update; 0 = it did not."""


@dataclass(slots=True)
class _Average:
    """An average that the program keeps."""

    name: str
    owner: weakref.ref[Any] | None
    model: weakref.ref[nn.Module]
    share: float
    found_at_update: int
    found_at: CodePosition | None
    is_constant: bool = False
    """Whether the share stays the same."""
    used: bool = False
    called: int = 0
    """Number of updates after which the averaged model was called."""
    called_at: int = -1
    evaluated: int = 0
    """Number of calls of the trained model without a graph."""
    applied_at: int = -1
    """Number of updates when the trained model was evaluated with the averaged weights."""
    applied_line: CodePosition | None = None
    kept: int = 0
    """How often training continued from the averaged weights."""


class WeightAverages(Hook):
    """Emits `AverageKept`.

    Cost: 0.5 us for each backward pass; 1 ms for each of 24 searches; with an average 20 us for each call of a model
    without a graph.
    """

    emits: ClassVar[tuple[type[Event], ...]] = (AverageKept,)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream, self._program = stream, program
        self._candidates: dict[str, _Candidate] = {}
        self._averages: list[_Average] = []
        self._searched_from = [*SEARCHED_FROM]
        """Numbers of updates at which a search begins: also some updates after a new optimizer."""
        self._search = stream.isolated("averages of weights", self._on_backward)
        self._call = stream.isolated_inner("averages of weights", self._on_model_called)
        self._state = stream.isolated_inner("averages of weights", self._on_state)
        program.on_model_called.append(self._call)
        stream.on_detach.append(stream.isolated("averages of weights", self._on_end))

    def install_always(self, patches: Patches) -> None:
        """Forget earlier watches, and receive backward passes and saved states."""
        self._candidates, self._averages, self._searched_from = {}, [], [*SEARCHED_FROM]
        self._program.before_backward.append(self._before_backward)
        patches.add_undo(lambda: self._stream.unsubscribe(self._state))
        self._stream.subscribe(self._state, CheckpointWritten, StateLoaded, OptimizerCreated)

    def _before_backward(self) -> None:
        if self._averages or self._stream.update < max(self._searched_from) + SCANS:
            self._search()

    # Search ------------------------------------------------------------------------------------------------------

    def _on_backward(self) -> None:
        for average in self._averages:
            self._check_restored(average)
        if not any(first <= self._stream.update < first + SCANS for first in self._searched_from):
            return
        frame = sys._getframe(2)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        for model, trained in self._trained_models():
            found = {each.name: each for each in _find_like(frame, model, trained)}
            for name, candidate in list(found.items()):
                earlier = self._candidates.get(name)
                if earlier is not None and _are_equal(earlier.values, candidate.values):  # another model was trained
                    found[name] = earlier
                    continue
                candidate.share = 0.0 if earlier is None else _share(earlier.values, candidate.values, trained)
                if earlier is not None and earlier.share and candidate.share:
                    self._add(candidate, model, trained, earlier.share)
            self._candidates.update(found)

    def _add(self, candidate: _Candidate, model: nn.Module, trained: _Values, earlier_share: float) -> None:
        if any(each.name == candidate.name and each.model() is model for each in self._averages):
            return
        average = _Average(
            candidate.name, candidate.owner, weakref.ref(model), candidate.share, self._stream.update, user_location()
        )
        self._averages.append(average)
        is_constant = average.is_constant = (
            abs(candidate.share - earlier_share) < 1e-3 * candidate.share
        )  # not a warm-up
        self._emit(average, "found", share=candidate.share if is_constant else 0.0)
        mixed = 1 - (1 - candidate.share) ** (SEARCHED_FROM[0] + 2)  # of the trained weights, since the first update
        begin = {name: each - mixed * trained[name] for name, each in candidate.values.items()}
        owner = candidate.owner and candidate.owner()
        called = self._program.models.get(owner) if isinstance(owner, nn.Module) else None
        is_teacher = called is not None and called[1] == self._stream.update  # called between two updates
        if not is_teacher and _similarity(begin, trained) < MAX_SIMILARITY:
            self._emit(average, "unrelated", share=candidate.share)

    def _trained_models(self) -> list[tuple[nn.Module, _Values]]:
        trained = {id(each) for o in self._program.training_optimizers() for each in parameters_of(o)}
        models: list[tuple[nn.Module, _Values]] = []
        for model, _ in list(self._program.models.items()):
            named = {name: each for name, each in model.named_parameters() if each.ndim > 1}
            if named and all(id(each) in trained for each in named.values()):
                models.append((model, _read(dict(islice(named.items(), MATRICES)))))
        return models

    # Use ---------------------------------------------------------------------------------------------------------

    def _on_model_called(self, event: ModelCalled) -> None:
        for average in self._averages:
            if event.live_module is not average.model():
                owner = average.owner and average.owner()
                own = list(owner.modules())[:64] if isinstance(owner, nn.Module) else [owner]
                if any(event.live_module is each for each in own):
                    average.called += average.called_at != self._stream.update
                    average.used, average.called_at = True, self._stream.update
            elif not event.has_graph and not event.recomputed:
                average.evaluated += 1
                if self._has_averaged_weights(average):
                    average.used, average.applied_at, average.applied_line = True, self._stream.update, event.location

    def _check_restored(self, average: _Average) -> None:
        """Check, before the first backward pass after an evaluation with averaged weights, that they were restored."""
        if average.applied_at != self._stream.update:
            return
        average.applied_at = -1
        if self._has_averaged_weights(average):
            average.kept += 1
            self._emit(average, "not restored")

    def _on_state(self, event: Any) -> None:
        """Record that the averaged weights are saved, or loaded into a model; search again after a new optimizer."""
        if isinstance(event, OptimizerCreated):
            if self._stream.update and len(self._searched_from) < MAX_SEARCHES:
                self._searched_from.append(self._stream.update + SEARCHED_FROM[0])
            return
        for average in self._averages:
            values = self._values_of(average)
            tensors = event.live_parameters.values() if isinstance(event, StateLoaded) else ()
            if isinstance(event, CheckpointWritten):
                tensors = tensors_in_state(event.live_content)
            average.used |= values is None or _contains(tensors, values)

    def _on_end(self) -> None:
        for average in self._averages:
            is_long = self._stream.update >= average.found_at_update + MIN_UPDATES_AFTER
            if not average.used and average.evaluated and is_long:
                self._emit(average, "unused")
            is_evaluated = average.evaluated or 0 < average.called <= MAX_CALLS_SHARE * self._stream.update
            if average.used and is_evaluated and average.is_constant:
                self._emit(average, "used", average.share)

    def _has_averaged_weights(self, average: _Average) -> bool:
        model, values = average.model(), self._values_of(average)
        if model is None or not values:
            return False
        own = _read({name: each for name, each in model.named_parameters() if name in values})
        return own.keys() == values.keys() and all(torch.equal(own[name], values[name]) for name in values)

    def _values_of(self, average: _Average) -> _Values | None:
        """Return the values of an average; None if it no longer exists or cannot be found."""
        model = average.model()
        if model is None:
            return None
        names = [name for name, each in model.named_parameters() if each.ndim > 1][:MATRICES]
        owner = average.owner and average.owner()
        attribute = average.name.rpartition(".")[2]
        if (
            isinstance(owner, nn.Module)
            and average.owner is not None
            and not isinstance(vars(owner).get(attribute), dict)
        ):
            holder: Any = owner
        elif average.owner is not None:
            holder = getattr(owner, "__dict__", {}).get(attribute)
        else:
            frame = sys._getframe(1)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
            holder = next((value for name, value in frame_values(frame) if name == average.name), None)
        found = _tensors(holder, names)
        return _read(found) if found else None

    def _emit(self, average: _Average, what: str, share: float = 0.0) -> None:
        owner = average.owner and average.owner()
        self._stream.emit(
            AverageKept(
                location=average.applied_line or average.found_at,
                name=average.name,
                what=what,
                share=share,
                times=average.kept,
                module=self._stream.registry.ref(owner) if isinstance(owner, nn.Module) else None,
            )
        )


def _find_like(frame: FrameType | None, model: nn.Module, trained: _Values) -> Iterator[_Candidate]:
    """Yield what has the names and shapes of trained parameters, but is not the model itself."""
    own = {id(each) for each in model.parameters()}
    for name, owner, value in _holders(frame):
        found = _tensors(value, list(trained))
        if found and not any(id(each) in own for each in found.values()):
            values = _read(found)
            if all(values[key].shape == trained[key].shape for key in trained):
                reference = value if isinstance(value, nn.Module) else owner
                yield _Candidate(name, None if reference is None else weakref.ref(reference), values)


def _holders(frame: FrameType | None) -> Iterator[tuple[str, Any, Any]]:
    """Yield modules and dictionaries in variables of the program and attributes of its objects, with their owners."""
    for name, value in islice(frame_values(frame), MAX_VARIABLES):
        if type(value) is dict or issubclass(type(value), nn.Module):
            yield name, None, value
        if type(value).__module__.partition(".")[0] in ("torch", "numpy", "builtins"):
            continue
        for attribute, item in list(getattr(value, "__dict__", {}).items())[:64]:
            if type(item) is dict or issubclass(type(item), nn.Module):
                yield f"{name}.{attribute}", value, item
            elif hasattr(item, "__dict__") and type(item).__module__ == type(value).__module__:
                for inner, each in list(vars(item).items())[:64]:
                    if type(each) is dict or issubclass(type(each), nn.Module):
                        yield f"{name}.{attribute}.{inner}", item, each


def _tensors(holder: Any, names: Iterable[str]) -> dict[str, Tensor]:
    """Return the tensors with these names in a module or dictionary; {} if one is missing."""
    if issubclass(type(holder), nn.Module):
        own: Mapping[Any, Any] = dict(holder.named_parameters())
        inner = {name.removeprefix("module."): each for name, each in own.items()}
        own = own if all(name in own for name in names) else inner
    else:
        own = cast("Mapping[Any, Any]", holder) if type(holder) is dict else {}
    found = {name: own.get(name) for name in names}
    return cast("dict[str, Tensor]", found) if all(isinstance(each, Tensor) for each in found.values()) else {}


def _read(tensors: Mapping[str, Tensor]) -> _Values:
    return {name: each.detach().flatten()[:COMPARED].float().clone() for name, each in tensors.items()}


def _share(before: _Values, after: _Values, trained: _Values) -> float:
    """Return by which share of the distance values moved towards the trained ones; 0 if they moved otherwise."""
    move = torch.cat([after[name] - before[name] for name in trained])
    distance = torch.cat([trained[name] - before[name] for name in trained])
    square, length = float(distance @ distance), float(move.norm())
    if not square or not length:
        return 0.0
    share = float(move @ distance) / square
    residual = float((move - share * distance).norm()) / length
    return share if residual < MAX_RESIDUAL and 1e-5 < share < 0.99999 else 0.0


def _are_equal(one: _Values, other: _Values) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def _similarity(values: _Values, trained: _Values) -> float:
    """Return the cosine between the begin of an average and the trained weights; 1 for a begin at zero."""
    one, other = (torch.cat([each[name] for name in trained]) for each in (values, trained))
    if one.norm() < MIN_LENGTH * other.norm():
        return 1.0
    return float(one @ other / (one.norm() * other.norm()).clamp(min=1e-30))


def _contains(tensors: Iterable[Tensor], values: _Values) -> bool:
    wanted = next(iter(values.values()))
    return any(
        each.is_floating_point()
        and each.numel() >= len(wanted)
        and torch.equal(each.detach().flatten()[:COMPARED].float(), wanted)
        for each in tensors
    )
