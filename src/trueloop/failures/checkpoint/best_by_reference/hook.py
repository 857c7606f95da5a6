"""Traces state dictionaries of models from their creation to their use."""

import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple, cast

import torch
from torch import Tensor, nn

from trueloop.core.findings import CodePosition
from trueloop.failures.checkpoint.best_by_reference import StateDictUsed
from trueloop.tracing.attach import Hook
from trueloop.tracing.events import CheckpointWritten, Event
from trueloop.tracing.gradients import parameters_of
from trueloop.tracing.hooks.states import sample_tensors, tensors_in_state
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import user_location
from trueloop.tracing.weak_id_dict import WeakIdDict

MAX_LINES: Final = 16  # lines that create state dictionaries of one module
MAX_COLLECTED: Final = 3  # states of one module and line that a program may keep while it creates the next one


class _Tracked(NamedTuple):
    key: str
    tensor: weakref.ref[Tensor]
    version: int | None
    values: tuple[float, ...]
    """The first values of the tensor; empty if it is on a GPU."""


@dataclass(frozen=True, slots=True, eq=False)
class _StateDict:
    module: weakref.ref[nn.Module]
    was_trained: bool
    location: CodePosition | None
    update: int
    tracked: tuple[_Tracked, ...]


class StateDicts(Hook):
    """Emits `StateDictUsed`."""

    emits: ClassVar[tuple[type[Event], ...]] = (StateDictUsed,)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream, self._program = stream, program
        self._created = WeakIdDict[Tensor, _StateDict]()
        """Tensor of a state dictionary -> its `_StateDict`."""
        self._kept_by_program = WeakIdDict[nn.Module, dict[CodePosition | None, _StateDict]]()
        """Module -> line of a ``state_dict()`` -> the latest one that was not just saved or loaded elsewhere."""
        self._latest_by_line = WeakIdDict[nn.Module, dict[CodePosition | None, list[_StateDict]]]()
        """Module -> line of a ``state_dict()`` -> the latest ones that still exist."""
        self._local = threading.local()
        self._report = stream.isolated("uses of state dictionaries", self._on_used)

    def install_always(self, patches: Patches) -> None:
        """Replace ``state_dict`` and ``load_state_dict`` of modules, and listen to ``torch.save``."""
        patches.replace(nn.Module, "state_dict", self._replace_state_dict)
        patches.replace(nn.Module, "load_state_dict", self._replace_load_state_dict)
        self._stream.subscribe(self._on_checkpoint_written, CheckpointWritten)
        patches.add_handle(self)

    def remove(self) -> None:
        """Stop listening; called when the hooks are removed."""
        self._stream.unsubscribe(self._on_checkpoint_written)

    def _on_checkpoint_written(self, event: CheckpointWritten) -> None:
        self._report("saved", event.live_content, None)

    def _replace_state_dict(self, original: Callable[..., Any]) -> Callable[..., Any]:
        stream, local = self._stream, self._local
        remember = stream.isolated("state dictionaries", self._on_created)

        def state_dict(module: Any, *args: Any, **options: Any) -> Any:
            if not stream.active or getattr(local, "inside", False):
                return original(module, *args, **options)
            local.inside = True
            try:
                state = original(module, *args, **options)
            finally:
                local.inside = False
            if not options.get("keep_vars"):
                remember(module, state)
            return state

        return state_dict

    def _replace_load_state_dict(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def load_state_dict(module: Any, *args: Any, **options: Any) -> Any:
            if self._stream.active:
                self._report("loaded", args[0] if args else options.get("state_dict"), module)
            return original(module, *args, **options)

        return load_state_dict

    def _on_created(self, module: nn.Module, state: Any) -> None:
        tensors = sample_tensors(state)
        tracked = tuple(
            _Tracked(key, weakref.ref(tensor), None if tensor.is_inference() else tensor._version, _values(tensor))  # noqa: SLF001
            for key, tensor in tensors
        )
        own = next((own for key, _ in tensors if (own := _parameter(module, key)) is not None), None)
        created = _StateDict(weakref.ref(module), self._has_stepped(own), user_location(), self._stream.update, tracked)
        for _, tensor in tensors:
            self._created.put(tensor, created)
        by_line = self._kept_by_program.get(module) or self._kept_by_program.put(module, {})
        if created.location in by_line or len(by_line) < MAX_LINES:
            by_line[created.location] = created

        self._check_collected(module, created)

    def _check_collected(self, module: nn.Module, created: _StateDict) -> None:
        """Report a state of a line whose earlier states still exist, although all of them are the latest weights."""
        by_line = self._latest_by_line.get(module) or self._latest_by_line.put(module, {})
        if created.location not in by_line and len(by_line) >= MAX_LINES:
            return
        earlier = [each for each in by_line.get(created.location, ()) if _exists(each)]
        kept = [each for each in earlier if each.update < created.update and all(self._compare(each))]
        if len(kept) >= MAX_COLLECTED - 1 and len({each.update for each in kept}) == len(kept):
            first, earlier = kept[0], []
            self._stream.emit(StateDictUsed(
                location=created.location, how="collected", created_at=first.location, created_update=first.update,
                was_trained=True, aliased=True, weights_changed=True, into_itself=False, count=len(kept) + 1,
            ))  # fmt: skip
        by_line[created.location] = [*earlier, created][-MAX_COLLECTED:]

    def _has_stepped(self, parameter: Tensor | None) -> bool:
        return any(
            state.steps and any(each is parameter for each in parameters_of(optimizer))
            for optimizer, state in self._program.optimizers.items()
        )

    def _on_used(self, how: str, state: Any, target: nn.Module | None) -> None:
        reported: list[_StateDict] = []
        for tensor in tensors_in_state(state) if self._created else ():
            created = self._created.get(tensor)
            if created is None or created in reported:
                continue
            reported.append(created)
            aliased, changed = self._compare(created)
            self._emit(how, created, target, aliased=aliased, changed=changed, state=state)
            module = created.module()
            if module is not None and module is not target and not changed:
                by_place = self._latest_by_line.get(module) or {}
                by_place[created.location] = [e for e in by_place.get(created.location, ()) if e is not created]
            if module is not None and module is not target:
                by_line = self._kept_by_program.get(module) or {}
                if by_line.get(created.location) is created:
                    del by_line[created.location]
        if target is not None and not reported:
            self._report_own_memory(target, state)

    def _emit(
        self,
        how: str,
        created: _StateDict,
        target: nn.Module | None,
        *,
        aliased: bool,
        changed: bool,
        state: Any = None,
    ) -> None:
        into_itself = target is not None and target is created.module()
        is_other = target is not None and not into_itself and isinstance(state, Mapping)
        self._stream.emit(StateDictUsed(
            location=user_location(), how=how, created_at=created.location,
            created_update=created.update, was_trained=created.was_trained, aliased=aliased, weights_changed=changed,
            into_itself=into_itself,
            into_alias=is_other and _is_own_memory(cast("nn.Module", target), cast("Mapping[Any, Any]", state)),
        ))  # fmt: skip

    def _report_own_memory(self, target: nn.Module, state: Any) -> None:
        """Report a state that consists of other tensors with the memory of its module, as after ``detach()``."""
        by_line = self._kept_by_program.get(target)
        if (
            not by_line
            or not isinstance(state, Mapping)
            or not _is_own_memory(target, cast("Mapping[Any, Any]", state))
        ):
            return
        if all(_has_changed(target, each) for each in by_line.values()):  # which of them it was made of is not known
            latest = max(by_line.values(), key=lambda each: each.update)
            self._emit("loaded", latest, target, aliased=True, changed=True)

    def _compare(self, created: _StateDict) -> tuple[bool, bool]:
        """Return whether a state shares memory with its module, and whether the module's weights have changed since."""
        module = created.module()
        aliased, changed = [], []
        for key, tensor_ref, version, values in created.tracked:
            tensor, own = tensor_ref(), None if module is None else _parameter(module, key)
            if tensor is None or own is None:
                continue
            aliased.append(_storage_id(tensor) == _storage_id(own))
            # Versions are not reliable: a fused step does not raise them, and loading a state into its own module does.
            version_changed = version is not None and tensor._version != version  # noqa: SLF001
            changed.append(_values(tensor) != values if values else version_changed)
        return bool(aliased) and all(aliased), any(changed)


def _exists(created: _StateDict) -> bool:
    return bool(created.tracked) and all(each.tensor() is not None for each in created.tracked)


def _has_changed(module: nn.Module, created: _StateDict) -> bool:
    """Return True if weights of a module have changed since a state dictionary was made of them."""
    pairs = [(own, each) for each in created.tracked if (own := _parameter(module, each.key)) is not None]
    return any(_values(own) != each.values if each.values else own._version != each.version for own, each in pairs)  # noqa: SLF001


def _is_own_memory(module: nn.Module, state: Mapping[Any, Any]) -> bool:
    """Return True if each parameter in a state has the memory of the module's parameter that it is loaded into."""
    pairs = [(own, value) for key, value in state.items() if (own := _parameter(module, str(key))) is not None]
    return bool(pairs) and all(_address(own) and _address(value) == _address(own) for own, value in pairs)


def _address(tensor: Any) -> int:
    """Return the address of a tensor's first value on a CPU; 0 if it has none."""
    is_plain = type(tensor) in (Tensor, nn.Parameter) and tensor.layout is torch.strided
    return tensor.data_ptr() if is_plain and tensor.device.type == "cpu" else 0


def _storage_id(tensor: Any) -> int:
    return tensor.untyped_storage()._cdata  # noqa: SLF001


def _values(tensor: Tensor) -> tuple[float, ...]:
    return tuple(tensor.reshape(-1)[:16].tolist()) if tensor.device.type == "cpu" else ()


def _parameter(module: nn.Module, key: str) -> Tensor | None:
    """Return a parameter by its key; None for a buffer, which a forward may change, and for an unknown key."""
    owner: Any = module
    *names, last = key.split(".")
    for name in names:
        owner = vars(owner).get("_modules", {}).get(name)
        if not isinstance(owner, nn.Module):
            return None
    return vars(owner).get("_parameters", {}).get(last)


HOOK: Final = StateDicts
