"""Traces states that are loaded, saved to files and read from them."""

import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Final, Literal, NamedTuple, cast

import torch
import torch.optim.lr_scheduler as schedulers
from torch import Tensor, nn
from torch.optim import Optimizer

from trueloop.tracing.attach import Hook
from trueloop.tracing.events import CheckpointRead, CheckpointWritten, Event, Ref, StateDictMatch, StateLoaded
from trueloop.tracing.hooks.optimizers import has_state
from trueloop.tracing.parameter_snapshot import first_values
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import user_location
from trueloop.tracing.weak_id_dict import WeakIdDict

_UNPICKLED: Final = cast("Any", torch.storage)._load_from_bytes.__code__  # noqa: SLF001
"""Code by which pickle reads a tensor that is not in a file, as when ranks exchange objects."""
StateKind = Literal["model", "optimizer", "scheduler", "scaler"]

MAX_DEPTH: Final = 4  # levels of dictionaries and lists in a checkpoint
MAX_VALUES: Final = 1000  # tensors of a file whose values are compared with those of a model
MAX_ITEMS: Final = 20_000  # items of a checkpoint that are inspected
FIRST_REQUESTS: Final = 4  # number of loaded states after which full tracing is requested in any case
UPDATES_PER_REQUEST: Final = 300  # updates after which it is requested for one more loaded state


_Values = tuple[torch.Size, tuple[float, ...]]


class _ReadState(NamedTuple):
    """The state of a model that was read from a file."""

    file: Ref
    update: int
    keys: tuple[str, ...]
    values: frozenset[_Values]
    """The shape and the first values of its tensors, as far as these values differ."""


