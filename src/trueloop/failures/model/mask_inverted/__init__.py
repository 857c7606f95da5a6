"""An attention mask is inverted, True where PyTorch expects False, or consists of zeros and ones and masks nothing.

What you see
    The loss of a language model falls almost to zero, because each position sees the token that it has to predict, and
    the generated text is nonsense. Or an encoder attends only to the padding and learns slowly.

Why it happens
    PyTorch uses two opposite conventions. In ``nn.MultiheadAttention`` and the layers of ``nn.Transformer``, True means
    "ignore this position". In ``scaled_dot_product_attention``, and in the ``attention_mask`` of tokenizers, True means
    "attend to this position". Neither raises an error for an inverted mask. A mask of floating-point numbers is added
    to the attention scores instead: zeros and ones mask nothing. Scores that are multiplied with a mask, or filled with
    0 or 1e-9, get a weight from softmax like any other: only minus infinity, or a large negative number,
    gets the weight 0.

Fix
    Invert the mask, or pass ``is_causal=True``. For ``nn.Transformer``, use ``generate_square_subsequent_mask``.

        mask = torch.ones(T, T).triu().bool()  # wrong: attends to the future
        mask = torch.ones(T, T).tril()  # wrong: numbers, which are added to the scores
        mask = torch.ones(T, T).tril().bool()  # right
        F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

When this is fine
    - You pass ``tril`` to ``scaled_dot_product_attention``, or ``triu(diagonal=1)`` to the layers.
    - The mask contains zeros and minus infinity and is added to the attention scores.
    - You pass ``tokens == padding`` as the padding mask of a layer.
    - You use your own attention function, which may have either convention.
    - The weights after a softmax are multiplied with the mask as well, and divided by their sum.
    - The mask has one value for all scores over which the softmax is taken, as for padded queries.

How it is detected
    Only the linter finds it, from the source code: a triangle of ones, a comparison with the padding token or with the
    lengths, or a tokenizer's mask is passed to PyTorch's attention with the wrong convention, also through variables,
    arguments and other files. A model that reads from right to left needs the other triangle, so this is a warning. It
    also reports a softmax of scores that were multiplied with a variable called mask, valid or adjacency, or with a
    triangle of ones, to which a mask of zeros and ones or of zeros and tiny numbers was added, or which are set to a
    number above -5 where a mask is True, if this mask is not used after it. The number may be a constant, a setting,
    a default or ``finfo(...).tiny``, and the scores may come from another function. A triangle of floating-point ones,
    or of tiny numbers, is reported as an error. A run reports the consequences: MDL014 if
    a position sees its target, MDL016 if padding is read.

References
    rasbt/LLMs-from-scratch#1061, "it means that future tokens can be attended to", in a book's own code,
    https://github.com/rasbt/LLMs-from-scratch/issues/1061 pytorch/examples#649, "Transformer Language Model Example
    Wrong Mask", https://github.com/pytorch/examples/issues/649 pytorch/pytorch#120668, on the two opposite definitions,
    https://github.com/pytorch/pytorch/pull/120668 torch.nn.functional.scaled_dot_product_attention,
    https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from trueloop.analysis.operations import OpKind
from trueloop.analysis.queries.assignments import attribute_value
from trueloop.analysis.queries.possible_values import possible_values
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix
from trueloop.failures.failure import Failure, Rule, Severity
from trueloop.failures.model.mask_inverted.weighted_scores import KEEPS_MEANING, tiny_bias, zeroed_scores

ATTENTION = "torch.nn.functional.scaled_dot_product_attention"
LAYERS = frozenset(
    f"torch.nn.{name}" for name in ("MultiheadAttention", "Transformer", "TransformerEncoder", "TransformerDecoder",
                                    "TransformerEncoderLayer", "TransformerDecoderLayer")
)  # fmt: skip
MASKS = frozenset(("attn_mask", "mask", "src_mask", "tgt_mask"))
OPPOSITE = {"upper": "lower", "lower": "upper", "tokens": "padding", "padding": "tokens"}
_TOKENS: Final = re.compile(r"token|(^|_)ids?$|^(src|tgt|inputs?|seqs?|x|words?|text)$", re.IGNORECASE)
_LENGTHS: Final = re.compile(r"len", re.IGNORECASE)
MAX_DEPTH = 8  # number of names and calls through which the origin of a mask is searched


class _Mask(NamedTuple):
    """The meaning of True in a mask."""

    true: str
    """Positions where the mask is True: "upper" or "lower" triangle, "tokens" or "padding"."""
    boolean: bool
    floating: bool = False
    """A triangle of floating-point ones and zeros, which attention adds to its scores."""


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield the masks with the wrong convention for attention, and those that set scores to 0 before a softmax."""
    yield from zeroed_scores(source)
    for call, name, value in _mask_arguments(source):
        if tiny_bias(source, value) is not None:
            yield Hit(
                message=f"`{source.text.segment(value)}` masks nothing: it adds numbers of almost 0 to the attention "
                "scores. Use minus infinity.",
                node=call,
                severity=Severity.ERROR,
            )
            continue
        mask = _parse_mask(source, value, MAX_DEPTH)
        if mask is None:
            continue
        if mask.floating and not name.endswith("padding_mask"):
            ignored = "keeps" if name == ATTENTION else "ignores"
            yield Hit(
                message=f"`{source.text.segment(value)}` masks nothing: its floating-point zeros and ones are added "
                f"to the attention scores. Convert it to booleans: attention {ignored} positions that are True.",
                node=call,
                severity=Severity.ERROR,
            )
            continue
        if name == ATTENTION:
            wrong = {"upper": "the future", "padding": "the padding"}.get(mask.true)
            means = "`scaled_dot_product_attention` attends where its mask is True"
        else:
            wrong = {"tokens": "the padding"} if name.endswith("padding_mask") else {"lower": "the future"}
            wrong, means = wrong.get(mask.true), f"`{name}` ignores positions where it is True"
        if wrong is None:
            continue
        text = source.text.segment(value)
        atom = isinstance(value, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
        edit = source.text.replace(value, f"~{text}" if atom else f"~({text})")
        fixable = mask.boolean and "#" not in text
        yield Hit(
            message=f"{means}, so with this mask each token attends only to {wrong}.",
            node=call,
            fix=Fix((edit,), safe=False, description="Invert the mask") if fixable else None,
        )


def _mask_arguments(source: SourceFile) -> Iterator[tuple[ast.Call, str, ast.expr]]:
    """Yield the masks of PyTorch's attention: the call, the name of the argument or function, and the mask."""
    for call in source.calls_of(ATTENTION):
        passed = [each.value for each in call.keywords if each.arg == "attn_mask"] or call.args[3:4]
        yield from ((call, ATTENTION, each) for each in passed)
    visited = set[int]()
    for each in source.ops(OpKind.MODEL_CALL):
        call = each.node
        if each.subject.name not in LAYERS or not isinstance(call, ast.Call) or id(call) in visited:
            continue
        visited.add(id(call))
        for option in call.keywords:
            if option.arg in MASKS or (option.arg or "").endswith("key_padding_mask"):
                yield call, option.arg or "", option.value
        if each.subject.name in ("torch.nn.TransformerEncoder", "torch.nn.TransformerEncoderLayer"):
            yield from ((call, "mask", value) for value in call.args[1:2])


def _parse_mask(source: SourceFile, node: ast.expr | None, depth: int) -> _Mask | None:
    """Return the meaning of a mask; None if it is unknown."""
    mask = None
    match node if depth else None:
        case ast.Subscript(slice=ast.Constant(value="attention_mask")):
            mask = _Mask("tokens", boolean=False)
        case ast.Subscript(value=value):
            mask = _parse_mask(source, value, depth - 1)
        case ast.UnaryOp(op=ast.Invert(), operand=operand):
            inner = _parse_mask(source, operand, depth - 1)
            mask = inner and _Mask(OPPOSITE[inner.true], boolean=True)
        case ast.Name(id=name) as read:
            values = possible_values(source, read)
            is_of_tokenizer = name == "attention_mask" and not values and _has_key(source, name)
            mask = _Mask("tokens", boolean=False) if is_of_tokenizer else _agreed(source, values, depth)
        case ast.IfExp(body=first, orelse=second) | ast.BinOp(op=ast.BitAnd() | ast.BitOr(), left=first, right=second):
            parts = [each for each in (first, second) if not isinstance(each, ast.Constant)]
            known = [found for each in parts if (found := _parse_mask(source, each, depth - 1))]
            mask = known[0] if known and (isinstance(node, ast.BinOp) or len(known) == len(parts)) else None
        case ast.Attribute(value=ast.Name(id="self"), attr=name) as read:
            mask = _parse_mask(source, attribute_value(source, read, name), depth - 1)
        case ast.Compare() as comparison:
            mask = _parse_comparison(source, comparison, depth)
        case ast.Call() as call:
            mask = _parse_call(source, call, depth)
        case _:
            pass
    return mask


def _agreed(source: SourceFile, values: list[ast.expr], depth: int) -> _Mask | None:
    """Return the meaning that all values of a variable have, apart from None; None if they differ."""
    parts = [each for each in values if not (isinstance(each, ast.Constant) and each.value is None)]
    found = [_parse_mask(source, each, depth - 1) for each in parts]
    return found[0] if len({each and each.true for each in found}) == 1 else None


def _has_key(source: SourceFile, key: str) -> bool:
    """Return True if the program has a dictionary with a key, such as the batches of a tokenizer."""
    return f'"{key}"' in source.text.source or f"'{key}'" in source.text.source


def _parse_comparison(source: SourceFile, node: ast.Compare, depth: int) -> _Mask | None:
    if len(node.ops) != 1:
        return None
    if not isinstance(node.ops[0], ast.Eq | ast.NotEq):
        return _parse_lengths(source, node)
    is_equal, other = isinstance(node.ops[0], ast.Eq), node.comparators[0]
    if "pad" in source.text.segment(other).lower() or _is_padding_number(source, node.left, other):
        return _Mask("padding" if is_equal else "tokens", boolean=True)
    number = other.value if isinstance(other, ast.Constant) else None
    inner = _parse_mask(source, node.left, depth - 1) if number in (0, 1) else None
    if inner is None or number is None:
        return None
    return _Mask(inner.true if bool(number) is is_equal else OPPOSITE[inner.true], boolean=True)


def _is_padding_number(source: SourceFile, tokens: ast.expr, number: ast.expr) -> bool:
    """Return True for the 0 of ``tokens != 0`` if the program pads with 0."""
    name = last_name(tokens) if isinstance(tokens, ast.Name | ast.Attribute | ast.Subscript) else ""
    pads_with_0 = re.search(r"(padding_idx|padding_value|pad\w*)\s*=\s*0\b", source.text.source, re.IGNORECASE)
    is_zero = isinstance(number, ast.Constant) and number.value == 0 and type(number.value) is int
    return is_zero and bool(_TOKENS.search(name)) and pads_with_0 is not None


def _parse_lengths(source: SourceFile, node: ast.Compare) -> _Mask | None:
    """Return the mask of ``torch.arange(T)[None] < lengths[:, None]``."""
    sides = [_without_view(source, each) for each in (node.left, node.comparators[0])]
    counts = [isinstance(each, ast.Call) and last_name(each.func) == "arange" for each in sides]
    lengths = [bool(_LENGTHS.search(last_name(each))) for each in sides]
    if counts == lengths[::-1] and any(counts) and any(lengths):
        is_less = isinstance(node.ops[0], ast.Lt | ast.LtE)
        return _Mask("tokens" if is_less is counts[0] else "padding", boolean=True)
    return None


def _without_view(source: SourceFile, node: ast.expr) -> ast.expr:
    """Return the tensor of ``positions[None, :]`` or ``lengths.unsqueeze(1)``, or the call that makes it."""
    for _ in range(MAX_DEPTH):
        match node:
            case ast.Subscript(value=inner):
                node = inner
            case ast.Call(func=ast.Attribute(value=inner, attr=attr)) if attr in KEEPS_MEANING:
                node = inner
            case ast.Name(id=name) if not _LENGTHS.search(name) and len(values := possible_values(source, node)) == 1:
                node = values[0]
            case _:
                break
    return node


def _parse_call(source: SourceFile, node: ast.Call, depth: int) -> _Mask | None:
    word, name = last_name(node.func), source.qualified_name(node.func)
    owner = node.func.value if isinstance(node.func, ast.Attribute) and not name else None
    if word in ("triu", "tril"):
        ones = owner or (node.args[0] if name.startswith("torch.") and node.args else None)
        return _parse_triangle(source, word, ones)
    if word == "logical_not" and (operand := owner or next(iter(node.args), None)):
        return _parse_mask(source, ast.UnaryOp(ast.Invert(), operand), depth)
    if owner is None:
        parts = node.args[0] if word in ("cat", "concat", "hstack") and node.args else None
        joined = parts.elts if isinstance(parts, ast.List | ast.Tuple) else ()  # with a position for a class token
        return next((found for each in joined if (found := _parse_mask(source, each, depth - 1))), None)
    if word in ("eq", "ne"):
        pads = len(node.args) == 1 and "pad" in source.text.segment(node.args[0]).lower()
        return _Mask("padding" if word == "eq" else "tokens", boolean=True) if pads else None
    inner = _parse_mask(source, owner, depth - 1) if word in KEEPS_MEANING else None
    boolean = word == "bool" or any(source.text.segment(each).endswith("bool") for each in node.args)
    return inner and _Mask(inner.true, inner.boolean or boolean, inner.floating and _keeps_dtype(source, node, word))


def _keeps_dtype(source: SourceFile, node: ast.Call, word: str) -> bool:
    """Return True if a method certainly does not convert floating-point numbers to booleans or integers."""
    arguments = map(source.text.segment, node.args)
    to_device = [each.arg == "device" for each in node.keywords] + ["device" in a or "cuda" in a for a in arguments]
    return word not in ("bool", "type", "type_as") and (word != "to" or all(to_device))


def _parse_triangle(source: SourceFile, word: str, ones: ast.expr | None) -> _Mask | None:
    """Return the mask that ``triu`` or ``tril`` computes from ones; None for another tensor."""
    if not isinstance(ones, ast.Call) or source.qualified_name(ones.func) not in ("torch.ones", "torch.ones_like"):
        return None
    dtypes = [source.text.segment(each.value) for each in ones.keywords if each.arg == "dtype"]
    boolean = any(each.endswith("bool") for each in dtypes)
    floating = source.qualified_name(ones.func) == "torch.ones" and all("float" in each for each in dtypes)
    return _Mask("upper" if word == "triu" else "lower", boolean, floating)


NAMES = sorted(each.rpartition(".")[2] for each in (ATTENTION, *LAYERS))
RULE = Rule(
    required_words=(
        "mask|msk|tril|triu|adj|valid|where(|pad",
        "|".join((*(f"{each}{end}" for each in NAMES for end in ("(", " as ")), "oftmax(|logits=")),
    ),
    find=find,
)

_SCRIPT = """
import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self, vocabulary=12, width=16):
        super().__init__()
        self.embedding, self.qkv = nn.Embedding(vocabulary, width), nn.Linear(width, 3 * width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        x = self.embedding(tokens)
        mask = torch.{triangle}(torch.ones(x.shape[1], x.shape[1])).bool()
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        return self.head(x + F.scaled_dot_product_attention(q, k, v, attn_mask=mask))


torch.manual_seed(0)
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for step in range(20):
    tokens = torch.randint(12, (16, 9))
    optimizer.zero_grad()
    logits = model(tokens[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
"""

FAILURE = Failure(
    code="MDL006",
    title="An attention mask is inverted or masks nothing",
    severity=Severity.WARNING,
    bad=_SCRIPT.replace("{triangle}", "triu"),
    good=_SCRIPT.replace("{triangle}", "tril"),
    fix="Invert the mask, or pass is_causal=True.",
    rule=RULE,
)
