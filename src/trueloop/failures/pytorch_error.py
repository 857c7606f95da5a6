"""An error that torch raised, as far as it can be known once the program has ended with it, and its explanation."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from trueloop.core.findings import SourceLocation

_OPERATION = re.compile(r"^\w+: ")


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorDescription:
    """A tensor that took part in the operation that failed."""

    expression: str
    """How the line that failed calls it: "x", "self.weight"; "" = it has no name there."""
    shape: tuple[int, ...]
    dtype: str
    """"float32"."""
    device: str
    """"cuda:0"."""
    requires_grad: bool = False
    grad_fn: str = ""
    """"ReluBackward0"; "" = none."""
    module_role: str = ""
    """What it is to the module that holds it: "parameter", "buffer", "attribute" (of which ``.to()`` knows nothing)."""
    name: str = ""
    """By which the model calls it: "encoder.0.weight"."""
    created_at: SourceLocation | None = None
    """The user's line that made it, or drew it from a loader; None where it is not certain."""
    created_by: str = ""
    """The outermost call of that line: "detach", "cross_entropy"; "for" = drawn by a loop; "" = anything else."""
    argument_name: str = ""
    """What torch calls it in the operation that failed: "input", "target"."""
    version: int = 0
    """How often it was changed in place."""

    @property
    def display_name(self) -> str:
        """It, for people: "`x`", "`fc.weight`", "the input", "a tensor"."""
        known = self.name or self.expression
        return (
            f"`{known}`" if known else f"the {self.argument_name}" if self.argument_name.isidentifier() else "a tensor"
        )

    @property
    def shape_text(self) -> str:
        """Its shape, for people: "(32, 256)"."""
        return str(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleDescription:
    """The innermost module whose forward was running."""

    class_name: str
    """"Linear"."""
    path: str
    """Within the model: "encoder.0"; "" = it is the model itself."""
    model_class: str
    """The model's class."""
    int_attributes: Mapping[str, int]
    """Its own whole numbers: in_features, num_embeddings ..."""
    created_at: SourceLocation | None = None

    def __str__(self) -> str:
        return f"`{self.path}` ({self.class_name} of {self.model_class})" if self.path else f"the {self.class_name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentEvents:
    """What was seen before, as far as it was watched; None = it was not."""

    update: int = 0
    last_backward: SourceLocation | None = None
    """The line of the latest backward that returned."""
    last_step: SourceLocation | None = None
    """The line of the latest step of an optimizer."""
    step_after_forward: bool = False
    """It came after the latest forward."""
    forward_after_backward: bool = False
    """A model was called after that backward."""
    grad_mode: bool | None = None
    """False = every forward since that backward ran with gradients switched off."""
    inference_mode: bool = False
    last_forward: SourceLocation | None = None
    """The line of the latest forward."""
    frozen_model: str = ""
    """The class of a model, where no parameter of any model that was called requires a gradient."""
    found_codes: frozenset[str] = frozenset()
    """Codes of the failures that were found in this run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RaisedError:
    """An error that came out of torch, without anything of the program's kept alive."""

    type: str
    message: str
    location: SourceLocation | None
    """The innermost line of the user's on the way to it."""
    causes: tuple[str, ...] = ()
    """The messages of the errors it was raised from, and its own, as far as they are Python's own errors."""
    pytorch_files: tuple[str, ...] = ()
    """Files of torch on the way, outermost first: "utils/data/dataloader.py"."""
    tensors: tuple[TensorDescription, ...] = ()
    """What the operation that failed was called with."""
    backward_roots: tuple[TensorDescription, ...] = ()
    """From where a backward started."""
    running_module: ModuleDescription | None = None
    inplace_operations: tuple[SourceLocation, ...] = ()
    """In-place operations in the text of the functions this error came through, and of the forwards of models."""
    inplace_modules: tuple[str, ...] = ()
    """Modules that are set to work in place: "relu1 (ReLU)"."""
    leaves: tuple[TensorDescription, ...] = ()
    """Parameters, and other leaves, that a backward would have reached."""
    freed_graph: str = ""
    """What a backward that returned before has used up of the graph: "same" = all, from the same root; "all"; "part";
    "" = nothing, or not known."""
    freed_operation: str = ""
    """The operation at the end of that part: "TanhBackward0"."""
    recent: RecentEvents = field(default_factory=RecentEvents)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What an entry says of an error."""

    meaning: str
    """What happened, in this case, with its numbers."""
    fix: str
    """What to change, in this case."""
    tensor: TensorDescription | None = None
    """The offending tensor."""
    related: tuple[tuple[SourceLocation, str], ...] = ()
    """Other lines that matter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownError:
    """One kind of error that torch raises, as its file in ``failures/pytorch_errors`` knows it; the file's name."""

    title: str
    exception_types: frozenset[str]
    message_patterns: tuple[str, ...]
    """Regular expressions; one of them matches from where the message begins."""
    explain: Callable[[RaisedError, re.Match[str]], Explanation | None]
    """None = it is not that kind of error after all."""

    def match(self, message: str) -> re.Match[str] | None:
        """Return where one of the texts matches a message, or what follows the operation newer versions of torch name.

        Args:
            message: torch's, as a whole: "addmm: mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)".
        """
        bare = _OPERATION.sub("", message, count=1)
        both = ((text, each) for text in self.message_patterns for each in (message, bare))
        return next((found for text, each in both if (found := re.match(text, each, re.DOTALL))), None)
