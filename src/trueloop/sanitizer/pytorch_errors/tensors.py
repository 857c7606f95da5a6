"""Describes the tensors and modules of a failed call, with the lines that created them."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from torch import Tensor, nn

from trueloop.core.findings import SourceLocation
from trueloop.failures.pytorch_error import ModuleDescription, TensorDescription
from trueloop.sanitizer.pytorch_errors.bindings import attribute, binding
from trueloop.sanitizer.pytorch_errors.frames import Frame, stored_attribute
from trueloop.tracing.user_location import is_user_code

MAX_MODULES: Final = 10_000  # modules of a model that are searched


class Describer:
    """Describes objects of a traceback.

    Args:
        frames: frames of the traceback, outermost first.
        models: models that were called in this run.
    """

    def __init__(self, frames: Sequence[Frame], models: Iterable[nn.Module]) -> None:
        self._user_frames = [frame for frame in frames if frame.in_user_code]
        self.chain = [(frame, own) for frame in frames if (own := own_module(frame)) is not None]
        running = [self.chain[0][1]] if self.chain else []
        self.models = [*running, *(model for model in models if all(model is not each for each in running))]
        self._paths = {id(own): (model, path) for model in reversed(self.models) for path, own in _tensors(model)}

    def tensor(self, tensor: Tensor, *, text: str = "", role: str = "", holder: Any = None) -> TensorDescription:
        """Describe a tensor.

        Args:
            tensor: the tensor.
            text: expression of the tensor in the user's line.
            role: name of the argument in PyTorch.
            holder: module that owns the tensor, if known.
        """
        model, path = self._model_and_name(tensor)
        name = ".".join(part for part in (self._variable_name(model), path) if part) if model is not None else ""
        attribute_of = role.rpartition(".")[2] or text.rpartition(".")[2]
        location, creator = self._find_origin(tensor)
        if location is None and model is not None:
            location = self._find_line(path, model)
        elif location is None and holder is not None:
            location = self._find_assignment(holder, attribute_of)
        return TensorDescription(
            expression=text,
            name=name,
            argument_name=role,
            shape=tuple(map(int, tensor.shape)),
            created_at=location,
            created_by=creator,
            dtype=str(tensor.dtype).removeprefix("torch."),
            device=str(tensor.device),
            requires_grad=tensor.requires_grad,
            grad_fn=tensor.grad_fn.name() if tensor.grad_fn is not None else "",
            module_role=_storage_kind(holder, attribute_of),
            version=0 if tensor.is_inference() else tensor._version,  # noqa: SLF001
        )

    def module(self) -> ModuleDescription | None:
        """Describe the innermost module whose method was running."""
        if not self.chain:
            return None
        innermost = self.chain[-1][1]
        for _, model in self.chain:
            path = next((path for path, module in modules(model) if module is innermost), None)
            if path is not None:
                is_pytorch = type(innermost).__module__.startswith("torch.")
                numbers = {
                    name: value for name, value in vars(innermost).items() if type(value) is int and name[0] != "_"
                }
                return ModuleDescription(
                    class_name=type(innermost).__name__, path=path, model_class=type(model).__name__,
                    int_attributes=numbers if is_pytorch else {}, created_at=self._find_line(path, model),
                )  # fmt: skip
        return None

    def _find_origin(self, tensor: Any) -> tuple[SourceLocation | None, str]:
        """Return the line of a running user function that created an object, and the name of the call."""
        for frame in reversed(self._user_frames):
            line = frame.location.line
            for name, value in frame.locals.items():
                found = binding(frame.code, line, name) if value is tensor else None
                if found is not None and not found.alias:
                    return frame.location._replace(line=found.line), found.made_by
        return None, ""

    def _find_line(self, path: str, model: nn.Module) -> SourceLocation | None:
        """Return the line that created a module or tensor of a model, or else the nearest enclosing module."""
        names, holders = path.split(".") if path else [], [model]
        for name in names[:-1]:
            holders.append(stored_attribute(holders[-1], name))
        for holder, name in zip(reversed(holders), reversed(names), strict=True) if names else ():
            if (location := self._find_assignment(holder, name)) is not None:
                return location
        return self._find_origin(model)[0]

    def _find_assignment(self, holder: Any, name: str) -> SourceLocation | None:
        for kind in type(holder).__mro__:
            code = getattr(vars(kind).get("__init__"), "__code__", None)
            if code is not None and is_user_code(code) and (location := attribute(code, name)) is not None:
                return location
        return None

    def _model_and_name(self, tensor: Tensor) -> tuple[nn.Module | None, str]:
        """Return the model that owns a parameter or buffer, and its name in the model."""
        return self._paths.get(id(tensor), (None, ""))

    def _variable_name(self, model: nn.Module) -> str:
        """Return the name of the user's variable for a model, if there are several models, else ""."""
        if len(self.models) > 1:
            for frame in self._user_frames:
                for name, value in frame.locals.items():
                    if value is model and name != "self":
                        return name
        return ""


def own_module(frame: Frame) -> nn.Module | None:
    """Return the module whose method a frame runs."""
    code = frame.code
    first = frame.locals.get(code.co_varnames[0]) if code.co_argcount else None
    return first if issubclass(type(first), nn.Module) else None


def modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield a module and its submodules with their paths, without calling any of their methods."""
    pending, seen = [("", model)], set[int]()
    while pending and len(seen) < MAX_MODULES:
        path, module = pending.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        yield path, module
        children = vars(module).get("_modules", {})
        pending += [
            (f"{path}.{name}" if path else name, child)
            for name, child in reversed(children.items())
            if issubclass(type(child), nn.Module)
        ]


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the parameters and buffers of a model with their names."""
    for path, module in modules(model):
        stored = vars(module)
        for kind in ("_parameters", "_buffers"):
            for name, tensor in stored.get(kind, {}).items():
                if tensor is not None:
                    yield f"{path}.{name}" if path else name, tensor


def _storage_kind(holder: Any, name: str) -> str:
    if not issubclass(type(holder), nn.Module):
        return ""
    stored = vars(holder)
    for kind, description in (("_parameters", "parameter"), ("_buffers", "buffer")):
        if name in stored.get(kind, {}):
            return description
    return "attribute" if name in stored else ""
