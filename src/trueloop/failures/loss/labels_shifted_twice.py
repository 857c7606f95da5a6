"""The labels of a language model are shifted by one position twice: in the data, and again in the model.

What you see
    The loss falls, but the text that the model generates leaves out every second token, or is nonsense.

Why it happens
    The output at position t has to be compared with token t + 1. Models of Hugging Face shift the labels themselves:
    ``model(input_ids=x, labels=x)`` is right. If the data has already moved the labels, position t learns token t + 2.

Fix
    Shift in one place only.

        batch = {"input_ids": ids, "labels": ids[1:] + [-100]}  # wrong, if the model shifts
        batch = {"input_ids": ids, "labels": list(ids)}  # right

When this is fine
    - The model compares output and label at the same position, and the data shifts.
    - The model gets ``labels=None``, or its own loss is not used, and a loss function compares output and moved labels.
    - The model shifts, and the slice in the data removes a special token from inputs and labels alike.

How it is detected
    The sanitizer compares the targets of a cross-entropy with the tokens that the model got. It reports two backward
    passes whose targets are, at all positions, the token after the next one of the position of the output, if this is
    the only cross-entropy.

    The linter finds it in the source code. Code that compares ``logits[:, :-1]`` with ``labels[:, 1:]`` in a method
    that gets the labels, or a ``...ForCausalLM`` or ``...LMHeadModel`` that gets ``labels=``, shifts. If the same
    program also makes labels by a slice from 1 on, while the inputs keep their first token, it shifts twice, unless a
    loss function gets these labels. So does a program whose loss compares such slices of outputs and labels, if its
    data is a pair such as ``t[:-1], t[1:]``.

References
    Hugging Face, "Causal language modeling", https://huggingface.co/docs/transformers/tasks/language_modeling
    huggingface/transformers, ``labels`` of GPT2LMHeadModel: "the labels are shifted inside the model",
    https://huggingface.co/docs/transformers/model_doc/gpt2
"""

import ast
import math
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.batch_loops import function_of, is_loss_call
from trueloop.analysis.queries.class_instances import called_function
from trueloop.analysis.queries.metric_names import name_words
from trueloop.analysis.queries.possible_values import computed_from, is_without_gradients, origins
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.findings import Evidence
from trueloop.core.source_text import encloses, is_none, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed
from trueloop.failures.loss.flattened_in_other_order import MIN_TOKENS, TokenReader
from trueloop.tracing.events import BackwardStarted, LossRecord, ModelCalled

_LABELS: Final = frozenset(("label", "labels", "target", "targets"))
_MANY: Final = re.compile(r":\s?-1\b")
_SHIFTING_MODELS: Final = re.compile(r"ForCausalLM|LMHeadModel")
MIN_TIMES: Final = 2
MIN_OTHERS: Final = 0.1  # share of the targets that are not the next token, so that a repeated token proves nothing


class Detector(TokenReader):
    """Counts the losses whose targets are the tokens after the next ones. Cost: 30 us for each loss of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self._read = self._times = 0

    def on_model_called(self, event: ModelCalled) -> None:
        """Record the tokens that a model gets."""
        super().on_model_called(event)

    def on_backward_started(self, event: BackwardStarted) -> Evidence | None:
        """Return evidence for the second such loss: several losses may predict several tokens."""
        losses = [each for each in event.losses if each.kind == "cross_entropy"]
        if len(losses) != 1 or not self._skips_a_token(losses[0]):
            return None
        self._times += 1
        if self._times != MIN_TIMES:
            return None
        return Evidence(
            message="The target of each output is the token after the next one of the model's input: the labels are "
            "shifted twice.",
            location=losses[0].location or event.location,
        )

    def _skips_a_token(self, loss: LossRecord) -> bool:
        """Return True if the target at each position is the token two positions later, and not the next one."""
        tokens, targets = self.tokens(), loss.targets
        if tokens is None or targets is None or not tokens.is_cpu or not targets.is_cpu or targets.is_floating_point():
            return False
        if targets.dim() == 1 and loss.unflattened is not None and math.prod(loss.unflattened) == len(targets):
            targets = targets.reshape(loss.unflattened)
        targets = targets.squeeze(1) if targets.dim() == 3 else targets  # as PyTorch gives (N, C, T) another dimension
        if targets.dim() != 2 or len(targets) != len(tokens):
            return False
        self._read += 1
        equal, count = list[int](), 0
        for shift in (1, 2):
            following = tokens[:, loss.first_position + shift :][:, : targets.shape[1]]
            own = targets[:, : following.shape[1]]
            counted = own != loss.ignore_index
            equal.append(int(((own == following) & counted).sum()))
            count = int(counted.sum())
        return count >= MIN_TOKENS and equal[1] == count and equal[0] < (1 - MIN_OTHERS) * count

    def inconclusive(self) -> str:
        """Return a reason if no loss compared outputs with tokens."""
        return "" if self._read else "no loss compared the outputs of a model for tokens with targets"


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each shift of labels in the data of a program whose model shifts them, too."""
    shifts = list(_shifts_in_models(source))
    for node, value in _made_labels(source) if shifts else ():
        moved = [each for each in nodes_in(value, ast.Subscript) if _starts_at_one(each)]
        function = function_of(source, node)
        all_moved = [each for each in nodes_in(function, ast.Subscript) if _starts_at_one(each)]
        is_used = any(encloses(each, node) for each in shifts) or _is_compared(source, value)
        is_only_moved = moved and not is_used and len(all_moved) == len(moved)  # else the inputs lose a token, too
        if is_only_moved and not is_without_gradients(source, node):  # an evaluation compares them itself
            yield Hit(
                message=f"`{ast.unparse(value)}` moves the labels by one position, and the model does so again: each "
                "position learns the token after the next one.",
                node=node,
                related=((shifts[0], "the model shifts here"),),
            )
    yield from _shifted_in_loss(source)


