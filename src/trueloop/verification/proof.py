"""Defines `Proof` and runs it, measuring its time and catching errors of the verified code."""

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
    """One property, and how it is proved."""

    title: str
    """The property: "Overfits one batch"."""
    group: Group
    prove: Callable[..., Evidence]
    """Of a `Bench`, and keyword-only options of its own."""
    timed: bool = False
    """True where it measures time, so compiled modules run compiled; for other proofs they run eagerly."""
    name: str = ""
    """Name of the file with hyphens, set by `discover`."""

    @property
    def doc(self) -> str:
        """First line of the docstring of ``prove``."""
        return (inspect.getdoc(self.prove) or "").partition("\n")[0]

    @property
    def options(self) -> tuple[str, ...]:
        """Names of the options of ``prove``."""
        parameters = inspect.signature(self.prove).parameters.values()
        return tuple(each.name for each in parameters if each.kind is each.KEYWORD_ONLY)


def run_proof(proof: Proof, context: ProofContext, options: Mapping[str, Any] | None = None) -> Evidence:
    """Prove one property, then restore the user's model and every random generator.

    Args:
        proof: the proof to run.
        context: context of the target.
        options: options of this proof.

    Raises:
        TrueloopError: the target is inconsistent: loss and batch, or optimizer and model, do not fit.
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
            message=f"The loss or step changed the original model ({', '.join(changed[:3])}), not the one that "
            "it was called with; the original was restored.",
            fix="Use the model and the optimizer that are passed in, not ones from outside.",
        )
    return replace(evidence, proof=proof.name, title=proof.title, seconds=context.clock() - started)


def _eager_mode() -> AbstractContextManager[None]:
    """Run compiled modules eagerly: a compiled graph supports only one backward and one dtype."""
    if "torch._dynamo" not in sys.modules:  # nothing was compiled
        return nullcontext()
    return torch.compiler.set_stance("force_eager")


def _prove_safely(proof: Proof, context: ProofContext, options: Mapping[str, Any]) -> Evidence:
    try:
        return proof.prove(context, **options)
    except NotApplicable as why:
        return Evidence(verdict=Verdict.NOT_APPLICABLE, message=str(why))
    except NotJudged as why:
        return Evidence(verdict=Verdict.NOT_JUDGED, message=str(why))
    except TrueloopError:
        raise
    except Exception as error:  # noqa: BLE001 - the verified code may raise anything; the error is reported
        text = " ".join(str(error).split())[:300].rstrip(".")
        return Evidence(
            verdict=Verdict.NOT_JUDGED,
            message=f"The verified code raised {type(error).__name__}: {text}{_user_location(error)}.",
            fix="Fix this error first: it occurred on a copy of your model with your batch.",
        )


def _user_location(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [
        frame for frame in frames if not any(Path(frame.filename).is_relative_to(each) for each in _INTERNAL_PATHS)
    ]
    return f" ({theirs[-1].filename}:{theirs[-1].lineno})" if theirs else ""
