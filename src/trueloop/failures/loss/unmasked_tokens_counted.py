"""Masked language modelling counts all tokens in the loss, not only the masked ones.

What you see
    The loss falls within a few hundred updates to a small value and the accuracy of the tokens is near 90 %, but the
    masked tokens are guessed badly and the model is of little use after fine-tuning.

Why it happens
    About 85 % of the tokens are not masked: they are in the input, and the model only has to copy them. Their part of
    the loss, and of the gradient, outweighs that of the masked tokens. Any tensor of token ids is a valid target, so no
    error is raised.

Fix
    Give the other tokens the label that the loss ignores:

        labels = tokens.clone()
        labels[~mask] = -100  # the default of ignore_index

    Or index the outputs and the labels by the mask.

When this is fine
    - The model is a denoising autoencoder, such as BART or T5, which writes the whole text again.
    - Tokens are dropped at random to augment the data of another task.
    - The loss of each token is multiplied by the mask.

How it is detected
    Only the linter finds it, from the source code: tokens at random positions are replaced by one token, and the target
    of a cross-entropy, or the ``labels`` of a model, are the same tokens, which are neither set to another label
    elsewhere nor indexed by a mask. It is also reported if a function returns the masked tokens with such labels and
    the loss of the program cannot know the mask. Programs whose names mention denoising, autoencoders, reconstruction
    or decoders are not judged.

References
    Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding", 2018,
    arXiv:1810.04805
    torch.nn.CrossEntropyLoss, https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from trueloop.analysis.queries.batch_loops import function_of, is_loss_call
from trueloop.analysis.queries.possible_values import possible_values
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_ON_PURPOSE: Final = re.compile(
    r"denois|auto_?encod|\bbart|(^|_|\b)t5|seq2seq|reconstruct|corrupt|diffus|word_?drop|Decoder\b|augment",
    re.IGNORECASE,
)
_RANDOM: Final = re.compile(r"rand|bernoulli|uniform|multinomial|choice")
_OTHER_TOKEN: Final = re.compile(r"unk|drop|pad|eos|bos|blank|noise", re.IGNORECASE)
_SAME_TOKENS: Final = frozenset((
    "clone", "copy", "deepcopy", "detach", "long", "to", "cuda", "contiguous", "view", "reshape", "flatten", "cpu",
    "tensor", "as_tensor", "LongTensor", "list", "ravel", "squeeze",
))  # fmt: skip
_PADDING: Final = re.compile(r"pad|attention|== ?0", re.IGNORECASE)
MAX_DEPTH: Final = 4


class _Masking(NamedTuple):
    """A statement that replaces random tokens by the mask token."""

    statement: ast.stmt
    masked: ast.expr
    """The variable that gets the masked tokens."""
    tokens: ast.expr
    """The tokens before."""
    mask: ast.expr


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each loss of masked language modelling that counts all tokens."""
    maskings = [each for each in _maskings(source) if _is_random(source, each.mask)]
    if not maskings or _is_on_purpose(source):
        return
    targets = [each for each in _targets(source) if not _is_judged_per_token(source, each[0])]
    for masking in maskings:
        tokens = _keys(source, masking.tokens)
        for call, target in targets:
            if _keys(source, target) & tokens and not _is_changed(source, target, masking):
                yield _hit(masking, call, f"`{ast.unparse(call.func)}` gets all tokens as labels")
                break
        else:
            returned = _returned_with_tokens(source, masking, tokens)
            if returned is not None and not _knows_mask(source):
                yield _hit(masking, returned, "the labels that are returned are all tokens")


def _hit(masking: _Masking, node: ast.AST, what: str) -> Hit:
    mask = text if len(text := ast.unparse(masking.mask)) <= 60 else "a random mask"
    return Hit(
        message=f"Only tokens in `{mask}` are masked, but {what}: the loss consists mostly of tokens that the model "
        "sees in its input. Set the other labels to -100.",
        node=node,
        related=((masking.statement, "masked here"),),
    )


def _is_on_purpose(source: SourceFile) -> bool:
    """Return True if the names of a program say that it writes the whole text again."""
    names = [each.name for each in source.nodes_of(ast.ClassDef, ast.FunctionDef)]
    return any(map(_ON_PURPOSE.search, [*names, *(last_name(each.func) for each in source.all_calls)]))


