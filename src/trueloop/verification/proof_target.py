"""Defines the target of proofs: a model, how it is trained, and its claimed properties."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, cast

from torch import nn

from trueloop.core.errors import InvalidConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofTarget:
    """A model and its training loop. Only the model is required; proofs that need more do not apply."""

    model: nn.Module | Callable[[], nn.Module]
    """The model, which is copied; or a function that creates a new one."""
    loss: Any = None
    """A ``torch.nn`` loss or a function of ``torch.nn.functional`` over ``(inputs, target)`` batches; or a function
    ``(model, batch)`` that returns a mean, ``(sum, count)``, or something with a ``.loss``."""
    batch: Any = None
    """One batch; by default the first of the loader."""
    loader: Any = None
    """Training batches as a re-iterable: a DataLoader or a list."""
    val: Any = None
    """Held-out batches as a re-iterable."""
    optimizer: Any = None
    """An optimizer over the model's parameters, which is copied; a class or ``partial`` of one, called with
    the parameters; or a function of the model. By default Adam with a rate of 1e-3."""
    step: Callable[[nn.Module, Any, list[Any]], Any] | None = None
    """``step(model, optimizer, batches)`` makes ONE update from these micro-batches: your own loop, or a trainer's."""
    save: Callable[[nn.Module, Any], Any] | None = None
    """``save(model, optimizer)`` returns the content of your checkpoint; by default both ``state_dict()``."""
    load: Callable[[nn.Module, Any, Any], Any] | None = None
    """``load(model, optimizer, saved)`` restores it."""
    inputs: Callable[[Any], Any] | None = None
    """Maps a batch to the model's arguments; needed only without a loss, for batches that hold more."""
    causal: bool | None = None
    """True: position t must not see later ones. Default: True where the targets are the inputs shifted by one."""
    mask: Any = None
    """Valid positions: a name in the batch, a bool tensor [B, T], or a function of the batch."""
    classes: int | None = None
    """Number of classes, where the loss does not show it."""
    floor: float = 0.0
    """Lowest possible loss."""
    seed: int = 0
    """Seed of all random generators in the proofs."""
    seconds: float = 20.0
    """Time limit of the training in one proof."""

    def __post_init__(self) -> None:
        if not isinstance(self.model, nn.Module) and not callable(self.model):
            raise InvalidConfig(
                f"model is {type(self.model).__name__}, neither a module nor a function that creates one.",
                fix="Give an nn.Module, or a function without arguments that returns a new one.",
            )
        if (self.save is None) != (self.load is None):
            raise InvalidConfig("save and load go together.", fix="Give both, or neither.")
        for name in ("loader", "val"):
            given = getattr(self, name)
            if given is not None and (not hasattr(given, "__iter__") or hasattr(given, "__next__")):
                raise InvalidConfig(
                    f"{name} is {type(given).__name__}, which cannot be read more than once.",
                    why="Every proof reads it from the beginning.",
                    fix="Give the DataLoader itself, or a list of batches.",
                )

    @classmethod
    def from_user(cls, given: Any) -> ProofTarget:
        """Return a target from the result of a user's ``build()``: a target, a mapping of its fields, or a model.

        Raises:
            InvalidConfig: it is none of these, or has an unknown field.
        """
        if isinstance(given, ProofTarget):
            return given
        if isinstance(given, nn.Module) or (callable(given) and not isinstance(given, type)):
            return cls(model=cast("Any", given))
        if not isinstance(given, Mapping):
            raise InvalidConfig(
                f"{type(given).__name__} cannot be verified.",
                fix="Return trueloop.verify.ProofTarget(model=..., loss=..., batch=...), or a dict of these.",
            )
        words = cast("Mapping[str, Any]", given)
        check_field_names(words, "A ProofTarget")
        if "model" not in words:
            raise InvalidConfig("The ProofTarget has no model.", fix="Add model=..., a module or a function.")
        return cls(**words)


def field_names() -> tuple[str, ...]:
    """Return the names of the fields of a target."""
    return tuple(field.name for field in fields(ProofTarget))


def check_field_names(words: Mapping[str, Any], who: str, also: tuple[str, ...] = ()) -> None:
    """Check that all names are fields of a target.

    Args:
        words: values by name.
        who: receiver of the fields, for the message.
        also: further valid names.

    Raises:
        InvalidConfig: a name is unknown; names the closest.
    """
    known = (*field_names(), *also)
    for word in words:
        if word not in known:
            close = difflib.get_close_matches(word, known, n=1)
            hint = f"Did you mean {close[0]}? " if close else ""
            raise InvalidConfig(f"{who} has no {word!r}.", fix=f"{hint}There are {', '.join(known)}.")
