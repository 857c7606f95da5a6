"""Gradient clipping gets ``model.parameters()`` as a generator that is already exhausted, so nothing is clipped.

What you see
    Clipping has no effect, and training diverges as it does without clipping. The norm that the clipping function
    returns is 0 in every step except perhaps the first.

Why it happens
    ``model.parameters()`` returns a generator, which can be iterated only once. If it is stored in a variable and an
    optimizer or an earlier clipping iterates over it, it is empty afterwards. Clipping an empty generator raises no
    error; newer versions of PyTorch warn once. The same happens in a clipping function of the program that goes through
    its argument twice: first for the norm, and then, with nothing left, to scale the gradients.

Fix
    Store the parameters as a list.

        parameters = list(model.parameters())

When this is fine
    - You clip ``list(model.parameters())``, which can be iterated any number of times.
    - You call ``model.parameters()`` in the line that clips, which creates a new generator each time.
    - The model has no parameters, or no trainable ones.

How it is detected
    In a run, the sanitizer reports a clipping function that gets an exhausted generator. The linter reports a variable
    that is assigned once, to a generator, outside the loop that clips, or from which an optimizer was built before.
    Both report a loop that changes gradients and goes through a generator for the second time, if the first pass always
    runs: in the source of the program, a variable or an argument that is ``model.parameters()`` or a generator
    expression.

References
    torch.nn.utils.clip_grad_norm_, https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html
    pytorch/pytorch#148259, "Raise a warning when torch.nn.utils.clip_grad_norm_ receives an exhausted generator": "no
    gradient clipping occurs—silently", https://github.com/pytorch/pytorch/issues/148259
    PixArt-alpha/PixArt-alpha#160: "the lora_layers was initialized with filter()", "so no gradient clipping would be
    done", https://github.com/PixArt-alpha/PixArt-alpha/pull/160
"""

import ast
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.abstract_value import ValueKind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.program_files import parse_files
from trueloop.analysis.queries.generators import bound_once, innermost_function, is_generator
from trueloop.analysis.queries.loops import is_inside
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import Evidence, SourceLocation
from trueloop.core.source_text import Edit, Fix, dotted_name, nodes_in, read_source
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.failures.gradient.clipped_nothing.iterated_twice import SecondPass, second_passes
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import GradientsClipped, StepTaken
from trueloop.tracing.running_code import user_modules

CHECKED_STEP: Final = 2  # when the source of the program is read


def is_repeated(source: SourceFile, operation: Op, assign: ast.Assign) -> bool:
    """Return True if a loop certainly repeats an operation without repeating an assignment."""
    assigning_function = innermost_function(source.tree, assign)
    for loop in operation.loops:
        if is_inside(assign, loop.node) or loop.runs_at_most_once():
            continue
        inside = assigning_function is None or is_inside(loop.node, assigning_function)
        reassigned = not inside and any(assigning_function in each.functions for each in source.ops_in_loop(loop))
        if not reassigned and operation.is_unconditional_in(loop):
            return True
    return False


class Detector(BaseDetector):
    """Reports each clipping that received an exhausted generator, and loops over one in the program's own functions."""

    def __init__(self) -> None:
        self._steps = 0

    def on_step_taken(self, event: StepTaken) -> Iterator[Evidence] | None:
        """Read the source of the program once, and return evidence of each loop over an exhausted generator."""
        self._steps += 1
        if self._steps < CHECKED_STEP:
            return None
        self.ignore(StepTaken)
        return _used_up_in_program(event)

    def on_gradients_clipped(self, event: GradientsClipped) -> Evidence | None:
        """Return evidence if the generator of the parameters was exhausted before."""
        if not event.generator_exhausted:
            return None
        return Evidence(
            message=f"Nothing was clipped to {event.limit:g}: the generator of the parameters was already exhausted.",
            location=event.location,
        )


def _used_up_in_program(event: StepTaken) -> Iterator[Evidence]:
    location = event.location and event.location.source_location
    files = {*([location.path] if location else ()), *user_modules().values()}
    texts = {each: text for each in files if "parameters(" in (text := read_source(each)) or ".grad" in text}
    trees = parse_files(texts) or {} if any(".grad" in each for each in texts.values()) else {}
    file_of = {id(each): file for file, tree in trees.items() for each in (tree, *nodes_in(tree, ast.FunctionDef))}
    scopes = [each for tree in trees.values() for each in (tree, *nodes_in(tree, ast.FunctionDef))]
    calls = [each for tree in trees.values() for each in nodes_in(tree, ast.Call)]
    for found in second_passes(scopes, calls):
        file = file_of[id(found.scope)]
        yield Evidence(
            message=_describe(found),
            location=SourceLocation(file, found.node.lineno),
            related=((SourceLocation(file, found.first.lineno), "exhausted here"),),
        )


