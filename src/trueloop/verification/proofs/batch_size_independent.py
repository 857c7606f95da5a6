"""Evaluation does not depend on the batch size: a sample's output is the same alone, in half and in the full batch.

A ``squeeze()`` that removes a batch dimension of 1, a batch size written into a reshape, or batch statistics in eval
mode make the metric depend on the batch size, which should only affect speed.
"""

# ruff: noqa: N806 - shapes are part of the name: B samples

from torch import Tensor

from trueloop.core.formatting import format_float
from trueloop.verification.batch_tree import batch_size, select_samples
from trueloop.verification.evidence import Evidence, broken, holds
from trueloop.verification.influence import max_difference, per_sample_outputs, to_best_precision
from trueloop.verification.model_call import ModelCall, model_outputs
from trueloop.verification.proof import Proof
from trueloop.verification.proof_context import ProofContext

SIZE_ERRORS = (RuntimeError, ValueError, IndexError, AssertionError)
"""Errors that torch or the user's checks raise if a batch size does not fit."""


def batch_size_independent(context: ProofContext, *, samples: int = 8) -> Evidence:
    """Evaluate a batch as a whole, in parts and sample by sample, and compare the outputs.

    Args:
        context: context of a target with at least two samples per batch, along the first dimension.
        samples: number of samples to check.
    """
    model = context.training_copy().model.eval()
    model_outputs(model, context.call(model, context.batch), context.target.seed)  # the original batch size must work
    try:
        _, call = context.aligned_samples(model, samples, minimum=2)
        exact = to_best_precision(model, call, context.target.seed)
    except SIZE_ERRORS as error:
        return _broken(min(samples, batch_size(context.batch)), 0, _describe_error(error))
    B = batch_size(call.tree)
    full = per_sample_outputs(exact.baseline, B)
    indices = [index for index, leaf in enumerate(exact.baseline) if any(leaf is row for row in full)]
    sizes = sorted({1, 2, (B + 1) // 2, B - 1} - {0, B})
    for size in sizes:
        for start in range(0, B, size):
            count = min(size, B - start)
            part = ModelCall.from_tree(select_samples(exact.call.tree, slice(start, start + count)))
            try:
                outputs = exact.run(part)
            except SIZE_ERRORS as error:
                return _broken(count, start, _describe_error(error))
            actual = [outputs[index] for index in indices if index < len(outputs)]
            expected = [leaf[start : start + count] for leaf in full]
            if problem := _describe_difference(expected, actual, exact.tolerance):
                return _broken(count, start, problem)
    tested_sizes = ", ".join(map(str, [*sizes, B]))
    return holds(f"A sample's output is the same in batches of {tested_sizes}.")


def _describe_error(error: Exception) -> str:
    return f"raises {type(error).__name__}: {' '.join(str(error).split())[:160]}"


def _describe_difference(expected: list[Tensor], actual: list[Tensor], tolerance: float) -> str:
    expected_shapes, actual_shapes = ([list(leaf.shape) for leaf in outputs] for outputs in (expected, actual))
    if expected_shapes != actual_shapes:
        return f"gives outputs of shape {actual_shapes}, not {expected_shapes}"
    largest = max(max_difference(a, b, tolerance) for a, b in zip(expected, actual, strict=True))
    return f"gives outputs that differ by {format_float(largest)} of the largest output" if largest else ""


def _broken(size: int, start: int, problem: str) -> Evidence:
    batch = f"sample {start} alone" if size == 1 else f"a batch of {size} (samples {start} to {start + size - 1})"
    return broken(
        f"In eval mode {batch} {problem}.",
        cause=f"batch of {size}",
        fix="Name the dimension in squeeze(dim), write -1 for the batch in reshapes, and use running statistics.",
    )


PROOF = Proof(title="Evaluation is independent of the batch size", group="model", prove=batch_size_independent)