def _shifted_in_loss(source: SourceFile) -> Iterator[Hit]:
    """Yield each pair ``t[:-1], t[1:]`` in the data of a program whose loss compares labels with the output before."""
    pairs = [] if _MANY.search(source.text.source) is None else list(_shifted_pairs(source))
    for loss, labels in _shifting_losses(source) if pairs else ():
        function = function_of(source, loss)
        for moved in pairs:
            around = function_of(source, moved)
            is_data = around is not function and not any(is_loss_call(source, e) for e in nodes_in(around, ast.Call))
            is_own = any(moved is each for each in computed_from(source, labels))
            if is_own or (is_data and not isinstance(around, ast.Module)):
                yield Hit(
                    message=f"`{ast.unparse(moved)}` moves the labels by one position, and the loss does so again: "
                    "each position learns the token after the next one.",
                    node=moved,
                    related=((loss, "the loss shifts here"),),
                )
        return


def _shifting_losses(source: SourceFile) -> Iterator[tuple[ast.Call, ast.expr]]:
    """Yield each loss of ``logits[:, :-1]`` and ``labels[:, 1:]``, with the labels, unless they are the input."""
    for call in source.all_calls:
        if len(call.args) < 2 or not is_loss_call(source, call):
            continue
        outputs, targets = (
            [each for each in computed_from(source, argument, 2) if isinstance(each, ast.Subscript)]
            for argument in call.args[:2]
        )
        output = next(filter(_ends_before_last, outputs), None)
        target = next(filter(_starts_at_one, targets), None)
        if output is None or target is None or any(map(_starts_at_one, outputs)):
            continue
        if not _names(source, output.value) & _names(source, target.value):
            yield call, target.value


def _names(source: SourceFile, node: ast.expr) -> set[str]:
    """Return the variables in the expressions from which another one has its value: of ``model(x)`` also ``x``."""
    names = {e.id for value in origins(source, node) for e in nodes_in(value, ast.Name)}
    return names - {"torch", "F", "nn", "self"}


def _shifted_pairs(source: SourceFile) -> Iterator[ast.Subscript]:
    """Yield b of ``a, b = t[:-1], t[1:]`` and ``t[i : i + n], t[i + 1 : i + n + 1]``, in one function."""
    by_function: dict[int, list[ast.Subscript]] = {}
    for each in source.nodes_of(ast.Subscript):
        is_read = isinstance(each.ctx, ast.Load) and not isinstance(
            source.parents.get(id(each)), ast.BinOp | ast.Compare
        )
        if is_read and _start(each) is not None:
            by_function.setdefault(id(function_of(source, each)), []).append(each)
    for slices in by_function.values():
        starts = {(ast.unparse(each.value), _start(each)) for each in slices}
        for each in slices:
            owner, start = ast.unparse(each.value), _start(each) or ""
            before = "0" if start == "1" else start.removesuffix(" + 1")
            if before != start and (owner, before) in starts:
                yield each


def _start(node: ast.Subscript) -> str | None:
    """Return where the last slice of a selection starts; None if it selects all or none."""
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    last = parts[-1] if parts else None  # x[()]
    if not isinstance(last, ast.Slice) or last.step is not None or (last.lower is None and last.upper is None):
        return None
    return "0" if last.lower is None else ast.unparse(last.lower)


