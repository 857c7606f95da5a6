"""Finds language models without a causal mask in programs whose targets are the next tokens of the inputs."""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.possible_values import computed_from, origins
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.findings import Severity
from trueloop.core.source_text import integer, nodes_in

_CAUSAL: Final = frozenset(("tril", "triu", "generate_square_subsequent_mask", "tril_indices", "triu_indices"))
_MASKS: Final = re.compile(r"mask|causal|bias|alibi|tril|triu|where", re.IGNORECASE)
_ENCODERS: Final = frozenset(("TransformerEncoder", "TransformerEncoderLayer"))
_SEVERAL_INPUTS: Final = re.compile(r"memory|(^|_)(src|enc|encoder|context|source|cond|image|text|audio)(_|$)")
_DECODERS: Final = frozenset(("Transformer", "TransformerDecoder", "TransformerDecoderLayer", "CTCLoss", "ctc_loss"))
_POOLED: Final = re.compile(r"\.mean\((dim=)?1|\[:, (-1|0)(, :)?\]\)?$|\.max\((dim=)?1|\.amax\((dim=)?1")
_LOSSES: Final = frozenset(("cross_entropy", "CrossEntropyLoss", "nll_loss", "NLLLoss"))


def find_missing_masks(source: SourceFile) -> Iterator[Hit]:
    """Yield the attention, or recurrent layer in both directions, that lets a language model read its targets."""
    names = definitions(source).calls.keys()
    if names & _DECODERS or not names & _LOSSES or "Embedding" not in names:
        return
    losses = (each for name in _LOSSES for each in definitions(source).calls.get(name, ()))
    if any("[:, -1]" in ast.unparse(argument) for call in losses for argument in call.args[:1]):
        return  # only the last position is predicted
    shifted = next(_shifted_slices(source), None)
    if shifted is None or _has_causal_mask(source) or _has_other_inputs(source):
        return
    for model in source.nodes_of(ast.ClassDef):
        forward = next((e for e in model.body if isinstance(e, ast.FunctionDef) and e.name == "forward"), None)
        returned = [e.value for e in nodes_in(forward, ast.Return) if e.value is not None] if forward else []
        if forward is None or any(_POOLED.search(ast.unparse(each)) for each in returned):
            continue
        if any(_POOLED.search(ast.unparse(each)) for each in nodes_in(forward, ast.Assign)):
            continue
        seen = next(_unmasked(source, forward), None)
        if seen is not None and not _is_pooled(source, forward, seen):
            yield Hit(
                message=f"`{ast.unparse(seen)[:80]}` lets each position read all others, and the targets are the next "
                "tokens of the input: each position sees its own target. Pass a causal mask.",
                node=seen,
                severity=Severity.WARNING,
                related=((shifted, "the targets are the input shifted by one position"),),
            )
            return


def _unmasked(source: SourceFile, forward: ast.FunctionDef) -> Iterator[ast.expr]:
    """Yield each attention without a mask in a ``forward``."""
    for call in nodes_in(forward, ast.Call):
        given = {each.arg for each in call.keywords}
        name, made = last_name(call.func), _layers(source, call)
        if given & {"mask", "src_mask", "is_causal", "attn_mask", None}:
            continue
        is_encoder = bool(made & _ENCODERS) and len(call.args) == 1
        is_attention = "MultiheadAttention" in made and len(call.args) == 3 and _is_same(call.args)
        is_plain = name == "scaled_dot_product_attention" and len(call.args) == 3
        is_softmax = name == "softmax" and _is_score(source, call) and not _is_masked(source)
        if is_encoder or is_attention or is_plain or is_softmax or "bidirectional" in made:
            yield call


def _is_pooled(source: SourceFile, forward: ast.FunctionDef, seen: ast.expr) -> bool:
    """Return True if a layer's result is read at single positions only, or its final states are: one per sequence."""
    statement = source.statement_of(seen)
    if not isinstance(statement, ast.Assign) or statement.value is not seen:
        return False
    target = statement.targets[0]
    if isinstance(target, ast.Tuple):
        target = target.elts[0]
    if not isinstance(target, ast.Name):
        return False
    reads = [e for e in nodes_in(forward, ast.Name) if e.id == target.id and isinstance(e.ctx, ast.Load)]
    return all(
        _is_position(source.parents.get(id(each))) for each in reads if each.lineno > (seen.end_lineno or seen.lineno)
    )


def _is_position(node: Any) -> bool:
    """Return True for ``x[-1]``, ``x[:, 0]`` and ``x[:, -1, :n]``."""
    if not isinstance(node, ast.Subscript):
        return False
    elements = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    return any(integer(each) is not None for each in elements[:2])


