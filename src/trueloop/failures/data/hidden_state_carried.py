"""The hidden state of one batch is passed on to the next, although the batches are shuffled.

What you see
    A recurrent model learns slowly or not at all, and its validation score is far worse than its training loss
    suggests, or it depends on the batch that was evaluated before.

Why it happens
    ``out, hidden = rnn(x, hidden)`` starts each sequence with the state at the end of the sequence that had the same
    row in the batch before. With contiguous text that is its beginning. In shuffled batches it is another sample.

Fix
    Start each batch without a state, which means zeros:

        for x, y in loader:
            out, _ = rnn(x)

    Or call ``hidden = model.init_hidden(len(x))`` in the loop. For contiguous text, do not shuffle.

When this is fine
    - The batches follow each other in time: ``shuffle=False``, or slices of one long text.
    - The state is set to a new value in each batch, or multiplied by a mask that ends episodes.
    - The state is carried through the time steps of one batch, or through the chunks of one of the sequences whose
      order is random.

How it is detected
    Only the linter finds it: a training loop over a loader with ``shuffle=True``, over the parts of a random
    permutation, or over batches at random positions, in which a call gets a hidden state and the state for the next
    batch comes from its result. A recurrent module that keeps its state in an attribute counts, too, unless the loop
    sets it. The order is also random after ``random.sample``, after ``shuffle`` of a list in place, and in a class or
    generator of the program that permutes its samples; ``sorted`` ends that. A state is recognised by its name, or
    because a recurrent layer gets it as its second argument.

References
    rafaljozefowicz/lm#7, on states between shuffled batches, https://github.com/rafaljozefowicz/lm/issues/7
    torch.nn.LSTM, https://docs.pytorch.org/docs/stable/generated/torch.nn.LSTM.html
    PyTorch word language model, with contiguous text, https://github.com/pytorch/examples/tree/main/word_language_model
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.possible_values import origins
from trueloop.analysis.queries.shuffled_loaders import argument_of, function_called, loaders_of
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import encloses, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_STATE: Final = re.compile(
    r"^(prev_?|last_?|rnn_?|lstm_?|gru_?|enc_?)?(hidden|hid|h|hx|hs|hc|state|states|hiddens|hn|h_?n|h_?0)$"
)
_RECURRENT: Final = re.compile(r"(LSTM|GRU|RNN)(Cell)?$")
_SAME_ITEMS: Final = frozenset((
    "array", "array_split", "asarray", "chunk", "enumerate", "list", "numpy", "reshape", "reversed", "split", "tensor",
    "tolist", "tqdm", "tuple", "view", "zip",
))  # fmt: skip
"""Calls that keep the order of the items of their argument."""
_PERMUTED: Final = frozenset(("randperm", "permutation", "shuffle", "RandomSampler", "SubsetRandomSampler"))
_DRAWN: Final = frozenset(("randint", "randrange", "choice", "randperm"))


class _Carried(NamedTuple):
    """A call that gets a state, and returns the state for the next call."""

    call: ast.Call
    state: ast.expr


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each hidden state that is carried through the batches of a shuffled loop."""
    stateful = [(owner, each) for owner, each in _stateful_modules(source)]
    for loop in source.nodes_of(ast.For):
        inner = [each for each in nodes_in(loop, ast.For) if each is not loop]
        if not _trains(source, loop) or any(_trains(source, each) for each in inner):
            continue
        order = _random_order(source, loop.iter)
        row = _random_rows(source, loop) if order is None else None
        shuffled = order or row
        if shuffled is None:
            continue
        for each in _carried(source, loop):
            if not _is_reset_in(source, loop, each) and (row is None or _gets_rows(loop, each.call, row)):
                yield _hit(each, shuffled, "in the loop")
        for owner, each in stateful:
            if not _is_reset(source, loop, owner, each):
                yield _hit(each, shuffled, f"in `{owner.name}` between two calls")


def _hit(carried: _Carried, shuffled: ast.AST, place: str) -> Hit:
    state = ast.unparse(carried.state)
    return Hit(
        message=f"`{ast.unparse(carried.call)}` starts each batch with the `{state}` of the batch before, but the "
        f"batches are shuffled, so that state belongs to other samples. `{state}` is never reset {place}.",
        node=carried.call,
        related=((shuffled, "the order is random here"),),
    )


