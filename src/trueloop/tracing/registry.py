"""Assigns a `Ref` to each object of the program, without keeping the object in memory."""

import sys
import weakref
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any, Final

from torch import Tensor, nn

from trueloop.core.findings import CodePosition
from trueloop.tracing.events import NO_REFS, Ref, Refs
from trueloop.tracing.frame_variables import variables
from trueloop.tracing.user_location import is_user_code

MAX_OBJECTS: Final = 10_000  # number of inspected variables and modules


def enclosing_modules(part: nn.Module, frame: FrameType | None = None) -> Iterator[nn.Module]:
    """Yield the modules in variables of user frames that contain another module.

    Args:
        part: the module that is being called.
        frame: the search starts here and continues in the callers; None = the frame that calls this.

    Cost: 0.1 us for each variable and each module, up to 2 ms, so this is done once for each module.
    """
    seen, left = {id(part)}, MAX_OBJECTS
    for _, value in frame_values(frame or sys._getframe(1)):  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        left -= 1
        if left <= 0:
            return
        # Not isinstance, which would unwrap proxies.
        if issubclass(type(value), nn.Module) and id(value) not in seen:
            seen.add(id(value))
            for each in value.modules():
                left -= 1
                if each is part:
                    yield value
                    break


def frame_values(frame: FrameType | None) -> Iterator[tuple[str, Any]]:
    """Yield the variables of a frame and of the frames around it, of user code only, with their names."""
    while frame is not None:
        if is_user_code(frame.f_code):
            yield from list(variables(frame).items())
        frame = frame.f_back


MAX_SETS: Final = 256  # cached sets of refs
MAX_REGISTRATIONS: Final = 100_000  # parameters


class Registry:
    """One `Ref` for each existing object; a new object at the same memory address gets a new `Ref`."""

    def __init__(self) -> None:
        self._refs: dict[int, tuple[weakref.ref[Any], Ref]] = {}
        self._sets: dict[tuple[int, ...], tuple[tuple[Ref, ...], Refs]] = {}
        """Ids of objects, in order -> their refs in the same order, and as a set."""
        self._sets_with: dict[int, list[tuple[int, ...]]] = {}
        """Id of an object -> keys of the cached sets that contain it."""
        self._counts: dict[str, int] = {}
        self._stacks: dict[tuple[CodePosition, ...], tuple[CodePosition, ...]] = {}
        """One copy of each stack in `_registered_at`."""
        self._registered_at: dict[int, tuple[CodePosition, ...]] = {}
        """Id of a parameter -> lines that gave it to its module. Not weakly referenced, since ``swap_tensors``, with
        which modules convert some parameters, refuses tensors that are; a new parameter replaces an entry."""

    def reset(self) -> None:
        """Restart the numbering of names."""
        self._counts.clear()
        self._registered_at.clear()
        self._stacks.clear()

    def record_registration(self, parameter: Tensor, lines: tuple[CodePosition, ...]) -> None:
        """Record the user's lines that gave a parameter to its module, innermost first."""
        if len(self._registered_at) < MAX_REGISTRATIONS:
            self._registered_at[id(parameter)] = self._stacks.setdefault(lines, lines)

    def registered_at(self, parameter: Tensor) -> tuple[CodePosition, ...]:
        """Return the user's lines that gave a parameter to its module, innermost first; () = not traced."""
        return self._registered_at.get(id(parameter), ())

    def ref(self, value: Any, name: str = "") -> Ref:
        """Return the ref of an object; the first call names it.

        Args:
            value: any object that can be weakly referenced.
            name: name for messages; "" = class name, with a number from the second object of a class on.
        """
        known = self._refs.get(id(value))
        if known is not None and known[0]() is value:
            return known[1]
        return self._add(value, name)

    def transfer(self, ref: Ref, before: int, value: Any) -> None:
        """Give a ref to the object that the program has computed in place of an earlier one.

        Args:
            ref: the ref of the earlier object, which gets a new one if it is still used.
            before: id of the earlier object, which may be freed.
            value: the new object.
        """
        if before in self._refs and self._refs[before][1] is ref:
            self._remove(before)
        if id(value) in self._refs:
            self._remove(id(value))
        self._add(value, ref.name, ref)

    def _remove(self, key: int) -> None:
        del self._refs[key]
        self._registered_at.pop(key, None)
        for ids in self._sets_with.pop(key, ()):
            self._sets.pop(ids, None)
            for other in set(ids):
                if other in self._sets_with:
                    self._sets_with[other].remove(ids)

    def _add(self, value: Any, name: str, own: Ref | None = None) -> Ref:
        key, refs = id(value), self._refs

        def forget(dead: weakref.ref[Any]) -> None:
            if key in refs and refs[key][0] is dead:
                self._remove(key)

        ref = own or Ref(
            type(value).__name__, name or self._numbered(type(value).__name__), self._registered_at.get(key, ())
        )
        refs[key] = (weakref.ref(value, forget), ref)
        return ref

    def refs(self, values: Iterable[Any]) -> Refs:
        """Return the refs of some objects, mostly as the same set object whenever the objects are the same.

        Cost: 0.3 us, and 0.05 us for each object; the first time 1 us for each object.
        """
        return self.ordered_refs(values)[1]

    def ordered_refs(self, values: Iterable[Any]) -> tuple[tuple[Ref, ...], Refs]:
        """Return the refs of some objects in order, and as the set that `refs` returns. Cost: as `refs`."""
        values = values if type(values) is list else list(values)
        if not values:
            return (), NO_REFS
        key = tuple(map(id, values))
        known = self._sets.get(key)  # an entry is removed as soon as one of its objects is freed
        if known is None:
            if len(self._sets) >= MAX_SETS:  # a mixture of experts has other sets at every update
                self._sets.clear()
                self._sets_with.clear()
            refs = tuple(map(self.ref, values))
            known = self._sets[key] = refs, frozenset(refs)
            for each in set(key):
                self._sets_with.setdefault(each, []).append(key)
        return known

    def name_parameters(self, model: nn.Module) -> None:
        """Name the parameters of a model by their path in the model, or in an enclosing model of the program."""
        own_ids = {id(parameter) for parameter in model.parameters()}
        for module in (model, *enclosing_modules(model)):
            for name, parameter in module.named_parameters(remove_duplicate=False):
                if id(parameter) in own_ids:
                    own = self.ref(parameter, name)
                    if own.name.count(".") < name.count(".") or own.name.startswith(own.kind):
                        own.name = name

    def parameter_ref(self, tensor: Tensor) -> Ref:
        """Return the ref of a parameter, named "Parameter 10x4" if it has no name yet."""
        known = self._refs.get(id(tensor))
        if known is not None and known[0]() is tensor:
            return known[1]
        return self.ref(tensor, f"{type(tensor).__name__} {'x'.join(map(str, tensor.shape)) or 'scalar'}")

    def _numbered(self, kind: str) -> str:
        self._counts[kind] = count = self._counts.get(kind, 0) + 1
        return kind if count == 1 else f"{kind} {count}"
