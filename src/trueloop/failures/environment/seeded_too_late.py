"""The seed is set after the model was created, only for the GPU or not at all, so the first weights differ in each run.

What you see
    Two runs with the same seed give different curves, although the data comes in the same order.

Why it happens
    The first weights are drawn when a model is created, from the random numbers of the CPU, even if it moves to a GPU
    later. ``torch.manual_seed`` has no effect on what was drawn before, and ``torch.cuda.manual_seed`` none on the CPU.
    A function such as ``set_seed`` that was copied from another program has none if nothing calls it. Python lets a
    program add any attribute to a module, so ``torch.backends.cudnn.determinstic = True`` and ``torch.manual_seed = 0``
    raise no error.

Fix
    Set the seed first, for all devices:

        torch.manual_seed(args.seed)
        model = Net()

When this is fine
    - The seed is set twice: once for the weights, and once for the order of the data.
    - The weights are loaded, so that those of the constructor do not matter.
    - The seed is set after the training, to sample or to evaluate.
    - The function for the seed is for the workers of a DataLoader, or other programs import it.

How it is detected
    Only the linter finds it: in a program that trains, the only call that sets a seed, with a value that is called a
    seed, follows the creation of a model in the same block, and the training follows it. The seed may also be in a
    function that is called there with it, or in a loop over several seeds. It also reports
    ``torch.cuda.manual_seed`` if nothing else sets a seed, or only in the other arm of the condition, and a function
    that sets the seed of PyTorch and has "seed" in its name, if no file of the project mentions it and nothing else in
    the program sets a seed. It also reports a number, True or False that is assigned to an attribute of ``torch``,
    ``torch.cuda``, ``torch.backends`` or ``torch.backends.cudnn`` that is no setting, or to a function ``seed``.

References
    PyTorch, "Reproducibility", https://docs.pytorch.org/docs/stable/notes/randomness.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.class_instances import called_function, definitions, only_call
from trueloop.analysis.queries.possible_values import default_of, in_other_arm, parameters_of
from trueloop.analysis.queries.seeding import sets_a_seed
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import dotted_name, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_OWN: Final = re.compile(
    r"(set|fix|init|seed)\w*_(random_?)?(seeds?|everything|all)|seed_all|setup_seed", re.IGNORECASE
)
_CUDNN: Final = ("enabled", "benchmark", "benchmark_limit", "deterministic", "allow_tf32", "fp32_precision")
_SETTINGS: Final = {
    "torch": (),
    "torch.cuda": (),
    "torch.backends": ("fp32_precision",),
    "torch.backends.cudnn": _CUDNN,
}
"""Module -> the attributes that a program may set."""
_SEEDING: Final = re.compile(r"(?i)seed|determinis|reproduc")
_CUDA: Final = ("cuda.manual_seed", "cuda.manual_seed_all")
_TRAINING: Final = re.compile(r"^(train(?!er|ing)|fit|run(?!ner)|backward|learn|optimi[sz]e$)", re.IGNORECASE)
_EVALUATING: Final = re.compile(r"_?(eval|test|infer|sampl|generat|predict|plot)")
_LOADING: Final = re.compile(r"load_state_dict|from_pretrained|load_weights|load_from_checkpoint")
_RESETTING: Final = re.compile(
    r"deepcopy|load_state_dict|reset_(param|model|weight|agent)|^(re_?)?init_?(weight|model|net|param)|^apply$"
)
_LAYERS: Final = re.compile(r"^(torch\.)?nn\.[A-Z]")
_MAX_DEPTH: Final = 3


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield the only seed of a program if it comes too late, and a seed that only the GPU gets."""
    seeds = [each for each in source.all_calls if _sets_seed(each)]
    yield from _never_called(source, seeds)
    yield from _unknown_settings(source)
    on_cuda = [each for each in seeds if dotted_name(each.func).endswith(_CUDA)]
    others = [each for each in seeds if all(each is not one for one in on_cuda)]
    if on_cuda and all(in_other_arm(source, on_cuda[0], each) for each in others):
        yield Hit(
            message=f"`{ast.unparse(on_cuda[0])}` seeds only the GPU: the first weights, the order of the data and the "
            "augmentation come from the CPU and are not seeded.",
            node=on_cuda[0],
        )
        return
    others = [each for each in others if not _is_optional(source, each)]
    if len(others) == 1 and "seed" in "".join(map(ast.unparse, others[0].args)).lower():
        for model, loop in _models_before(source, others[0]):
            created, seed = ast.unparse(model.func), ast.unparse(others[0])
            message = f"`{seed}` comes after `{created}` has drawn its first weights, which are not seeded."
            if loop is not None:
                message = f"The runs of all seeds train one model: `{created}` draws its first weights before them, "
                message += "without a seed, and the second run goes on with the weights of the first."
            yield Hit(message=message, node=others[0], related=((model, "created here"),))


