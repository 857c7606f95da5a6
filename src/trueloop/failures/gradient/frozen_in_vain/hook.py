"""Traces attributes that were set to freeze modules or parameters, but have no effect."""

from typing import Final

from torch import Tensor, nn

from trueloop.failures.gradient.frozen_in_vain import FreezeAttribute, IneffectiveFreeze
from trueloop.failures.gradient.frozen_in_vain.attribute_readers import (
    MISSPELLINGS,
    REQUIRES_GRAD,
    find_assignment,
    is_read_in_program,
    uses_attribute,
)
from trueloop.tracing.attach import Hook
from trueloop.tracing.events import ModelCalled
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.stream import EventStream
from trueloop.tracing.weak_id_dict import WeakIdDict

ATTRIBUTES: Final = MISSPELLINGS | {REQUIRES_GRAD}


class IneffectiveFreezes(Hook):
    """Emits `IneffectiveFreeze`; checks trained models after each new optimizer, or as long as freezing has no effect.

    Cost: 1 us for each module and parameter. If one has such an attribute, its class is parsed, and if the class does
    not use the attribute, the source code of the program is parsed too, once.
    """

    emits = (IneffectiveFreeze,)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream, self._program = stream, program
        self._checked = WeakIdDict[nn.Module, tuple[int, tuple[FreezeAttribute, ...]]]()
        """Model -> number of known optimizers at its latest check, and the attributes that were found."""
        self._check = stream.isolated_inner("attributes that freeze", self._check_model)
        program.on_model_called.append(self._on_model_called)

    def install_always(self, patches: Patches) -> None:
        """Forget earlier watches."""
        self._checked.clear()

    def _on_model_called(self, event: ModelCalled) -> None:
        if event.has_graph and not event.all_eval and not event.recomputed:
            optimizers, found = self._checked.get(event.live_module) or (0, ())  # without an optimizer none is trained
            if found or optimizers != self._program.optimizers_seen:
                self._check(event, found)

    def _check_model(self, event: ModelCalled, before: tuple[FreezeAttribute, ...]) -> None:
        attributes = self._find_ineffective(event.live_module)
        self._checked.put(event.live_module, (self._program.optimizers_seen, attributes))
        if attributes != before:
            self._stream.emit(IneffectiveFreeze(location=event.location, model=event.model, attributes=attributes))

    def _find_ineffective(self, model: nn.Module) -> tuple[FreezeAttribute, ...]:
        """Return attributes named like ``requires_grad`` that no code reads and that contradict the actual setting.

        An attribute that the module's own class uses, or that other code may read, may have a purpose and is left out.
        """
        found: dict[tuple[str, bool, bool], tuple[list[str], list[Tensor]]] = {}
        reported: list[str] = []
        for name, module in model.named_modules():
            if any(not parent or name.startswith(f"{parent}.") for parent in reported):
                continue
            for attribute, value in _freeze_attributes(module):
                own: list[Tensor] = list(module.parameters())
                contradicts = own and all(each.requires_grad is not value for each in own)
                if contradicts and not uses_attribute(type(module), attribute):
                    reported.append(name)
                    names, parameters = found.setdefault((attribute, value, True), ([], []))
                    names.append(name)
                    parameters += own
        for name, parameter in model.named_parameters():
            for attribute, value in _freeze_attributes(parameter):
                if parameter.requires_grad is not value and not uses_attribute(type(parameter), attribute):
                    names, parameters = found.setdefault((attribute, value, False), ([], []))
                    names.append(name)
                    parameters.append(parameter)
        return tuple(
            FreezeAttribute(
                attribute,
                value,
                tuple(names),
                on_modules,
                self._stream.registry.refs(parameters),
                find_assignment(attribute, value),
            )
            for (attribute, value, on_modules), (names, parameters) in found.items()
            if not is_read_in_program(attribute, of_modules=on_modules)
        )


def _freeze_attributes(owner: nn.Module | Tensor) -> list[tuple[str, bool]]:
    own = vars(owner)
    if not own or own.keys().isdisjoint(ATTRIBUTES):
        return []
    return [
        (attribute, own[attribute]) for attribute in sorted(ATTRIBUTES & own.keys()) if isinstance(own[attribute], bool)
    ]


HOOK: Final = IneffectiveFreezes