def _describe(found: SecondPass) -> str:
    generator = ast.unparse(found.generator)
    return (
        f"No gradient is changed here: `{found.name}` is the generator `{generator}`, and the earlier pass over it has "
        "exhausted it."
    )


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each clipping of a name that is bound to an exhausted generator."""
    fixed = set[int]()
    reported = set[int]()
    for clip in source.ops(OpKind.CLIP_GRADIENTS):
        argument = _parameters_argument(clip)
        binding = bound_once(source.tree, dotted_name(argument), clip.function) if argument is not None else None
        if binding is None or clip.subject.kind is not ValueKind.PARAMETERS or not is_generator(source, binding.value):
            continue
        consumer = _consumer(source, clip, dotted_name(argument))
        if consumer is None and not is_repeated(source, clip, binding):
            continue
        value, fix = binding.value, None
        if id(value) not in fixed:
            start, end = source.text.span(value)
            fix = Fix((Edit(start, start, "list("), Edit(end, end, ")")), safe=True, description="Store a list")
        fixed.add(id(value))
        reported.add(id(clip.node))
        cause = "the optimizer" if consumer is not None else "the first iteration"
        yield Hit(
            message=f"Nothing is clipped: `{dotted_name(argument)}` is a generator, and {cause} has exhausted it.",
            node=clip.node,
            related=((binding, "the generator"), *(((consumer.node, "exhausted here"),) if consumer else ())),
            fix=fix,
        )
    for found in second_passes([source.tree, *source.nodes_of(ast.FunctionDef)], source.all_calls):
        if id(found.node) not in reported:
            yield Hit(
                message=_describe(found),
                node=found.node.iter if isinstance(found.node, ast.For) else found.node,
                related=((found.first, "exhausted here"), (found.generator, "the generator")),
            )


def _parameters_argument(clip: Op) -> ast.expr | None:
    """Return the argument of a clipping call that holds the parameters."""
    call = clip.node
    if not isinstance(call, ast.Call):
        return None
    keyword = next((each.value for each in call.keywords if each.arg == "parameters"), None)
    return call.args[0] if call.args else keyword


def _consumer(source: SourceFile, clip: Op, name: str) -> Op | None:
    """Return the optimizer that was certainly built from the same name before."""
    for each in source.ops_of_run(clip):
        call = each.node
        if (
            each.kind is not OpKind.CREATE
            or each.subject.kind is not ValueKind.OPTIMIZER
            or not isinstance(call, ast.Call)
        ):
            continue
        arguments = [*call.args[:1], *(keyword.value for keyword in call.keywords if keyword.arg == "params")]
        same_name = any(dotted_name(value) == name for value in arguments) and each.function is clip.function
        if same_name and each.index < clip.index and each.implied_by(clip):
            return each
    return None


RULE = Rule(required_words=("clip_grad|.grad", "parameters(|clip_grad"), find=find)


def inject(loop: TeachingLoop) -> None:
    """Inject this failure into the teaching loop."""
    loop.replace(Piece.CLIP, "model.parameters()", "parameters")
    loop.pieces[Piece.RECORDS] += "\nparameters = model.parameters()"


BAD = """
import warnings
import torch
from torch import nn

warnings.filterwarnings("ignore")
x = torch.randn(128, 8)
y = 10 * x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
parameters = model.parameters()
optimizer = torch.optim.SGD(parameters, lr=0.001)
for step in range(8):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    nn.utils.clip_grad_norm_(parameters, 0.1)
    optimizer.step()
"""

FAILURE = Failure(
    code="GRD011",
    title="Gradient clipping gets an exhausted generator",
    severity=Severity.ERROR,
    bad=BAD,
    good=changed(
        BAD,
        {
            "import warnings\n": "",
            'warnings.filterwarnings("ignore")\n': "",
            "parameters = model.parameters()": "parameters = list(model.parameters())",
        },
    ),
    fix="Store the parameters as a list: list(model.parameters()).",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
