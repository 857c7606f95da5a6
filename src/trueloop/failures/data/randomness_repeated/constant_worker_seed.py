"""Finds a ``worker_init_fn`` that gives each worker the same seed in every epoch, in the source."""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.possible_values import computed_from, known_integer, origins, parameters_of
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.findings import Severity
from trueloop.core.source_text import dotted_name, encloses, nodes_in

DRAWS: Final = frozenset((
    "rand", "randn", "randint", "rand_like", "randn_like", "normal", "uniform", "choice", "sample", "random", "gauss",
    "normal_", "uniform_", "bernoulli", "randperm", "permutation", "shuffle", "integers",
))  # fmt: skip
"""Functions and methods that draw random numbers."""

_SEEDING: Final = {
    "seed": ("np.random.", "numpy.random.", "random."),
    "manual_seed": ("torch.",),
    "seed_everything": ("np.random.", "numpy.random.", "random.", "torch."),
}
"""Name of a seeding function -> the functions whose random numbers it determines."""
_LIBRARIES: Final = frozenset(("np.random.", "numpy.random.", "random.", "torch."))
_CHANGING: Final = re.compile(
    r"epoch|\bep\b|initial_seed|get_worker_info|\binfo\b|time|urandom|secrets|get_state|step|iteration|round|getpid|base_seed"
)
"""Parts of an expression that may have another value in each epoch."""
_FIRST_WORD: Final = re.compile(r"get_state\(\)\[1\]\[0\]")
_RANDOM_TRANSFORMS: Final = re.compile(
    r"\bRandom[A-Z]\w+\(|ColorJitter\(|GaussianBlur\(|AutoAugment|RandAugment|TrivialAugment"
)


def find_constant_seeds(source: SourceFile) -> Iterator[Hit]:
    """Yield the first seeding in a ``worker_init_fn`` whose generator the samples of a training loader are drawn from.

    If the loader shuffles, the numbers repeat, but another sample gets them: a note, unless all workers repeat them.
    """
    for loader in source.all_calls:
        options = {each.arg: each.value for each in loader.keywords}
        initialise = options.get("worker_init_fn")
        if initialise is None or last_name(loader.func) != "DataLoader" or not _is_trained(source, loader, options):
            continue
        drawn = list(_drawn_per_sample(source, loader, options))
        for seed in _constant_seeds(source, initialise):
            owner = dotted_name(seed.func).rpartition(".")[0]
            libraries = [each for each in _SEEDING[last_name(seed.func)] if not owner or each == f"{owner}."]
            found = next((call for library, call in drawn if library in libraries), None)
            if found is not None:
                is_alone = known_integer(source, options["num_workers"]) == 1
                is_same = not is_alone and _ignores_worker(source, seed, initialise)
                shared = (
                    f"gives all workers the same seed: `{ast.unparse(found)}` draws the same numbers in each of them."
                )
                repeated = (
                    "gives a worker the same seed in every epoch, because workers are started again for each epoch: "
                    f"`{ast.unparse(found)}` repeats the numbers of the first epoch."
                )
                yield Hit(
                    message=f"`{ast.unparse(seed)}` {shared if is_same else repeated}",
                    node=seed,
                    related=((loader, "the loader"), (found, "drawn here")),
                    severity=Severity.NOTE if _is_shuffled(options) and not is_same else None,
                )
                break


def _ignores_worker(source: SourceFile, seed: ast.Call, initialise: ast.expr) -> bool:
    """Return True if a seed is not computed from the number of the worker, the first free parameter."""
    made = next((each for each in origins(source, initialise) if isinstance(each, ast.Call)), None)
    bound = {each.arg for each in made.keywords} if made is not None else set()
    bound_by_position = len(made.args) - 1 if made is not None and last_name(made.func) == "partial" else 0
    function = next((each for each in _functions(source, initialise) if encloses(each, seed)), None)
    names = [each.arg for each in parameters_of(function) if each.arg != "self"] if function is not None else []
    free = [each for each in names[max(bound_by_position, 0) :] if each not in bound]
    used = {each.id for each in computed_from(source, seed.args[0]) if isinstance(each, ast.Name)}
    return bool(free) and free[0] not in used


