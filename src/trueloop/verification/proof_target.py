"""Define `ProofTarget`: the model that proofs examine, how it is trained, and its claimed properties."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, cast

from torch import nn

from trueloop.core.errors import InvalidConfig
from trueloop.core.formatting import did_you_mean


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofTarget:
    """A model and its training loop. Only the model is required; a proof that needs a missing field does not apply."""

    model: nn.Module | Callable[[], nn.Module]
    """The model, which is copied; or a function that creates a new one."""
    loss: Any = None
    """A ``torch.nn`` loss or a function of ``torch.nn.functional`` over ``(inputs, target)`` batches; or a function
    ``(model, batch)`` that returns a mean, ``(sum, count)``, or something with a ``.loss``."""
    batch: Any = None
    """One batch; by default the first batch of the loader."""
    loader: Any = None
    """Training batches as a re-iterable: a DataLoader or a list."""
    val: Any = None
    """Held-out batches as a re-iterable."""
    optimizer: Any = None
    """An optimizer over the model's parameters, which is copied; a class or ``partial`` of a class, called with the
    parameters; or a function of the model. The default is Adam with a learning rate of 1e-3."""
    step: Callable[[nn.Module, Any, list[Any]], Any] | None = None
    """``step(model, optimizer, batches)`` makes ONE update from these micro-batches: your own loop, or a trainer's."""
    save: Callable[[nn.Module, Any], Any] | None = None
    """``save(model, optimizer)`` returns the content of your checkpoint; by default both ``state_dict()``."""
    load: Callable[[nn.Module, Any, Any], Any] | None = None
    """``load(model, optimizer, saved)`` restores what ``save`` returned."""
    inputs: Callable[[Any], Any] | None = None
    """Function from a batch to the model's arguments; only needed without a loss, if batches hold other values too."""
    causal: bool | None = None
    """True: position t must not see later positions. Default: True if the targets are the inputs shifted by one."""
    mask: Any = None
    """Valid positions: a name in the batch, a bool tensor [B, T], or a function of the batch."""
    classes: int | None = None
    """Number of classes; only needed if the loss does not show it."""
    floor: float = 0.0
    """Lowest possible value of the loss."""
    seed: int = 0
    """Seed of all random generators in the proofs."""
    seconds: float = 20.0
    """Time limit of the training in one proof."""

    def __post_init__(self) -> None:
        if not isinstance(self.model, nn.Module) and not callable(self.model):
            raise InvalidConfig(
                f"model is {type(self.model).__name__}, neither a module nor a function that creates one.",
                fix="Pass an nn.Module, or a function without arguments that returns a new one.",
            )
        if (self.save is None) != (self.load is None):
            raise InvalidConfig("save and load go together.", fix="Pass both, or neither.")
        for name in ("loader", "val"):
            batches = getattr(self, name)
            if batches is not None and (not hasattr(batches, "__iter__") or hasattr(batches, "__next__")):
                raise InvalidConfig(
                    f"{name} is {type(batches).__name__}, which cannot be read more than once.",
                    why=f"Every proof reads {name} from the beginning.",
                    fix="Pass the DataLoader itself, or a list of batches.",
                )

    @classmethod
    def from_user(cls, value: Any) -> ProofTarget:
        """Return a target from the result of a user's ``build()``: a target, a mapping of its fields, or a model.

        Raises:
            InvalidConfig: the value is none of these, or has an unknown field.
        """
        if isinstance(value, ProofTarget):
            return value
        if isinstance(value, nn.Module) or (callable(value) and not isinstance(value, type)):
            return cls(model=cast("Any", value))
        if not isinstance(value, Mapping):
            raise InvalidConfig(
                f"{type(value).__name__} cannot be verified.",
                fix="Return trueloop.verify.ProofTarget(model=..., loss=..., batch=...), or a dict of these.",
            )
        values = cast("Mapping[str, Any]", value)
        check_field_names(values, "A ProofTarget")
        if "model" not in values:
            raise InvalidConfig("The ProofTarget has no model.", fix="Add model=..., a module or a function.")
        return cls(**values)


def field_names() -> tuple[str, ...]:
    """Return the names of the fields of a target."""
    return tuple(field.name for field in fields(ProofTarget))


def check_field_names(values: Mapping[str, Any], receiver: str, also: tuple[str, ...] = ()) -> None:
    """Check that all names are fields of a target.

    Args:
        values: values by name.
        receiver: name of the function or class that receives the values, for the error message.
        also: further valid names.

    Raises:
        InvalidConfig: a name is unknown; the message names the closest valid name.
    """
    valid_names = (*field_names(), *also)
    for name in values:
        if name not in valid_names:
            hint = did_you_mean(name, valid_names)
            raise InvalidConfig(f"{receiver} has no {name!r}.", fix=f"{hint}Valid names are {', '.join(valid_names)}.")