def _layers(source: SourceFile, call: ast.Call) -> set[str]:
    """Return the names of the layers of PyTorch that a call may run, and "bidirectional"."""
    found: set[str] = set()
    queue = [*origins(source, call.func, 2)] if isinstance(call.func, ast.Name | ast.Attribute) else []
    if isinstance(call.func, ast.Name):  # for layer in self.layers
        loops = [e for e in nodes_in(function_of(source, call), ast.For) if last_name(e.target) == call.func.id]
        queue += [part for e in loops for part in origins(source, e.iter, 2)]
    for value in queue:
        made = [value] if isinstance(value, ast.Call) else []
        if made and last_name(made[0].func) in ("ModuleList", "Sequential"):
            made = nodes_in(made[0], ast.Call)
        for each in made:
            found.add(last_name(each.func))
            both = any(e.arg == "bidirectional" and getattr(e.value, "value", 0) is True for e in each.keywords)
            found |= {"bidirectional"} if both and last_name(each.func) in ("LSTM", "GRU", "RNN") else set()
    return found


def _is_same(nodes: list[ast.expr]) -> bool:
    return len({ast.unparse(each) for each in nodes}) == 1


def _is_score(source: SourceFile, softmax: ast.Call) -> bool:
    """Return True for a softmax of the products of all pairs of positions: ``q @ k.transpose(-2, -1)``."""
    func = softmax.func
    is_method = isinstance(func, ast.Attribute) and last_name(func.value) not in ("torch", "F", "functional")
    scores = func.value if is_method and isinstance(func, ast.Attribute) else next(iter(softmax.args), None)
    for node in computed_from(source, scores, 1) if scores is not None else ():
        product = isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult)
        product |= isinstance(node, ast.Call) and last_name(node.func) in ("matmul", "bmm", "einsum")
        if product and any(word in ast.unparse(node) for word in ("transpose", ".mT", "einsum", "permute")):
            return True
    return False


def _is_masked(source: SourceFile) -> bool:
    """Return True if the program names a mask anywhere."""
    nodes = source.nodes_of(ast.Name, ast.Attribute, ast.arg, ast.keyword)
    names = (getattr(e, "id", None) or getattr(e, "attr", None) or getattr(e, "arg", None) or "" for e in nodes)
    return any(_MASKS.search(each) for each in names if each != "bias")


def _has_causal_mask(source: SourceFile) -> bool:
    """Return True if the program makes a causal mask that it reads, or names one."""
    for call in source.all_calls:
        if any(each.arg == "is_causal" for each in call.keywords):
            return True
        if last_name(call.func) not in _CAUSAL:
            continue
        statement = source.statement_of(call)
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        reads = nodes_in(function_of(source, call), ast.Name)
        name = target.id if isinstance(target, ast.Name) else ""
        if not name or any(e.id == name and isinstance(e.ctx, ast.Load) for e in reads):
            return True
    return False


def _has_other_inputs(source: SourceFile) -> bool:
    """Return True if a model also gets something that is not the text: an image, or the memory of an encoder."""
    forwards = [each for each in source.nodes_of(ast.FunctionDef) if each.name == "forward"]
    return any(_SEVERAL_INPUTS.search(each.arg) for f in forwards if len(f.args.args) > 2 for each in f.args.args)


def _shifted_slices(source: SourceFile) -> Iterator[ast.Subscript]:
    """Yield each slice that is another slice of the same function, shifted by one, unless both are in one formula."""
    slices: dict[tuple[int, str], list[ast.Subscript]] = {}
    for each in source.nodes_of(ast.Subscript):
        if isinstance(each.ctx, ast.Load) and _slice(each) is not None:
            slices.setdefault((id(function_of(source, each)), ast.unparse(each.value)), []).append(each)
    for group in slices.values():
        for later in group:
            if any(_is_next(_slice(each), _slice(later)) and not _is_formula(source, each, later) for each in group):
                yield later


def _slice(node: ast.Subscript) -> ast.Slice | None:
    """Return the slice along time: the only one, or that after the batch."""
    index = node.slice
    if isinstance(index, ast.Tuple) and index.elts:
        first, *rest = index.elts
        whole = isinstance(first, ast.Slice) and first.lower is None and first.upper is None
        index = rest[0] if whole and len(rest) == 1 else index
    return index if isinstance(index, ast.Slice) and index.step is None else None


def _is_next(first: Any, later: Any) -> bool:
    """Return True for ``[:-1]`` and ``[1:]``, and for ``[i : i + n]`` and ``[i + 1 : i + n + 1]``."""
    if later.lower is None:
        return False
    if first.lower is None or integer(first.lower) == 0:
        return integer(later.lower) == 1 and first.upper is not None
    match later.lower:
        case ast.BinOp(op=ast.Add(), left=left, right=ast.Constant(value=1)):
            return ast.dump(left) == ast.dump(first.lower) and first.upper is not None and later.upper is not None
        case _:
            return False


def _is_formula(source: SourceFile, first: ast.AST, later: ast.AST) -> bool:
    """Return True if one sum, product or comparison contains both nodes."""
    around: set[int] = set()
    for node in (first, later):
        parents, parent = set[int](), source.parents.get(id(node))
        while isinstance(parent, ast.expr):
            if isinstance(parent, ast.BinOp | ast.Compare | ast.BoolOp):
                parents.add(id(parent))
            parent = source.parents.get(id(parent))
        if around & parents:
            return True
        around = parents
    return False
