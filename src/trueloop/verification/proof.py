"""Define `Proof` and run it: measure its time, and catch the errors of the user's code."""

import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from trueloop.core.errors import TrueloopError
from trueloop.verification.evidence import Evidence, NotApplicable, NotJudged, Verdict
from trueloop.verification.model_snapshot import ModelSnapshot
from trueloop.verification.proof_context import ProofContext
from trueloop.verification.rng_state import rng_state_preserved, seed_all

_INTERNAL_PATHS = (Path(__file__).parents[1], Path(torch.__file__).parent)

Group = Literal["model", "gradients", "training", "data"]
GROUPS: tuple[Group, ...] = ("model", "gradients", "training", "data")


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """One property with the function that proves it."""

    title: str
    """The property: "Overfits one batch"."""
    group: Group
    prove: Callable[..., Evidence]
    """Function that receives a `ProofContext` and keyword-only options, and returns the evidence."""
    timed: bool = False
    """True if the proof measures time: only then, modules of torch.compile run compiled, otherwise eagerly."""
    name: str = ""
    """Name of the proof: the stem of its file with "-" for "_", set by `discover`."""

    @property
    def doc(self) -> str:
        """First line of the docstring of ``prove``."""
        return (inspect.getdoc(self.prove) or "").partition("\n")[0]

    @property
    def options(self) -> tuple[str, ...]:
        """Names of the options of ``prove``."""
        parameters = inspect.signature(self.prove).parameters.values()
        return tuple(parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY)


def run_proof(proof: Proof, context: ProofContext, options: Mapping[str, Any] | None = None) -> Evidence:
    """Prove one property, then restore the user's model and every random generator.

    Args:
        proof: the proof to run.
        context: context of the target.
        options: options of this proof.

    Raises:
        TrueloopError: the target is inconsistent: loss and batch, or optimizer and model, do not fit together.
    """
    snapshot = ModelSnapshot(context.original)
    started = context.clock()
    try:
        with rng_state_preserved(context.loaders), torch.enable_grad(), nullcontext() if proof.timed else _eager_mode():
            seed_all(context.target.seed)
            evidence = _prove_safely(proof, context, options or {})
    finally:
        changed = snapshot.restore()
    if changed:
        evidence = Evidence(
            verdict=Verdict.NOT_JUDGED,
            message=f"The loss or step function changed the original model ({', '.join(changed[:3])}) instead of the "
            "model that it received as an argument. The original model was restored.",
            fix="Use the model and the optimizer that the function receives, not those of an enclosing scope.",
        )
    return replace(evidence, proof=proof.name, title=proof.title, seconds=context.clock() - started)


def _eager_mode() -> AbstractContextManager[None]:
    """Run compiled modules eagerly: a compiled graph supports only one backward pass and one dtype."""
    if "torch._dynamo" not in sys.modules:  # nothing was compiled
        return nullcontext()
    return torch.compiler.set_stance("force_eager")


def _prove_safely(proof: Proof, context: ProofContext, options: Mapping[str, Any]) -> Evidence:
    try:
        return proof.prove(context, **options)
    except NotApplicable as reason:
        return Evidence(verdict=Verdict.NOT_APPLICABLE, message=str(reason))
    except NotJudged as reason:
        return Evidence(verdict=Verdict.NOT_JUDGED, message=str(reason))
    except TrueloopError:
        raise
    except Exception as error:  # noqa: BLE001 - the user's code may raise anything; the error is reported
        text = " ".join(str(error).split())[:300].rstrip(".")
        return Evidence(
            verdict=Verdict.NOT_JUDGED,
            message=f"Your code raised {type(error).__name__}: {text}{_user_location(error)}.",
            fix="Fix this error first: it occurred on a copy of your model with your batch.",
        )


def _user_location(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    user_frames = [
        frame
        for frame in frames
        if not any(Path(frame.filename).is_relative_to(internal_path) for internal_path in _INTERNAL_PATHS)
    ]
    return f" ({user_frames[-1].filename}:{user_frames[-1].lineno})" if user_frames else ""