def _trains(source: SourceFile, loop: ast.For) -> bool:
    """Return True if a loop, or a function that it calls, runs a backward pass."""
    functions = definitions(source).functions
    return any(
        last_name(each.func) == "backward" or _calls(functions.get(last_name(each.func)), frozenset(("backward",)))
        for each in nodes_in(loop, ast.Call)
    )


def _random_order(source: SourceFile, iterable: ast.expr, depth: int = 4) -> ast.AST | None:
    """Return what makes the order of the items of a list, loader or permutation random; None if nothing does."""
    if any(each.shuffles for each in loaders_of(source, iterable)):
        return next(each.call for each in loaders_of(source, iterable) if each.shuffles)
    for each in origins(source, iterable):
        if isinstance(each, ast.Call) and last_name(each.func) == "sorted":
            return None
        found = next((e for e in nodes_in(each, ast.Call) if _is_random(source, e)), None)
        found = found or _shuffled_in_place(source, each)
        for inner in _listed(each) if depth and found is None else ():
            found = found or _random_order(source, inner, depth - 1)
        if found is not None:
            return found
    return None


def _listed(node: ast.expr) -> list[ast.expr]:
    """Return the list whose items an expression has, in the same order: ``order`` for ``order[:64].tolist()``."""
    match node:
        case ast.Call(func=func, args=args) if last_name(func) in _SAME_ITEMS:
            return [*([func.value] if isinstance(func, ast.Attribute) else []), *args[:1]]
        case ast.Subscript(value=value, slice=ast.Slice()):
            return [value]
        case ast.ListComp(generators=[loop]) | ast.GeneratorExp(generators=[loop]):
            return [loop.iter]
        case _:
            return []


def _shuffled_in_place(source: SourceFile, node: ast.expr) -> ast.Call | None:
    """Return the ``random.shuffle(order)`` that runs before a node reads the list; None if there is none."""
    if not isinstance(node, ast.Name | ast.Attribute):
        return None
    text, scope = ast.unparse(node), function_of(source, node)
    around = [each for each in nodes_in(scope, ast.For, ast.While) if encloses(each, node)]
    changes = [e for e in nodes_in(scope, ast.Assign) if any(ast.unparse(t) == text for t in e.targets)]
    changes += [e for e in nodes_in(scope, ast.Call) if ast.unparse(e.func) == f"{text}.sort"]
    for call in definitions(source).calls.get("shuffle", ()):
        is_own = bool(call.args) and ast.unparse(call.args[0]) == text and function_of(source, call) is scope
        if not is_own or not isinstance(source.parents.get(id(call)), ast.Expr):
            continue
        is_before = call.lineno < node.lineno and not any(call.lineno < e.lineno < node.lineno for e in changes)
        is_after = call.lineno > node.lineno and any(encloses(e, call) for e in around)  # at the end of each epoch
        if is_before or (is_after and not any(encloses(e, change) for e in around for change in changes)):
            return call
    return None


def _is_random(source: SourceFile, call: ast.Call) -> bool:
    """Return True for a loader with ``shuffle=True``, a permutation, or a function that yields shuffled batches."""
    name = last_name(call.func)
    if name.endswith(("DataLoader", "loader")):
        shuffle = [e.value for e in call.keywords if e.arg == "shuffle"] + call.args[2:3]
        sampler = [e.value for e in call.keywords if e.arg == "sampler"]
        values = [value for each in sampler for value in origins(source, each)]
        return any(isinstance(each, ast.Constant) and each.value is True for each in shuffle) or any(
            isinstance(each, ast.Call) and last_name(each.func) in _PERMUTED for each in values
        )
    return name in _PERMUTED or _draws_sample(call)


def _draws_sample(call: ast.Call) -> bool:
    """Return True for ``random.sample(range(n), n)`` and ``table.sample(frac=1)``."""
    is_list = len(call.args) == 2 or {each.arg for each in call.keywords} & {"k", "frac"}
    return last_name(call.func) == "sample" and bool(is_list)


def _calls(function: Any, names: frozenset[str]) -> bool:
    return function is not None and any(last_name(each.func) in names for each in nodes_in(function, ast.Call))


def _random_rows(source: SourceFile, loop: ast.For) -> ast.Assign | None:
    """Return the statement in a loop that takes a batch at random rows: ``x = data[order[i : i + 32]]``."""
    varying = {each.id for each in nodes_in(loop, ast.Name) if isinstance(each.ctx, ast.Store)}
    for statement in nodes_in(loop, ast.Assign):
        value = statement.value
        for each in nodes_in(value, ast.Subscript):
            is_of_round = any(e.id in varying for e in nodes_in(each.slice, ast.Name))
            if is_of_round and _random_order(source, each.value) is not None:
                return statement
        if isinstance(value, ast.Call) and _draws_rows(source, loop, statement, value):
            return statement
    return None


