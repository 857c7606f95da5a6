"""Defines the records of an error that PyTorch raised: its tensors, its context and its explanation."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from trueloop.core.findings import SourceLocation

_OPERATION = re.compile(r"^\w+: ")


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorDescription:
    """A tensor that took part in the operation that failed."""

    expression: str
    """Expression in the failing line: "x", "self.weight"; "" = none."""
    shape: tuple[int, ...]
    dtype: str
    """"float32"."""
    device: str
    """"cuda:0"."""
    requires_grad: bool = False
    grad_fn: str = ""
    """"ReluBackward0"; "" = none."""
    module_role: str = ""
    """Role of the tensor in its module: "parameter", "buffer", "attribute" (which ``.to()`` does not move)."""
    name: str = ""
    """Parameter name in the model: "encoder.0.weight"."""
    created_at: SourceLocation | None = None
    """User line that created the tensor or loaded it from a loader; None if it is not certain."""
    created_by: str = ""
    """Outermost call of the line that created the tensor: "detach"; "for" = loop variable; "" = anything else."""
    argument_name: str = ""
    """Name of the argument in the failing operation: "input", "target"."""
    version: int = 0
    """Number of in-place changes."""

    @property
    def display_name(self) -> str:
        """Name for messages: "`x`", "`fc.weight`", "the input", "a tensor"."""
        name = self.name or self.expression
        return f"`{name}`" if name else f"the {self.argument_name}" if self.argument_name.isidentifier() else "a tensor"

    @property
    def shape_text(self) -> str:
        """Shape for messages: "(32, 256)"."""
        return str(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleDescription:
    """The innermost module whose ``forward`` was running."""

    class_name: str
    """"Linear"."""
    path: str
    """Path of the module in the model: "encoder.0"; "" = the model itself."""
    model_class: str
    """Class name of the model."""
    int_attributes: Mapping[str, int]
    """Integer attributes of the module, such as in_features and num_embeddings."""
    created_at: SourceLocation | None = None

    def __str__(self) -> str:
        return f"`{self.path}` ({self.class_name} of {self.model_class})" if self.path else f"the {self.class_name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentEvents:
    """Traced events before the error; None = unknown."""

    update: int = 0
    last_backward: SourceLocation | None = None
    """Line of the latest ``backward()`` that returned."""
    last_step: SourceLocation | None = None
    """Line of the latest optimizer step."""
    step_after_forward: bool = False
    """The latest step came after the latest forward pass."""
    forward_after_backward: bool = False
    """A model was called after the latest backward pass."""
    grad_mode: bool | None = None
    """False = every forward pass since the latest backward pass ran with gradients disabled."""
    inference_mode: bool = False
    last_forward: SourceLocation | None = None
    """Line of the latest forward pass."""
    frozen_model: str = ""
    """Class name of a model if no parameter of any called model requires a gradient; otherwise ""."""
    found_codes: frozenset[str] = frozenset()
    """Codes of the failures found in this run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RaisedError:
    """An error that PyTorch raised, without references to objects of the program."""

    type: str
    message: str
    location: SourceLocation | None
    """Innermost user line of the traceback."""
    causes: tuple[str, ...] = ()
    """Messages of this error and of the errors it was raised from, for built-in exception types."""
    pytorch_files: tuple[str, ...] = ()
    """PyTorch files in the traceback, outermost first: "utils/data/dataloader.py"."""
    tensors: tuple[TensorDescription, ...] = ()
    """Tensor arguments of the failing operation."""
    backward_roots: tuple[TensorDescription, ...] = ()
    """Tensors that the backward pass started from."""
    running_module: ModuleDescription | None = None
    inplace_operations: tuple[SourceLocation, ...] = ()
    """In-place operations in the functions of the traceback and in the ``forward`` methods of models."""
    inplace_modules: tuple[str, ...] = ()
    """Modules with ``inplace=True``: "relu1 (ReLU)"."""
    leaves: tuple[TensorDescription, ...] = ()
    """Parameters and other leaves that the backward pass would have reached."""
    freed_graph: str = ""
    """Part of the graph that an earlier backward pass freed: "same" = all, from the same root; "all"; "part"; "" = none
    or unknown."""
    freed_operation: str = ""
    """Operation at the end of the freed part: "TanhBackward0"."""
    recent: RecentEvents = field(default_factory=RecentEvents)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The meaning and the fix of one error."""

    meaning: str
    """Description of the problem with the numbers of this error."""
    fix: str
    """Description of the change that fixes this error."""
    tensor: TensorDescription | None = None
    """The tensor that causes the error."""
    related: tuple[tuple[SourceLocation, str], ...] = ()
    """Other relevant lines with a label each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownError:
    """One kind of error that PyTorch raises, defined by a file in ``failures/pytorch_errors``."""

    title: str
    exception_types: frozenset[str]
    message_patterns: tuple[str, ...]
    """Regular expressions; one of them matches at the start of the message."""
    explain: Callable[[RaisedError, re.Match[str]], Explanation | None]
    """Function that explains an error; it returns None if the error is of another kind."""

    def match(self, message: str) -> re.Match[str] | None:
        """Return the match of a pattern with the message, with or without the operation that newer versions prepend.

        Args:
            message: full message of PyTorch: "addmm: mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)".
        """
        without_operation = _OPERATION.sub("", message, count=1)
        candidates = ((text, each) for text in self.message_patterns for each in (message, without_operation))
        return next((result for text, each in candidates if (result := re.match(text, each, re.DOTALL))), None)
