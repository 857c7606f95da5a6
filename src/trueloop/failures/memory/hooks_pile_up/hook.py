"""Traces hooks of modules that are registered again and again."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

from torch import nn

from trueloop.failures.memory.hooks_pile_up import REGISTER_METHODS, HookRegistered
from trueloop.tracing.attach import Hook
from trueloop.tracing.events import Event
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import is_user_code, user_location

HOOKS: Final = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class HookRegistrations(Hook):
    """Emits `HookRegistered` if a module has hooks of the same function already."""

    emits: ClassVar[tuple[type[Event], ...]] = (HookRegistered,)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream = stream
        self._report = stream.isolated("hooks of modules", self._on_registered)

    def install_always(self, patches: Patches) -> None:
        """Replace the methods that register hooks; calls of them are rare."""
        for name in sorted(REGISTER_METHODS):
            patches.replace(nn.Module, name, self._replacement)

    def _replacement(self, original: Callable[..., Any]) -> Callable[..., Any]:
        stream, report = self._stream, self._report

        def register(module: nn.Module, hook: Any, *args: Any, **options: Any) -> Any:
            handle = original(module, hook, *args, **options)
            if stream.active:
                report(module, hook)
            return handle

        return register

    def _on_registered(self, module: nn.Module, hook: Any) -> None:
        code = _code(hook)
        if code is None or not is_user_code(code):
            return
        present: list[Mapping[int, Any]] = [vars(module).get(name) or {} for name in HOOKS]
        count = max(sum(_code(each) is code for each in hooks.values()) for hooks in present)
        if count > 1:
            self._stream.emit(HookRegistered(
                location=user_location(), module=self._stream.registry.ref(module), name=code.co_name, count=count,
            ))  # fmt: skip


def _code(hook: Any) -> Any:
    """Return the code of a function, a method, or what `functools.partial` calls; None for other objects."""
    function = getattr(hook, "func", hook)
    return getattr(getattr(function, "__func__", function), "__code__", None)


HOOK: Final = HookRegistrations