class States(Hook):
    """Replaces ``load_state_dict``, ``torch.save`` and ``torch.load``."""

    emits: ClassVar[tuple[type[Event], ...]] = (CheckpointRead, CheckpointWritten, StateLoaded)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream, self._program = stream, program
        self._files = WeakIdDict[Tensor, Ref]()
        """Tensor that was read from a file -> the file."""
        self._read: _ReadState | None = None
        """The newest state of a model that was read and not loaded."""
        self._local = threading.local()
        self._requests, self._first_update = 0, 0

    def install_always(self, patches: Patches) -> None:
        """Replace all functions, since calls of them are rare."""
        self._requests, self._first_update, self._read = 0, self._stream.update, None
        patches.replace(nn.Module, "load_state_dict", self._replace_load_state_dict("model"))
        patches.replace(Optimizer, "load_state_dict", self._replace_load_state_dict("optimizer"))
        patches.replace(torch.amp.GradScaler, "load_state_dict", self._replace_load_state_dict("scaler"))
        for each in vars(schedulers).values():
            if isinstance(each, type) and issubclass(each, schedulers.LRScheduler) and "load_state_dict" in vars(each):
                patches.replace(each, "load_state_dict", self._replace_load_state_dict("scheduler"))
        for module in (torch, torch.serialization):
            patches.replace(module, "save", self._replace_save)
            patches.replace(module, "load", self._replace_load)

    # Replacements ------------------------------------------------------------------------------------------------

    def _replace_load_state_dict(self, what: StateKind) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        stream, local = self._stream, self._local
        after = stream.isolated("loaded states", self._on_loaded)

        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def load_state_dict(target: Any, *args: Any, **options: Any) -> Any:
                if not stream.active or getattr(local, "inside", False):
                    return original(target, *args, **options)
                state = args[0] if args else options.get("state_dict")
                local.inside = True
                try:
                    result = original(target, *args, **options)
                finally:
                    local.inside = False
                after(what, target, state, result)
                return result

            return load_state_dict

        return make

    def _replace_save(self, original: Callable[..., Any]) -> Callable[..., Any]:
        stream, local = self._stream, self._local
        report_saved = stream.isolated("saved checkpoints", self._on_saved)

        def save(obj: Any, f: Any, *args: Any, **options: Any) -> Any:
            if not stream.active or getattr(local, "inside", False):
                return original(obj, f, *args, **options)
            report_saved(obj, f)
            local.inside = True
            try:
                return original(obj, f, *args, **options)
            finally:
                local.inside = False

        return save

    def _replace_load(self, original: Callable[..., Any]) -> Callable[..., Any]:
        stream, local = self._stream, self._local
        report_read = stream.isolated("read checkpoints", self._on_read)

        def load(f: Any, *args: Any, **options: Any) -> Any:
            if not stream.active or getattr(local, "inside", False) or sys._getframe(1).f_code is _UNPICKLED:  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
                return original(f, *args, **options)
            local.inside = True
            try:
                content = original(f, *args, **options)
            finally:
                local.inside = False
            report_read(f, content, options.get("weights_only"))
            return content

        return load

    # Events -----------------------------------------------------------------------------------------------

    def _on_loaded(self, what: StateKind, target: Any, state: Any, result: Any) -> None:
        file = None
        for tensor in tensors_in_state(state) if self._files else ():
            file = self._files.get(tensor)
            if file is not None:
                break
        match = _key_match(state, result) if what == "model" else None
        if file is not None and self._read is not None and self._read.file is file:
            self._read = None
        elif what == "model" and self._read is not None and self._read.update == self._stream.update:
            match = match or _unused_match(self._read, target, state)
        self._stream.emit(StateLoaded(
            location=user_location(), target=self._stream.registry.ref(target), what=what, file=file,
            name_match=match, rates=_scheduled_rates(target) if what == "optimizer" else None,
            live_parameters={
                self._stream.registry.ref(each): each for each in (target.parameters() if what == "model" else ())
            },
        ))  # fmt: skip
        if self._requests < FIRST_REQUESTS + (self._stream.update - self._first_update) // UPDATES_PER_REQUEST:
            self._requests += 1
            self._stream.request_full_tracing()

    def _on_saved(self, obj: Any, file: Any) -> None:
        states = list(_states(obj))
        holds = {kind for kind, _ in states}
        empty = [_group_settings(state) for kind, state in states if kind == "optimizer" and not state["state"]]
        self._stream.emit(CheckpointWritten(
            location=user_location(), path=_path(file), holds_model="model" in holds,
            holds_optimizer="optimizer" in holds, live_content=obj,
            unstepped=frozenset(
                self._stream.registry.ref(optimizer)
                for optimizer, state in (self._program.optimizers.items() if empty else ())
                if not state.steps and has_state(optimizer) and _group_settings(optimizer) in empty
            ),
        ))  # fmt: skip

    def _on_read(self, file: Any, content: Any, weights_only: bool | None) -> None:
        path = _path(file)
        ref = Ref("file", os.path.basename(path) or type(file).__name__)  # noqa: PTH119
        states = list(_states(content))
        for _, state in states:
            for _, tensor in sample_tensors(state):
                self._files.put(tensor, ref)
        holds = {kind for kind, _ in states}
        weights = next((state for kind, state in states if kind == "model" and isinstance(state, Mapping)), None)
        if weights is not None:
            self._read = _ReadState(ref, self._stream.update, tuple(weights), _values_of(weights))
        self._stream.emit(CheckpointRead(
            location=user_location(), path=path, file=ref, weights_only=weights_only, holds_model="model" in holds,
            holds_optimizer="optimizer" in holds,
            scheduler_steps=max((_steps_of(state) for kind, state in states if kind == "scheduler"), default=0),
        ))  # fmt: skip


def _steps_of(scheduler_state: Mapping[str, Any]) -> int:
    steps = scheduler_state.get("last_epoch")
    return steps if isinstance(steps, int) else 0


def _group_settings(optimizer: Any) -> list[Any]:
    """Return the settings of each parameter group of an optimizer or its state, and the number of its parameters."""
    groups = optimizer["param_groups"] if isinstance(optimizer, Mapping) else optimizer.param_groups
    return [
        (len(group["params"]), sorted((key, str(value)) for key, value in group.items() if key != "params"))
        for group in groups
    ]


def _scheduled_rates(optimizer: Optimizer) -> tuple[float, float] | None:
    groups = [each for each in optimizer.param_groups if isinstance(each.get("initial_lr"), float)]
    rates = [(each["initial_lr"], each["lr"]) for each in groups if isinstance(each["lr"], float)]
    return max(rates, default=None)


