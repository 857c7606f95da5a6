"""An attention mask says the opposite of what is meant: True where torch wants False.

What you see
    A language model's loss falls to next to nothing, since each token sees the one it is to predict, and what it writes
    is nonsense; or an encoder attends to the padding and to nothing else, and learns slowly.

Why it happens
    Both ways are masks. For ``nn.MultiheadAttention`` and the layers of ``nn.Transformer`` True means "leave out"; for
    ``scaled_dot_product_attention`` and the ``attention_mask`` of tokenizers it means "take part". A row in which
    nothing takes part comes out as zeros since PyTorch 2.5.

Fix
    Put ``~`` before it. For causal attention say ``is_causal=True`` to ``scaled_dot_product_attention``, and use
    ``nn.Transformer.generate_square_subsequent_mask`` for the layers.

When this is fine
    ``tril`` for ``scaled_dot_product_attention``, ``triu(diagonal=1)`` for the layers; either of them after ``~`` or
    ``== 0``; additive masks of zeros and minus infinity; ``tokens == padding`` as a padding mask; attention of one's
    own, which may mean what it likes. A model that reads from right to left wants the triangle the other way: hence a
    warning. Reported is a triangle of ones, and a comparison with the padding or a tokenizer's mask, given to torch's
    own attention the wrong way round. What a mask is meant for does not show at run time, so it is found in the text
    only.

References
    rasbt/LLMs-from-scratch#1061, "it means that future tokens can be attended to", in a book's own code,
    https://github.com/rasbt/LLMs-from-scratch/issues/1061
    pytorch/examples#649, "Transformer Language Model Example Wrong Mask", https://github.com/pytorch/examples/issues/649
    pytorch/pytorch#120668, on the two opposite definitions, https://github.com/pytorch/pytorch/pull/120668
    torch.nn.functional.scaled_dot_product_attention,
    https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from trueloop.analysis.operations import OpKind
from trueloop.analysis.queries.assignments import assigned, held
from trueloop.analysis.source_file import Hit, Source, last_word
from trueloop.core.source_text import Fix
from trueloop.failures.failure import Failure, Rule, Severity

ATTENTION = "torch.nn.functional.scaled_dot_product_attention"
LAYERS = frozenset(
    f"torch.nn.{name}" for name in ("MultiheadAttention", "Transformer", "TransformerEncoder", "TransformerDecoder",
                                    "TransformerEncoderLayer", "TransformerDecoderLayer")
)  # fmt: skip
MASKS = frozenset(("attn_mask", "mask", "src_mask", "tgt_mask"))
SAME = frozenset(("bool", "to", "cuda", "type", "type_as", "unsqueeze", "squeeze", "view", "expand", "repeat", "clone",
                  "contiguous", "expand_as", "reshape"))  # fmt: skip
OPPOSITE = {"upper": "lower", "lower": "upper", "kept": "padding", "padding": "kept"}
DEEPEST = 8  # names and calls that a mask is followed through


class _Mask(NamedTuple):
    """What a mask is True for."""

    true: str
    """ "upper" or "lower" triangle, tokens that are "kept", or "padding"."""
    boolean: bool


def find(source: Source) -> Iterator[Hit]:
    """Yield the masks that torch's own attention is given the wrong way round."""
    for call, name, value in _given(source):
        mask = _read(source, value, DEEPEST)
        if mask is None:
            continue
        if name == ATTENTION:
            wrong = {"upper": "the future", "padding": "the padding"}.get(mask.true)
            means = "True takes part in scaled_dot_product_attention"
        else:
            wrong = {"kept": "the padding"} if name.endswith("padding_mask") else {"lower": "the future"}
            wrong, means = wrong.get(mask.true), f"True is left out by {name}"
        if wrong is None:
            continue
        text = source.text.of(value)
        atom = isinstance(value, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
        edit = source.text.replace(value, f"~{text}" if atom else f"~({text})")
        fixed = mask.boolean and "#" not in text
        yield Hit(
            message=f"{means}, so this mask lets each token attend to {wrong} only.",
            node=call,
            fix=Fix((edit,), safe=False, words="Invert the mask") if fixed else None,
        )


def _given(source: Source) -> Iterator[tuple[ast.Call, str, ast.expr]]:
    """Yield the masks of torch's own attention: the call, the argument or the function, and the mask."""
    for call in source.calls(ATTENTION):
        written = [each.value for each in call.keywords if each.arg == "attn_mask"] or call.args[3:4]
        yield from ((call, ATTENTION, each) for each in written)
    seen = set[int]()
    for each in source.acts(OpKind.CALLED):
        call = each.node
        if each.subject.name not in LAYERS or not isinstance(call, ast.Call) or id(call) in seen:
            continue
        seen.add(id(call))
        for option in call.keywords:
            if option.arg in MASKS or (option.arg or "").endswith("key_padding_mask"):
                yield call, option.arg or "", option.value
        if each.subject.name in ("torch.nn.TransformerEncoder", "torch.nn.TransformerEncoderLayer"):
            yield from ((call, "mask", value) for value in call.args[1:2])


def _read(source: Source, node: ast.expr | None, left: int) -> _Mask | None:
    """Return what a mask is True for; None where the text does not tell."""
    found = None
    match node if left else None:
        case ast.Subscript(slice=ast.Constant(value="attention_mask")):
            found = _Mask("kept", boolean=False)
        case ast.Subscript(value=value):
            found = _read(source, value, left - 1)
        case ast.UnaryOp(op=ast.Invert(), operand=operand):
            inner = _read(source, operand, left - 1)
            found = inner and _Mask(OPPOSITE[inner.true], boolean=True)
        case ast.Name(id=name) as place:
            found = _read(source, assigned(source, place, name), left - 1)
        case ast.Attribute(value=ast.Name(id="self"), attr=name) as place:
            found = _read(source, held(source, place, name), left - 1)
        case ast.Compare() as compared:
            found = _compared(source, compared, left)
        case ast.Call() as call:
            found = _called(source, call, left)
        case _:
            pass
    return found


def _compared(source: Source, node: ast.Compare, left: int) -> _Mask | None:
    if len(node.ops) != 1 or not isinstance(node.ops[0], ast.Eq | ast.NotEq):
        return None
    same, other = isinstance(node.ops[0], ast.Eq), node.comparators[0]
    if "pad" in source.text.of(other).lower():
        return _Mask("padding" if same else "kept", boolean=True)
    number = other.value if isinstance(other, ast.Constant) else None
    inner = _read(source, node.left, left - 1) if number in (0, 1) else None
    if inner is None or number is None:
        return None
    return _Mask(inner.true if bool(number) is same else OPPOSITE[inner.true], boolean=True)


def _called(source: Source, node: ast.Call, left: int) -> _Mask | None:
    word, name = last_word(node.func), source.name(node.func)
    owner = node.func.value if isinstance(node.func, ast.Attribute) and not name else None
    if word in ("triu", "tril"):
        ones = owner or (node.args[0] if name.startswith("torch.") and node.args else None)
        return _triangle(source, word, ones)
    if owner is None:
        return None
    if word in ("eq", "ne"):
        pads = len(node.args) == 1 and "pad" in source.text.of(node.args[0]).lower()
        return _Mask("padding" if word == "eq" else "kept", boolean=True) if pads else None
    inner = _read(source, owner, left - 1) if word in SAME else None
    boolean = word == "bool" or any(source.text.of(each).endswith("bool") for each in node.args)
    return inner and _Mask(inner.true, inner.boolean or boolean)


def _triangle(source: Source, word: str, ones: ast.expr | None) -> _Mask | None:
    """Return the mask that ``triu`` or ``tril`` makes of ones; None where it is made of something else."""
    if not isinstance(ones, ast.Call) or source.name(ones.func) not in ("torch.ones", "torch.ones_like"):
        return None
    kinds = [source.text.of(each.value) for each in ones.keywords if each.arg == "dtype"]
    return _Mask("upper" if word == "triu" else "lower", boolean=any(each.endswith("bool") for each in kinds))


NAMES = sorted(each.rpartition(".")[2] for each in (ATTENTION, *LAYERS))
RULE = Rule(words=("mask|tril|triu", "|".join(f"{each}{end}" for each in NAMES for end in ("(", " as "))), find=find)

_SCRIPT = """
import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self, letters=12, width=16):
        super().__init__()
        self.embedding, self.qkv = nn.Embedding(letters, width), nn.Linear(width, 3 * width)
        self.head = nn.Linear(width, letters)

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
    title="An attention mask is inverted",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad=_SCRIPT.replace("{triangle}", "triu"),
    good=_SCRIPT.replace("{triangle}", "tril"),
    fix="Invert the mask, or say is_causal=True.",
    rule=RULE,
)
