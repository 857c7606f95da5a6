"""Traces modules that run within a model without being registered in it."""

import weakref
from collections.abc import Sequence
from typing import Final

from torch import nn

from trueloop.core.findings import CodePosition
from trueloop.failures.model.layer_never_registered import UnregisteredModuleCalled
from trueloop.tracing.attach import Hook
from trueloop.tracing.events import ModelCalled
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import user_location


class UnregisteredModules(Hook):
    """Emits `UnregisteredModuleCalled`."""

    emits = (UnregisteredModuleCalled,)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream, self._program = stream, program
        self._found: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        """Unregistered modules, with those within them."""
        self._pending: list[tuple[weakref.ref[nn.Module], weakref.ref[nn.Module], CodePosition | None, int]] = []
        """Unregistered modules without a gradient so far, each with its model, line and thread number."""
        self._report = stream.isolated_inner("unregistered modules", self._report_pending)
        program.on_model_called.append(self._on_model_called)
        program.on_unknown_submodule.append(stream.isolated_inner("unregistered modules", self._on_submodule))

    def install_always(self, patches: Patches) -> None:
        """Forget earlier watches."""
        self._pending = []
        self._found.clear()

    def _on_submodule(self, root: nn.Module, module: nn.Module) -> None:
        own = list(module.parameters())
        if module in self._found or not own or not module.training:
            return
        registered = set(map(id, root.parameters()))
        if all(id(p) in registered for p in own):
            return
        for inner in module.modules():
            self._found.add(inner)
        self._pending.append((weakref.ref(module), weakref.ref(root), user_location(), self._program.thread_number()))

    def _on_model_called(self, event: ModelCalled) -> None:
        if self._pending and not event.recomputed:
            self._report(event)

    def _report_pending(self, event: ModelCalled) -> None:
        """Report unregistered modules that have gradients; modules that stay random on purpose never have any."""
        pending, self._pending = self._pending, []
        own_thread = self._program.thread_number()  # gradients of other threads must not be read
        for module_ref, root_ref, location, thread in pending:
            module, root = module_ref(), root_ref()
            if module is None or root is None or thread != own_thread:
                continue
            own = list(module.parameters())
            if (self._program.multi_threaded and root is not event.live_module) or all(p.grad is None for p in own):
                self._pending.append((module_ref, root_ref, location, thread))
                continue
            registry = self._stream.registry
            self._stream.emit(
                UnregisteredModuleCalled(
                    location=location,
                    module=registry.ref(module),
                    model=registry.ref(root),
                    parameters=registry.refs(own),
                    trainable=any(p.requires_grad for p in own),
                    created_at=_creation(module, registry.registered_at(own[0])),
                )
            )


def _creation(module: nn.Module, lines: Sequence[CodePosition]) -> CodePosition | None:
    """Return the innermost line that is not in the constructor of the module itself, or of one within it."""
    own = {getattr(type(each).__init__, "__code__", None) for each in module.modules()}
    return next((line for line in lines if line.code not in own), None)


HOOK: Final = UnregisteredModules