def _maskings(source: SourceFile) -> Iterator[_Masking]:
    for each in source.nodes_of(ast.Assign, ast.Expr, ast.Return):
        match each:
            case ast.Assign(targets=[ast.Subscript(value=tokens, slice=mask)], value=value) if _is_token(value):
                if not isinstance(mask, ast.Slice | ast.Tuple | ast.Constant):
                    yield _Masking(each, tokens, tokens, _condition(source, each, mask))
            case ast.Assign(targets=[masked], value=ast.Call() as call) if (filled := _filled(call)) is not None:
                yield _Masking(each, masked, *filled)
            case ast.Expr(value=ast.Call(func=ast.Attribute(attr="masked_fill_")) as call):
                filled = _filled(call)
                if filled is not None:
                    yield _Masking(each, filled[0], *filled)
            case ast.Return(value=ast.Call() as call) | ast.Return(value=ast.Tuple(elts=[ast.Call() as call, *_])):
                filled = _filled(call)
                if filled is not None:
                    yield _Masking(each, call, *filled)
            case _:
                pass


def _filled(call: ast.Call) -> tuple[ast.expr, ast.expr] | None:
    """Return the tokens and the mask of a call that replaces masked tokens by one token; None for other calls."""
    match call:
        case ast.Call(func=ast.Attribute(attr="masked_fill" | "masked_fill_", value=tokens), args=[mask, value]):
            return (tokens, mask) if _is_token(value) else None
        case ast.Call(func=func, args=[mask, value, tokens]) if last_name(func) == "where" and _is_token(value):
            return tokens, mask
        case _:
            return None


def _condition(source: SourceFile, statement: ast.stmt, index: ast.expr) -> ast.expr:
    """Return the condition under which a loop replaces one token, or else the index."""
    parent = source.parents.get(id(statement))
    return parent.test if isinstance(parent, ast.If) and isinstance(index, ast.Name) else index


def _is_token(node: ast.expr) -> bool:
    """Return True for a number or a name that is no padding and no unknown token."""
    if isinstance(node, ast.Call):
        return last_name(node.func) in ("full_like", "tensor") and any(map(_is_token, node.args[-1:]))
    is_id = isinstance(node, ast.Constant) and isinstance(node.value, int) and node.value >= 0
    is_name = isinstance(node, ast.Name | ast.Attribute | ast.Subscript) and not _OTHER_TOKEN.search(ast.unparse(node))
    return (is_id and not isinstance(node.value, bool)) or is_name  # type: ignore[attr-defined]


def _is_random(source: SourceFile, node: ast.expr, depth: int = 0) -> bool:
    """Return True if an expression, or a value of its variables, calls a random function."""
    if _RANDOM.search(ast.unparse(node)):
        return True
    parts = nodes_in(node, ast.Name, ast.Attribute) if depth < MAX_DEPTH else ()
    return any(_is_random(source, value, depth + 1) for part in parts for value in possible_values(source, part))


def _targets(source: SourceFile) -> Iterator[tuple[ast.Call, ast.expr]]:
    """Yield each loss, or call of a model that is given ``labels``, with its targets."""
    for call in source.all_calls:
        named = next((each.value for each in call.keywords if each.arg in ("target", "labels")), None)
        if named is not None and (is_loss_call(source, call) or any(each.arg == "labels" for each in call.keywords)):
            yield call, named
        elif is_loss_call(source, call) and len(call.args) > 1:
            yield call, call.args[1]


def _is_judged_per_token(source: SourceFile, call: ast.Call) -> bool:
    """Return True for a loss that is not reduced, or that gets only some outputs."""
    made = " ".join(ast.unparse(each) for each in (call, *possible_values(source, call.func)))
    picks = any(isinstance(each, ast.Subscript) and not nodes_in(each, ast.Slice) for each in call.args)
    return bool(re.search(r"reduction=|reduce=|weight=|mse|MSE|L1|l1_", made)) or picks


def _keys(source: SourceFile, node: ast.expr, depth: int = 0) -> set[tuple[int, str]]:
    """Return the variables and expressions whose tokens a value has: (id of the function, text)."""
    node = _unshaped(node)
    found = {(id(function_of(source, node)), ast.unparse(node))}
    is_value = isinstance(node, ast.Name | ast.Attribute)
    for each in possible_values(source, node) if is_value and depth < MAX_DEPTH else ():
        found |= _keys(source, each, depth + 1)
    return found


