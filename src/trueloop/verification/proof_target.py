"""What is to be proved on: a model, how it is trained, and what it claims to be."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, cast

from torch import nn

from trueloop.core.errors import InvalidConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofTarget:
    """A model and its loop. Only the model is needed; a proof that wants more than is there does not apply."""

    model: nn.Module | Callable[[], nn.Module]
    """The model, of which copies are taken; or a function that makes a new one."""
    loss: Any = None
    """A ``torch.nn`` loss or a function of ``torch.nn.functional`` over ``(inputs, target)`` batches; or a function
    ``(model, batch)`` that returns a mean, ``(sum, count)``, or something with a ``.loss``."""
    batch: Any = None
    """One batch; by default the first of the loader."""
    loader: Any = None
    """Training batches, as often as it is asked: a DataLoader or a list."""
    val: Any = None
    """Held-out batches, likewise."""
    optimizer: Any = None
    """An optimizer over the model's parameters, of which copies are taken; a class or ``partial`` of one, called with
    the parameters; or a function of the model. By default Adam with a rate of 1e-3."""
    step: Callable[[nn.Module, Any, list[Any]], Any] | None = None
    """``step(model, optimizer, batches)`` makes ONE update from these micro-batches: your own loop, or a trainer's."""
    save: Callable[[nn.Module, Any], Any] | None = None
    """``save(model, optimizer)`` returns what your checkpoint holds; by default both ``state_dict()``."""
    load: Callable[[nn.Module, Any, Any], Any] | None = None
    """``load(model, optimizer, saved)`` puts it back."""
    inputs: Callable[[Any], Any] | None = None
    """From a batch to what the model is called with; needed only without a loss, for a batch that holds more."""
    causal: bool | None = None
    """True: position t may not see later ones. By default so where the targets are the inputs, one further on."""
    mask: Any = None
    """Which positions count: a name in the batch, a tensor [B, T] of true and false, or a function of the batch."""
    classes: int | None = None
    """Number of classes, where the loss does not tell."""
    floor: float = 0.0
    """The lowest value that the loss can have."""
    seed: int = 0
    """Of everything random in the proofs."""
    seconds: float = 20.0
    """How long one proof may train."""

    def __post_init__(self) -> None:
        if not isinstance(self.model, nn.Module) and not callable(self.model):
            raise InvalidConfig(
                f"model is {type(self.model).__name__}, neither a module nor a function that makes one.",
                fix="Give an nn.Module, or a function without arguments that returns a new one.",
            )
        if (self.save is None) != (self.load is None):
            raise InvalidConfig("save and load go together.", fix="Give both, or neither.")
        for name in ("loader", "val"):
            given = getattr(self, name)
            if given is not None and (not hasattr(given, "__iter__") or hasattr(given, "__next__")):
                raise InvalidConfig(
                    f"{name} is {type(given).__name__}, which cannot be read more than once.",
                    why="Every proof reads it from its beginning.",
                    fix="Give the DataLoader itself, or a list of batches.",
                )

    @classmethod
    def from_user(cls, given: Any) -> ProofTarget:
        """Return a subject from what a user's ``build()`` gave: a subject, a mapping of its fields, or a bare model.

        Raises:
            InvalidConfig: it is none of these, or names a field that there is not.
        """
        if isinstance(given, ProofTarget):
            return given
        if isinstance(given, nn.Module) or (callable(given) and not isinstance(given, type)):
            return cls(model=cast("Any", given))
        if not isinstance(given, Mapping):
            raise InvalidConfig(
                f"{type(given).__name__} is nothing that can be verified.",
                fix="Return trueloop.verify.Subject(model=..., loss=..., batch=...), or a dict of these.",
            )
        words = cast("Mapping[str, Any]", given)
        check_field_names(words, "A subject")
        if "model" not in words:
            raise InvalidConfig("The subject has no model.", fix="Add model=..., a module or a function.")
        return cls(**words)


def field_names() -> tuple[str, ...]:
    """Return what a subject consists of."""
    return tuple(field.name for field in fields(ProofTarget))


def check_field_names(words: Mapping[str, Any], who: str, also: tuple[str, ...] = ()) -> None:
    """Refuse words that are no field of a subject.

    Args:
        words: by name.
        who: takes them, for the message.
        also: further names that are right.

    Raises:
        InvalidConfig: one that there is not, with the nearest that there is.
    """
    known = (*field_names(), *also)
    for word in words:
        if word not in known:
            close = difflib.get_close_matches(word, known, n=1)
            hint = f"Did you mean {close[0]}? " if close else ""
            raise InvalidConfig(f"{who} has no {word!r}.", fix=f"{hint}There are {', '.join(known)}.")