def _draws_rows(source: SourceFile, loop: ast.For, statement: ast.Assign, call: ast.Call) -> bool:
    """Return True for a call that draws the batch, or the position of the batch, at random."""
    function = function_called(source, call)
    if function is not None:
        is_batch = "batch" in function.name and _calls(function, _DRAWN)
        return is_batch or any(
            _takes_from(function, {e.id for e in nodes_in(each, ast.Name) if isinstance(e.ctx, ast.Store)}, set())
            for each in nodes_in(function, ast.Assign)
            if isinstance(each.value, ast.Call) and _draws(each.value)
        )
    drawn = {each.id for target in statement.targets for each in nodes_in(target, ast.Name)}
    batch = _following(loop, {each.id for each in nodes_in(loop.target, ast.Name)})
    is_item = last_name(call.func) == "choice" and isinstance(statement.targets[0], ast.Tuple)
    passed = [e for e in nodes_in(loop, ast.Call) if definitions(source).functions.get(last_name(e.func)) is not None]
    is_passed = any(isinstance(e, ast.Name) and e.id in drawn for each in passed for e in each.args)
    return _draws(call) and (is_item or is_passed or _takes_from(loop, drawn, batch))


def _draws(call: ast.Call) -> bool:
    return any(last_name(each.func) in _DRAWN or _draws_sample(each) for each in nodes_in(call, ast.Call))


def _takes_from(scope: ast.AST, drawn: set[str], batch: set[str]) -> bool:
    """Return True if a part of data, other than of the batch, is taken at drawn positions."""
    for each in nodes_in(scope, ast.comprehension):
        if any(e.id in drawn for e in nodes_in(each.iter, ast.Name)):
            drawn = drawn | {e.id for e in nodes_in(each.target, ast.Name)}
    return any(
        any(e.id in drawn for e in nodes_in(each.slice, ast.Name)) and last_name(each.value) not in batch
        for each in nodes_in(scope, ast.Subscript)
        if isinstance(each.ctx, ast.Load)
    )


def _following(loop: ast.For, names: set[str]) -> set[str]:
    """Return the variables that a loop computes from some of its variables, and these."""
    found = set(names)
    for _ in range(3):
        for each in nodes_in(loop, ast.Assign):
            if any(e.id in found for e in nodes_in(each.value, ast.Name)):
                found |= {e.id for target in each.targets for e in nodes_in(target, ast.Name)}
    return found


def _gets_rows(loop: ast.For, call: ast.Call, statement: ast.Assign) -> bool:
    """Return True if a call gets the batch that a statement takes at random rows."""
    rows = _following(loop, {e.id for target in statement.targets for e in nodes_in(target, ast.Name)})
    return encloses(statement, call) or any(e.id in rows for each in call.args[:1] for e in nodes_in(each, ast.Name))


def _carried(source: SourceFile, loop: ast.For) -> Iterator[_Carried]:
    """Yield the calls in a loop that get a hidden state and return the next one."""
    for statement in nodes_in(loop, ast.Assign):
        call, target = statement.value, statement.targets[0]
        if not isinstance(call, ast.Call) or not isinstance(target, ast.Tuple | ast.Name):
            continue
        returned = {ast.unparse(e) for e in nodes_in(target, ast.Name, ast.Attribute, ast.Tuple)}
        for state in [*call.args[1:], *(each.value for each in call.keywords)]:
            if not _is_state(state) and not _is_given_to_layer(source, call, state):
                continue
            following = [each.value for each in nodes_in(loop, ast.Assign) if _assigns(each, state)]
            if ast.unparse(state) in returned or any(
                returned & {ast.unparse(e) for e in nodes_in(value, ast.Name)} for value in following
            ):
                yield _Carried(call, state)


def _is_state(node: ast.expr) -> bool:
    """Return True for a variable that is called a hidden state, or a pair (h, c)."""
    if isinstance(node, ast.Tuple):
        return len(node.elts) == 2 and _is_state(node.elts[0])
    return isinstance(node, ast.Name | ast.Attribute) and bool(_STATE.match(last_name(node).lower()))