def _unshaped(node: ast.expr) -> ast.expr:
    """Return the tokens that an expression copies, converts or reshapes."""
    while True:
        match node:
            case ast.Call(func=ast.Attribute(attr=attr, value=ast.Name(id="torch" | "copy" | "np")), args=[inner, *_]):
                if attr not in _SAME_TOKENS:
                    return node
            case ast.Call(func=ast.Name(id=name), args=[inner]) if name in _SAME_TOKENS:
                pass
            case ast.Call(func=ast.Attribute(attr=attr, value=inner)) if attr in _SAME_TOKENS:
                pass
            case ast.Subscript(value=inner, slice=ast.Slice(lower=None, upper=None)):
                pass
            case _:
                return node
        node = inner


def _is_changed(source: SourceFile, target: ast.expr, masking: _Masking) -> bool:
    """Return True if the labels are set elsewhere, or are the masked tokens themselves."""
    masked = ast.unparse(masking.masked)
    names = {text for _, text in _keys(source, target)} - {masked}
    if ast.unparse(_unshaped(target)) == masked and target.lineno > masking.statement.lineno:
        return function_of(source, target) is function_of(source, masking.statement)
    for each in source.nodes_of(ast.Assign, ast.Call):
        match each:
            case ast.Assign(targets=[ast.Subscript(value=owner, slice=index)]) if ast.unparse(owner) in names:
                if not _PADDING.search(ast.unparse(index)):
                    return True
            case ast.Call(func=ast.Attribute(attr="masked_fill_" | "mul_" | "copy_", value=owner), args=args):
                if ast.unparse(owner) in names and args and not _PADDING.search(ast.unparse(args[0])):
                    return True
            case _:
                pass
    return False


def _returned_with_tokens(source: SourceFile, masking: _Masking, tokens: set[tuple[int, str]]) -> ast.Return | None:
    """Return the statement that returns masked tokens with all tokens as labels, but not the mask."""
    function = function_of(source, masking.statement)
    for each in nodes_in(function, ast.Return) if not isinstance(function, ast.Module) else ():
        values = _returned_values(each)
        inputs = [v for v in values if ast.unparse(_unshaped(v)) == ast.unparse(masking.masked)]
        labels = [v for v in values if v not in inputs and _keys(source, v) & tokens]
        given = {ast.unparse(v) for v in values}
        is_pair = len(values) == 2 and len(inputs) == len(labels) == 1 and ast.unparse(masking.mask) not in given
        if is_pair and not _is_changed(source, labels[0], masking):
            return each
    return None


def _returned_values(node: ast.Return) -> list[ast.expr]:
    """Return the items of a returned tuple, or the inputs and labels in a dictionary without a mask."""
    if isinstance(node.value, ast.Tuple):
        return node.value.elts
    if not isinstance(node.value, ast.Dict):
        return []
    items = {getattr(k, "value", ""): v for k, v in zip(node.value.keys, node.value.values, strict=True)}
    has_mask = any("mask" in str(key) and key != "attention_mask" for key in items)
    return [] if has_mask else [v for key, v in items.items() if key in ("input_ids", "labels", "inputs", "input")]


def _knows_mask(source: SourceFile) -> bool:
    """Return True if the loss of a program may count the masked tokens only, or is unknown."""
    names = re.compile(r"cross_?entropy|nll_loss", re.IGNORECASE)
    losses = [each for each in source.all_calls if names.search(last_name(each.func))]
    compared = any(re.search(r"mask", ast.unparse(each), re.IGNORECASE) for each in source.nodes_of(ast.Compare))
    return not losses or compared or any(_is_judged_per_token(source, each) for each in losses)


RULE = Rule(
    required_words=(
        "mask|MASK|Mask",
        "rand|bernoulli|uniform",
        "entropy|Entropy|labels=",
        "clone|copy|masked_fill|where|list(",
    ),
    find=find,
)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
vocabulary, mask_id = 50, 1
data = torch.randint(2, vocabulary, (200, 12))
model = nn.Sequential(nn.Embedding(vocabulary, 32), nn.Linear(32, vocabulary))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for rows in torch.randperm(200).split(40):
    tokens = data[rows]
    mask = torch.rand(tokens.shape) < 0.15
    inputs = tokens.clone()
    inputs[mask] = mask_id
    labels = tokens.clone()
    loss = nn.functional.cross_entropy(model(inputs).transpose(1, 2), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="LOS037",
    title="Masked language model learns from all tokens",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"labels = tokens.clone()": "labels = tokens.masked_fill(~mask, -100)"}),
    fix="Set the labels of the tokens that are not masked to -100, which the loss ignores.",
    rule=RULE,
)