def find_first_words(source: SourceFile) -> Iterator[Hit]:
    """Yield each seed of a worker that is the first word of NumPy's state, which is the same in every new worker.

    PyTorch has seeded NumPy from several numbers before, and this word is then a constant. In older versions it is a
    copy from the main process, where it hardly changes either.
    """
    loaders = [{e.arg: e.value for e in call.keywords} for call in source.all_calls]
    loaders = [each for each in loaders if "worker_init_fn" in each]
    if loaders and all(_is_persistent(each) for each in loaders):
        return  # the workers are started once
    given = [each["worker_init_fn"] for each in loaders]
    functions = [function for each in given for function in _functions(source, each)]
    for call in definitions(source).calls.get("seed", []):
        is_named = "worker" in getattr(function_of(source, call), "name", "")
        is_worker = is_named or any(encloses(each, call) for each in functions)
        values = [each for part in call.args for each in computed_from(source, part)] if is_worker else []
        if not loaders and source.is_used_elsewhere(call):  # judged with the file that makes the loader
            continue
        is_first = any(isinstance(e, ast.Subscript) and _FIRST_WORD.search(ast.unparse(e)) for e in values)
        if is_first and not any(_CHANGING.search(last_name(each).replace("get_state", "")) for each in values):
            yield Hit(
                message=f"`{ast.unparse(call)}` gives a worker the same seed in every epoch: the first word of the "
                "state of NumPy is the same in all new workers. Compute the seed from `torch.initial_seed()`.",
                node=call,
            )


def _is_trained(source: SourceFile, loader: ast.Call, options: dict[str | None, ast.expr]) -> bool:
    """Return True for a loader of training samples, in workers that are started again for each epoch."""
    workers = options.get("num_workers")
    has_workers = workers is not None and not (isinstance(workers, ast.Constant) and not workers.value)
    is_training = _is_shuffled(options) or "train" in ast.unparse(source.statement_of(loader))
    return has_workers and not _is_persistent(options) and is_training


def _is_persistent(options: dict[str | None, ast.expr]) -> bool:
    persistent = options.get("persistent_workers")
    return persistent is not None and not (isinstance(persistent, ast.Constant) and not persistent.value)


def _is_shuffled(options: dict[str | None, ast.expr]) -> bool:
    shuffle, sampler = options.get("shuffle"), options.get("sampler")
    return sampler is not None or (
        shuffle is not None and not (isinstance(shuffle, ast.Constant) and not shuffle.value)
    )


def _constant_seeds(source: SourceFile, initialise: ast.expr) -> Iterator[ast.Call]:
    """Yield the calls in a worker's function that set a seed computed from constants and the worker's number."""
    for function in _functions(source, initialise):
        text = ast.unparse(function)
        for call in nodes_in(function, ast.Call):
            name = last_name(call.func)
            if name in _SEEDING and len(call.args) == 1 and not _CHANGING.search(text):
                values = [e for inner in nodes_in(call.args[0], ast.expr) for e in origins(source, inner)]
                if not any(_CHANGING.search(ast.unparse(e)) or _is_call(e) for e in values):
                    yield call


def _functions(source: SourceFile, initialise: ast.expr) -> Iterator[Any]:
    """Yield the function, lambda or ``__call__`` that an expression for ``worker_init_fn`` may be."""
    known = definitions(source)
    for each in origins(source, initialise):
        if isinstance(each, ast.Lambda):
            yield each
        elif isinstance(each, ast.Name | ast.Attribute) and last_name(each) in known.functions:
            yield known.functions[last_name(each)]
        elif isinstance(each, ast.Call) and last_name(each.func) == "partial" and each.args:
            yield from _functions(source, each.args[0])
        elif isinstance(each, ast.Call) and (kind := known.classes.get(last_name(each.func))) is not None:
            yield from (e for e in kind.body if isinstance(e, ast.FunctionDef) and e.name == "__call__")


def _is_call(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and last_name(node.func) not in ("int", "parse_args", "ArgumentParser", "abs")


def _drawn_per_sample(
    source: SourceFile, loader: ast.Call, options: dict[str | None, ast.expr]
) -> Iterator[tuple[str, ast.Call]]:
    """Yield the calls of global generators that reading a sample of a loader's dataset makes, with the library."""
    dataset = loader.args[0] if loader.args else options.get("dataset")
    for each in origins(source, dataset) if dataset is not None else ():
        if not isinstance(each, ast.Call):
            continue
        kind = definitions(source).classes.get(last_name(each.func))
        yield from _drawn_in(source, kind) if kind is not None else ()
        given = [
            value for argument in (*each.args, *(e.value for e in each.keywords)) for value in origins(source, argument)
        ]
        if any(_RANDOM_TRANSFORMS.search(ast.unparse(value)) for value in given):
            yield "torch.", each


def _drawn_in(source: SourceFile, dataset: ast.ClassDef) -> Iterator[tuple[str, ast.Call]]:
    """Yield the calls of global generators in ``__getitem__`` and the methods and functions that it calls."""
    methods = {each.name: each for each in dataset.body if isinstance(each, ast.FunctionDef)}
    pending, seen = [methods[name] for name in ("__getitem__", "__iter__") if name in methods], set[str]()
    while pending:
        for call in nodes_in(pending.pop(), ast.Call):
            library, _, name = dotted_name(call.func).rpartition(".")
            if f"{library}." in _LIBRARIES and name in DRAWS:
                yield f"{library}.", call
            called = methods.get(name) if library == "self" else definitions(source).functions.get(name)
            if called is not None and name not in seen:
                seen.add(name)
                pending.append(called)
