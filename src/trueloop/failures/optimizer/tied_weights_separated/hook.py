"""Records which modules share a parameter, and which of them got another one."""

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import torch
from torch import nn

from trueloop.core.findings import CodePosition
from trueloop.failures.optimizer.tied_weights_separated import TieBroken
from trueloop.tracing.attach import Hook
from trueloop.tracing.events import Event
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import user_location
from trueloop.tracing.weak_id_dict import WeakIdDict

MAX_TIES: Final = 64
_Owner = tuple[weakref.ref[nn.Module], str]


@dataclass(slots=True)
class _Tie:
    """Two modules that shared a parameter."""

    owners: tuple[_Owner, _Owner]
    tied_at: CodePosition | None
    broken_at: CodePosition | None = None

    def parameters(self) -> list[Any]:
        """Return the parameters that the two modules have now."""
        modules = [(owner(), name) for owner, name in self.owners]
        return [module._parameters.get(name) for module, name in modules if module is not None]  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


class TiedWeights(Hook):
    """Emits `TieBroken`. Cost: 1 us for each parameter that a module gets."""

    emits: ClassVar[tuple[type[Event], ...]] = (TieBroken,)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream, self._program = stream, program
        self._owners = WeakIdDict[nn.Parameter, _Owner]()
        self._ties: list[_Tie] = []
        self._record = stream.isolated("tied weights", self._on_registered)
        self._check = stream.isolated("tied weights", self._on_backward)

    def install_always(self, patches: Patches) -> None:
        """Replace the method that sets each parameter of a module."""
        self._owners, self._ties = WeakIdDict[nn.Parameter, _Owner](), []
        patches.replace(nn.Module, "register_parameter", self._replacement)

    def _replacement(self, original: Callable[..., None]) -> Callable[..., None]:
        def register_parameter(module: nn.Module, name: str, param: Any) -> None:
            original(module, name, param)
            if self._stream.active and param is not None:
                self._record(module, name, param)

        return register_parameter

    def _on_registered(self, module: nn.Module, name: str, parameter: nn.Parameter) -> None:
        for tie in self._ties:
            if any(owner() is module and name == each for owner, each in tie.owners):
                tie.broken_at = user_location()
                if len(self._ties) <= MAX_TIES and self._check not in self._program.before_backward:
                    self._program.before_backward.append(self._check)
        owner = self._owners.get(parameter)
        first = owner and owner[0]()
        if owner is None or first is None:
            self._owners.put(parameter, (weakref.ref(module), name))
        elif first is not module and first._parameters.get(owner[1]) is parameter:  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
            self._ties.append(_Tie((owner, (weakref.ref(module), name)), user_location()))

    def _on_backward(self) -> None:
        self._program.before_backward.remove(self._check)
        for tie in [each for each in self._ties if each.broken_at is not None]:
            pair = tie.parameters()
            self._ties.remove(tie)
            if len(pair) != 2 or any(each is None for each in pair) or pair[0] is pair[1]:
                continue
            if pair[0].shape == pair[1].shape and not torch.equal(pair[0], pair[1]):
                names = [f"{type(owner()).__name__}.{name}" for owner, name in tie.owners]
                self._stream.emit(TieBroken(location=tie.broken_at, names=(names[0], names[1]), tied_at=tie.tied_at))


HOOK: Final = TiedWeights