def _shifts_in_models(source: SourceFile) -> Iterator[ast.AST]:
    """Yield the methods that compare outputs up to the last with labels from the second on, and the calls of such."""
    for method in source.nodes_of(ast.FunctionDef):
        labels = {each.arg for each in method.args.args if set(name_words(each.arg)) & _LABELS}
        slices = list(nodes_in(method, ast.Subscript)) if labels and method.args.args[0].arg == "self" else []
        moved = any(_starts_at_one(each) and last_name(each) in labels for each in slices)
        if moved and any(map(_ends_before_last, slices)):
            yield method
    for call in source.all_calls if _SHIFTING_MODELS.search(source.text.source) else ():
        named = {each.arg: each.value for each in call.keywords}
        if "input_ids" in named and "labels" in named and _is_given(source, named["labels"]):
            yield call


def _is_given(source: SourceFile, value: ast.expr) -> bool:
    """Return False for an argument that is certainly None: the model then computes no loss, and shifts nothing."""
    known = [each for each in origins(source, value) if not isinstance(each, ast.Name)] or [value]
    return not all(is_none(each) for each in known)


def _is_compared(source: SourceFile, labels: ast.expr) -> bool:
    """Return True if a loss function that is not the program's own gets labels: no model shifts these."""
    for call in nodes_in(function_of(source, labels), ast.Call):
        if is_loss_call(source, call) and called_function(source, call) is None:
            arguments = [*call.args, *(each.value for each in call.keywords)]
            if any(labels is part for each in arguments for part in computed_from(source, each, 3)):
                return True
    return False


def _made_labels(source: SourceFile) -> Iterator[tuple[ast.AST, ast.expr]]:
    """Yield what is assigned to labels, appended to them, or stored under their key."""
    passed = {last_name(each.value) for call in source.all_calls for each in call.keywords if each.arg == "labels"}
    for each in source.nodes_of(ast.Assign):
        name = getattr(each.targets[0], "id", "")
        if len(each.targets) == 1 and name and (_is_label(name) or name in passed):
            yield each, each.value
        if len(each.targets) == 1 and isinstance(each.targets[0], ast.Subscript):
            key = each.targets[0].slice
            if isinstance(key, ast.Constant) and _is_label(str(key.value)):
                yield each, each.value
    for each in source.nodes_of(ast.Dict):
        for key, value in zip(each.keys, each.values, strict=True):
            if isinstance(key, ast.Constant) and _is_label(str(key.value)):
                yield value, value
    for call in source.all_calls:
        is_append = isinstance(call.func, ast.Attribute) and call.func.attr == "append" and len(call.args) == 1
        if is_append and _is_label(last_name(getattr(call.func, "value", None))):
            yield call, call.args[0]


def _is_label(name: str) -> bool:
    return bool(set(name_words(name)) & _LABELS)


def _starts_at_one(node: ast.Subscript) -> bool:
    """Return True for ``x[1:]``, ``x[:, 1:]`` and ``x[..., 1:]``, also with ``.contiguous()`` behind."""
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    return any(
        isinstance(each, ast.Slice) and each.upper is None and getattr(each.lower, "value", None) == 1 for each in parts
    )


def _ends_before_last(node: ast.Subscript) -> bool:
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    slices = [each for each in parts if isinstance(each, ast.Slice) and each.lower is None and each.upper is not None]
    return any(ast.unparse(each.upper) == "-1" for each in slices if each.upper is not None)


RULE = Rule(required_words=("label|target|:-1", "[1:]|, 1:"), find=find, depends_on_users=True)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.rnn, self.head = nn.Embedding(12, 16), nn.GRU(16, 16, batch_first=True), nn.Linear(16, 12)

    def forward(self, tokens, labels):
        logits = self.head(self.rnn(self.embed(tokens))[0])
        logits, labels = logits[:, :-1], labels[:, 1:]
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)


def collate(texts):
    labels = [text[1:] + [-100] for text in texts]
    return torch.tensor(texts), torch.tensor(labels)


texts = [[(start + step) % 12 for step in range(9)] for start in range(12)]
model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(30):
    tokens, labels = collate(texts)
    optimizer.zero_grad()
    loss = model(tokens, labels)
    loss.backward()
    optimizer.step()
print(loss.item())
"""

FAILURE = Failure(
    code="LOS027",
    title="The labels of a language model are shifted twice",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad=BAD,
    good=changed(BAD, {"text[1:] + [-100] for": "list(text) for"}),
    fix="Shift the labels in the data or in the model, not in both.",
    rule=RULE,
    detector=Detector,
)