def _is_given_to_layer(source: SourceFile, call: ast.Call, state: ast.expr) -> bool:
    """Return True for an argument that a recurrent layer, or one in the called module, gets as its state."""
    if not isinstance(state, ast.Name | ast.Attribute):
        return False
    for each in origins(source, call.func) if isinstance(call.func, ast.Name | ast.Attribute) else ():
        if isinstance(each, ast.Call) and _RECURRENT.search(last_name(each.func)):
            return state in call.args[1:2] or any(e.value is state and e.arg == "hx" for e in call.keywords)
        definition = definitions(source).classes.get(last_name(each.func)) if isinstance(each, ast.Call) else None
        if definition is not None:
            return _is_state_in_forward(source, definition, call, state)
    return False


def _is_state_in_forward(source: SourceFile, definition: ast.ClassDef, call: ast.Call, state: ast.expr) -> bool:
    stored = [each for each in nodes_in(definition, ast.Assign) if isinstance(each.value, ast.Call)]
    layers = {
        last_name(each.targets[0]) for each in stored if _RECURRENT.search(last_name(getattr(each.value, "func", None)))
    }
    forward = next((e for e in definition.body if isinstance(e, ast.FunctionDef) and e.name == "forward"), None)
    for each in nodes_in(forward, ast.Call) if forward is not None else ():
        given = [*each.args[1:2], *(e.value for e in each.keywords if e.arg == "hx")]
        if last_name(each.func) in layers and forward is not None:
            names = {e.id for value in given for e in nodes_in(value, ast.Name)}
            if any(argument_of(source, forward, call, name) is state for name in names):
                return True
    return False


def _assigns(statement: ast.Assign, state: ast.expr) -> bool:
    """Return True if a statement assigns the state, or a part of it."""
    own = {ast.unparse(state), *(ast.unparse(e) for e in getattr(state, "elts", ()))}
    return any(
        ast.unparse(e) in own
        for target in statement.targets
        for e in nodes_in(target, ast.Name, ast.Attribute, ast.Tuple)
        if not isinstance(getattr(e, "ctx", None), ast.Load)
    )


def _is_reset_in(source: SourceFile, loop: ast.For, carried: _Carried) -> bool:
    """Return True if a loop gives the state a value that does not follow from the state of the batch before."""
    names = {e.id for e in nodes_in(carried.state, ast.Name)}
    function = definitions(source).functions.get(last_name(carried.call.func))
    if function is not None and _starts_new_state(source, function, carried):
        return True
    for each in nodes_in(loop, ast.Assign):
        if each.value is carried.call or not _assigns(each, carried.state):
            continue
        read = {e.id for e in nodes_in(each.value, ast.Name)}
        results = {e.id for s in nodes_in(loop, ast.Assign) if s.value is carried.call for t in s.targets
                   for e in nodes_in(t, ast.Name)}  # fmt: skip
        if (not read & (names | results) or _ends_state(each.value)) and not _is_first_only(loop, each, carried.state):
            return True
    methods = [each.func for each in nodes_in(loop, ast.Call) if last_name(each.func) in ("zero_", "fill_", "mul_")]
    return any({e.id for e in nodes_in(each, ast.Name)} & names for each in methods)


def _starts_new_state(source: SourceFile, function: ast.FunctionDef, carried: _Carried) -> bool:
    """Return True if a function replaces the state that it gets by one that does not follow from it."""
    for each in function.body:
        own = {e.id for target in getattr(each, "targets", ()) for e in nodes_in(target, ast.Name)}
        given = {name for name in own if argument_of(source, function, carried.call, name) is carried.state}
        if isinstance(each, ast.Assign) and given and not _reads(each.value, _results(function, given)):
            return True
    return False


def _results(function: ast.AST, names: set[str]) -> set[str]:
    """Return the variables that a function computes from some of its variables."""
    found = set(names)
    for each in nodes_in(function, ast.Assign):
        if _reads(each.value, found):
            found |= {e.id for target in each.targets for e in nodes_in(target, ast.Name)}
    return found


def _ends_state(value: ast.expr) -> bool:
    """Return True for a state that is multiplied, or replaced by zeros."""
    is_zero = any(
        "zero" in last_name(each.func) or last_name(each.func) == "where" for each in nodes_in(value, ast.Call)
    )
    return is_zero or bool(nodes_in(value, ast.BinOp))