def _key_match(state: Any, result: Any) -> StateDictMatch | None:
    """Return the key match of a state that does not fit; None if it fits. With ``strict=True`` PyTorch raises."""
    missing, unexpected = getattr(result, "missing_keys", None), getattr(result, "unexpected_keys", None)
    if not isinstance(missing, list) or not isinstance(unexpected, list) or not isinstance(state, Mapping):
        return None
    model_only, state_only = cast("list[str]", missing), cast("list[str]", unexpected)
    state_count = len(cast("Mapping[Any, Any]", state))
    if not state_only or not model_only:
        return None
    matched = state_count - len(state_only)
    return StateDictMatch(
        state_count,
        len(model_only) + matched,
        matched,
        *(("", "") if matched else (state_only[0], _similar_key(state_only[0], model_only))),
    )


def _unused_match(read: _ReadState, model: nn.Module, state: Any) -> StateDictMatch | None:
    """Return how the keys in a file match those of a model that got nothing of it; None if it may have got some.

    This is so if all loaded tensors are those of the model itself, or there are none, and no value in the file is equal
    to one in the model.
    """
    own: dict[str, Tensor] = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    if not own or not read.values or not isinstance(state, Mapping) or not set(own).isdisjoint(read.keys):
        return None
    for name, tensor in cast("Mapping[Any, Any]", state).items():
        if name not in own or not isinstance(tensor, Tensor) or tensor.data_ptr() != own[name].data_ptr():
            return None
    if not _values_of(own) or not read.values.isdisjoint(_values_of(own)):
        return None
    keys = read.keys
    return StateDictMatch(len(keys), len(own), 0, keys[0], _similar_key(keys[0], list(own)), read.file.name)


def _values_of(state: Mapping[str, Tensor]) -> frozenset[_Values]:
    found = ((each.shape, first_values(each)) for each in itertools.islice(state.values(), MAX_VALUES))
    return frozenset(each for each in found if len(set(each[1])) > 1)


def _similar_key(name: str, others: list[str]) -> str:
    """Return the first other name that has the same end as a name; the first of all if there is none."""
    return next((each for each in others if name.endswith(each) or each.endswith(name)), others[0])


def _path(file: Any) -> str:
    name = os.fspath(file) if isinstance(file, str | os.PathLike) else getattr(file, "name", "")
    return os.path.abspath(name) if isinstance(name, str) and name else ""  # noqa: PTH100


def sample_tensors(state: Any) -> list[tuple[str, Tensor]]:
    """Return a few tensors from the start and the end of a state: enough to recognise the state, or a part of it."""
    if not isinstance(state, Mapping):
        found = [("", tensor) for tensor in tensors_in_state(state)]
    elif "param_groups" in state:
        found = [("", tensor) for tensor in tensors_in_state(state["state"])]
    else:
        pairs = cast("Mapping[Any, Any]", state).items()
        found = [(str(key), value) for key, value in pairs if type(value) is Tensor and value.is_floating_point()]
    return found if len(found) <= 4 else [*found[:2], *found[-2:]]


def tensors_in_state(tree: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested dictionaries and lists."""
    for part in _walk(tree):
        if isinstance(part, Tensor):
            yield part


def _walk(tree: Any) -> Iterator[Any]:
    """Yield an object and the items of nested dictionaries and lists in it, at most `MAX_ITEMS`."""
    pending, seen = [(tree, MAX_DEPTH)], 0
    while pending and seen < MAX_ITEMS:
        part, left = pending.pop()
        seen += 1
        yield part
        if left and isinstance(part, Mapping):
            pending.extend((value, left - 1) for value in cast("Mapping[Any, Any]", part).values())
        elif left and type(part) in (list, tuple):
            pending.extend((value, left - 1) for value in part[:MAX_ITEMS])


def _states(tree: Any) -> Iterator[tuple[StateKind, Any]]:
    """Yield the states in a checkpoint, recognised by their keys, each with its kind."""
    for part in _walk(tree):
        if isinstance(part, nn.Module):
            yield "model", part
        if not isinstance(part, Mapping) or not part:
            continue
        if "param_groups" in part and "state" in part:
            yield "optimizer", part
        elif ("last_epoch" in part and "base_lrs" in part) or "num_bad_epochs" in part:
            yield "scheduler", part
        elif all(isinstance(k, str) and isinstance(v, Tensor) for k, v in cast("Mapping[Any, Any]", part).items()):
            yield "model", part