def _never_called(source: SourceFile, seeds: list[ast.Call]) -> Iterator[Hit]:
    """Yield each function for the seed that nothing calls, in a program in which nothing else sets a seed."""
    functions = {id(each): each for each in (function_of(source, seed) for seed in seeds)}
    for function in functions.values():
        name = getattr(function, "name", "")
        if not _SEEDING.search(name) or "worker" in name or function.decorator_list or sets_a_seed(source):
            continue
        texts = [each.value for each in source.nodes_of(ast.Constant)]
        names = [last_name(each) for each in source.nodes_of(ast.Name, ast.Attribute)]
        trains = "backward" in definitions(source).calls
        if trains and name not in [*texts, *names] and not source.is_in_other_file(name):
            yield Hit(
                message=f"`{name}` is never called, and nothing else sets a seed: each run has other random numbers.",
                node=function,
            )


def _unknown_settings(source: SourceFile) -> Iterator[Hit]:
    """Yield each assignment to a setting of PyTorch that does not exist, or to a function that should be called."""
    for statement in source.nodes_of(ast.Assign):
        target: Any = statement.targets[0]
        value = getattr(statement.value, "value", None)
        module = source.qualified_name(target.value) if isinstance(target, ast.Attribute) else ""
        if not isinstance(value, int | float) or not (module in _SETTINGS or module.endswith("random")):
            continue
        known = target.attr in _SETTINGS[module] if module in _SETTINGS else target.attr != "seed"
        uses = [] if known else definitions(source).attributes[target.attr]
        if uses and not any(isinstance(e.ctx, ast.Load) and source.qualified_name(e.value) == module for e in uses):
            yield Hit(
                message=f"`{ast.unparse(statement)}` has no effect: {module} has no such setting. If it is a function, "
                "call it.",
                node=statement,
            )


def _sets_seed(call: ast.Call) -> bool:
    """Return True for a call that seeds PyTorch, not only a generator of its own."""
    name = last_name(call.func)
    if name in ("manual_seed", "manual_seed_all"):
        owner = getattr(call.func, "value", None)
        return owner is None or last_name(owner) in ("torch", "t", "th", "cuda", "random")
    return bool(_OWN.fullmatch(name))


def _is_optional(source: SourceFile, call: ast.Call) -> bool:
    """Return True for the seed of an evaluation or of a method that may get one, and in a function that only seeds."""
    function = function_of(source, call)
    if isinstance(function, ast.Module) or not call.args:
        return False
    default = default_of(source, call.args[0])
    is_none = isinstance(default, ast.Constant) and default.value is None
    return is_none or bool(_OWN.fullmatch(function.name) or _EVALUATING.match(function.name))