def _is_first_only(loop: ast.For, statement: ast.stmt, state: ast.expr) -> bool:
    """Return True if a statement runs only while there is no state: ``if hidden is None``."""
    text = ast.unparse(state)
    around = [each for each in nodes_in(loop, ast.If) if any(encloses(e, statement) for e in each.body)]
    return any(ast.unparse(each.test).startswith(f"{text} is None") for each in around)


def _stateful_modules(source: SourceFile) -> Iterator[tuple[ast.ClassDef, _Carried]]:
    """Yield the modules that keep the state of a recurrent layer in an attribute from one call to the next."""
    for owner in source.nodes_of(ast.ClassDef):
        methods = {each.name: each for each in owner.body if isinstance(each, ast.FunctionDef)}
        forward: ast.AST = methods.get("forward", ast.Pass())
        own = next((each.arg for each in nodes_in(forward, ast.arg)), "self")
        for statement in nodes_in(forward, ast.Assign):
            call = statement.value
            for state in call.args[1:] if isinstance(call, ast.Call) else ():
                is_own = isinstance(state, ast.Attribute) and _is_state(state) and last_name(state.value) == own
                others = [each for each in nodes_in(forward, ast.Assign) if _assigns(each, state)] if is_own else []
                results = {e.id for target in statement.targets for e in nodes_in(target, ast.Name)}
                kept = [e for e in others if e is statement or _keeps(e.value, state, results)]
                if any(each is statement or _reads(each.value, results) for each in kept) and (
                    owner.name in definitions(source).calls
                ):
                    fixed = [each for each in others if each not in kept]
                    if all(_is_first_only(forward, each, state) for each in fixed):  # type: ignore[arg-type]
                        yield owner, _Carried(call, state)  # type: ignore[arg-type]


def _keeps(value: ast.expr, state: ast.expr, results: set[str]) -> bool:
    """Return True if a value follows from the state, as ``state.detach()`` does, or from the results of the layer."""
    is_same = any(ast.unparse(each) == ast.unparse(state) for each in nodes_in(value, ast.Attribute))
    return not _ends_state(value) and (is_same or _reads(value, results))


def _reads(value: ast.expr, names: set[str]) -> bool:
    return any(each.id in names for each in nodes_in(value, ast.Name))


def _is_reset(source: SourceFile, loop: ast.For, owner: ast.ClassDef, carried: _Carried) -> bool:
    """Return True if a loop, or a function or method that it calls, sets the state of a module."""
    name = last_name(carried.state)
    scopes: list[Any] = [loop]
    for call in nodes_in(loop, ast.Call):
        called = last_name(call.func)
        methods = [e for e in owner.body if isinstance(e, ast.FunctionDef) and e.name == called != "forward"]
        function = definitions(source).functions.get(called)
        scopes += methods or ([function] if function is not None and called != "forward" else [])
    for scope in scopes:
        stores = [e for e in nodes_in(scope, ast.Attribute) if e.attr == name and isinstance(e.ctx, ast.Store)]
        if stores and function_of(source, stores[0]).name != "forward" if scope is not loop else stores:
            return True
    return False


_ORDERING_WORDS: Final = "shuffle|randperm|permutation|RandomSampler|randint|randrange|sample(|choice("

RULE = Rule(
    required_words=("backward(", "LSTM|GRU|RNN", _ORDERING_WORDS, "h"),
    find=find,
)

BAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(120, 6, 4)
loader = DataLoader(TensorDataset(x, x.sum((1, 2))), batch_size=20, shuffle=True)
rnn = nn.GRU(4, 16, batch_first=True)
head = nn.Linear(16, 1)
optimizer = torch.optim.Adam([*rnn.parameters(), *head.parameters()], lr=0.01)
hidden = None
for epoch in range(3):
    for inputs, targets in loader:
        optimizer.zero_grad()
        out, hidden = rnn(inputs, hidden)
        hidden = hidden.detach()
        loss = nn.functional.mse_loss(head(out[:, -1]).squeeze(1), targets)
        loss.backward()
        optimizer.step()
"""

FAILURE = Failure(
    code="DAT032",
    title="The hidden state is carried through shuffled batches",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD,
        {
            "hidden = None\n": "",
            "        out, hidden = rnn(inputs, hidden)\n        hidden = hidden.detach()\n": (
                "        out, _ = rnn(inputs)\n"
            ),
        },
    ),
    fix="Start each batch without a hidden state, or do not shuffle.",
    rule=RULE,
)