def _models_before(source: SourceFile, seed: ast.Call) -> Iterator[tuple[ast.Call, ast.For | None]]:
    """Yield the first model before a seed, or before the call of the function with the seed, that is trained after it.

    With the loop over several seeds between the two, if there is one.
    """
    node: ast.Call | None = seed
    while node is not None:
        statement: Any = source.statement_of(node)
        loop: ast.For | None = None
        while _is_around_seed(source.parents.get(id(statement)), node):
            statement = source.parents[id(statement)]
            loop = statement if isinstance(statement, ast.For) else loop
        if (loop is None and node is seed) or not _makes_own(source, statement):
            model = _model_before(source, statement)
            if model is not None:
                yield model, loop
                return
        function = function_of(source, statement)
        names = {each.arg for each in parameters_of(function)} if isinstance(function, ast.FunctionDef) else set[str]()
        is_passed = not names.isdisjoint(last_name(each) for each in seed.args)
        node = only_call(source, function) if node is seed and is_passed else None


def _is_around_seed(around: Any, node: ast.Call) -> bool:
    """Return True for ``if args.seed is not None`` and for a loop over the seeds that a call gets."""
    if isinstance(around, ast.For):
        return "seed" in ast.unparse(around.target).lower() and last_name(around.target) in map(last_name, node.args)
    return isinstance(around, ast.If) and not around.orelse and "seed" in ast.unparse(around.test).lower()


def _makes_own(source: SourceFile, statement: ast.stmt) -> bool:
    """Return True if a statement, or a function that it calls, creates or resets a model after the seed."""
    calls = list(nodes_in(statement, ast.Call))
    functions = [each for each in (called_function(source, call) for call in calls) if each is not None]
    calls += [each for function in functions for each in nodes_in(function, ast.Call)]
    return any(_RESETTING.search(last_name(each.func)) or _creates_model(source, each) for each in calls)


def _model_before(source: SourceFile, statement: ast.stmt) -> ast.Call | None:
    """Return the first call before a statement, in its block, that creates a model which is trained from there on."""
    block = source.block(statement)
    if statement not in block:
        return None
    before, after = block[: block.index(statement)], block[block.index(statement) :]
    before = [each for each in before if not isinstance(each, ast.FunctionDef | ast.ClassDef)]
    calls = [call for each in before for call in nodes_in(each, ast.Call) if isinstance(each, ast.Assign)]
    model = next((each for each in calls if _creates_model(source, each)), None)
    is_trained = any(_TRAINING.search(last_name(c.func)) for each in after for c in nodes_in(each, ast.Call))
    was_trained = any(_TRAINING.search(last_name(c.func)) for each in before for c in nodes_in(each, ast.Call))
    is_loaded = any(_LOADING.search(ast.unparse(each)) for each in block)
    return model if is_trained and not was_trained and not is_loaded else None


def _creates_model(source: SourceFile, call: ast.Call, depth: int = _MAX_DEPTH) -> bool:
    """Return True for a call of a layer, a module of the program, or a class of it whose constructor creates one."""
    if _LAYERS.search(dotted_name(call.func)) and not last_name(call.func).endswith("Loss"):
        return True
    definition = definitions(source).classes.get(last_name(call.func))
    if definition is None or not depth:
        return False
    methods = {each.name: each for each in definition.body if isinstance(each, ast.FunctionDef)}
    if "__init__" not in methods:
        return False
    called = list(nodes_in(methods["__init__"], ast.Call))
    own = [methods[last_name(each.func)] for each in called if last_name(each.func) in methods]
    called += [inner for each in own for inner in nodes_in(each, ast.Call)]
    return any(_creates_model(source, each, depth - 1) for each in called)


RULE = Rule(required_words=("torch", "seed|backends|torch.cuda.", r".backward(|.fit(|.train(|train("), find=find)

BAD = """
import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args([])
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
torch.manual_seed(args.seed)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(5):
    x = torch.randn(16, 4)
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
    optimizer.step()
"""
_CREATION = "model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))\n"

FAILURE = Failure(
    code="ENV012",
    title="A seed, or a setting for equal runs, has no effect",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {f"{_CREATION}torch.manual_seed(args.seed)\n": f"torch.manual_seed(args.seed)\n{_CREATION}"}),
    fix="Call torch.manual_seed, or the function that does, before anything that draws random numbers.",
    rule=RULE,
)
