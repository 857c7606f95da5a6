"""What lint finds does not depend on how a program is written.

The script of every failure is rewritten in ways that change nothing of what it does: lint must still report the
failure, and must still accept the corrected script.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Final

import pytest

from trueloop.analysis.project import Project
from trueloop.core.findings import Severity
from trueloop.failures.load import catalogue
from trueloop.lint.check_file import ActiveRule, lint_text

RULES: Final = [
    ActiveRule(entry.failure, entry.slug, entry.failure.rule) for entry in catalogue().values() if entry.failure.rule
]
MAIN: Final = "train.py"
Program = dict[str, str]
"""File name -> text; `MAIN` is the script."""

SYNONYMS: Final = {
    "model": "net", "net": "model", "optimizer": "opt", "opt": "optimizer", "scheduler": "lr_sched",
    "criterion": "loss_fn", "loss_fn": "criterion", "loader": "dl", "train_loader": "trainloader",
    "val_loader": "validloader", "test_loader": "testloader", "dataset": "ds", "x": "inputs", "y": "targets",
    "inputs": "xb", "labels": "yb", "images": "imgs", "out": "pred", "output": "yhat", "outputs": "preds",
    "epoch": "ep", "device": "dev", "running_loss": "epoch_loss", "total_loss": "sum_loss", "encoder": "enc",
    "decoder": "dec", "generator": "netG", "discriminator": "netD", "train": "train_model", "evaluate": "validate",
}  # fmt: skip
"""Name -> another usual name of the same thing."""

Names = set[str]


def stored(nodes: Iterable[ast.AST]) -> Names:
    """Return the names that statements bind in their own scope."""
    names: Names = set()
    for node in nodes:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
                continue
            case ast.Lambda() | ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                continue
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case ast.alias(name=name, asname=alias):
                names.add((alias or name).partition(".")[0])
            case _:
                pass
        names |= stored(ast.iter_child_nodes(node))
    return names


def loaded(nodes: Iterable[ast.AST]) -> list[str]:
    """Return the names that statements read, in order."""
    every = [each for node in nodes for each in ast.walk(node)]
    read = [each.id for each in every if isinstance(each, ast.Name) and not isinstance(each.ctx, ast.Store)]
    read += [each.target.id for each in every if isinstance(each, ast.AugAssign) and isinstance(each.target, ast.Name)]
    return list(dict.fromkeys(read))


def function(name: str, parameters: Sequence[str], body: list[ast.stmt]) -> ast.FunctionDef:
    created = ast.parse(f"def {name}({', '.join(parameters)}): pass").body[0]
    assert isinstance(created, ast.FunctionDef)
    created.body = body
    return created


def text_of(statements: Iterable[ast.stmt]) -> str:
    return ast.unparse(ast.fix_missing_locations(ast.Module(list(statements), []))) + "\n"


class Script:
    """The parts of a script: imports, definitions, and the statements that run."""

    def __init__(self, text: str) -> None:
        self.tree = ast.parse(text)
        self.imports = [each for each in self.tree.body if isinstance(each, ast.Import | ast.ImportFrom)]
        self.definitions = [each for each in self.tree.body if isinstance(each, ast.FunctionDef | ast.ClassDef)]
        self.statements = [each for each in self.tree.body if each not in self.imports + self.definitions]
        # Statements of a script whose functions read its variables cannot be moved into another scope.
        self.can_be_moved = not stored(self.statements) & set(loaded(self.definitions)) and not any(
            isinstance(each, ast.Global) for each in ast.walk(self.tree)
        )

    @property
    def head(self) -> list[ast.stmt]:
        return [*self.imports, *self.definitions]

    @property
    def names(self) -> Names:
        return {each.id for each in ast.walk(self.tree) if isinstance(each, ast.Name)} | stored([self.tree])


class Renamed(ast.NodeTransformer):
    """Renames the variables, parameters and functions of a script; attributes keep their names."""

    def __init__(self, script: Script) -> None:
        bound = {each.id for each in ast.walk(script.tree) if isinstance(each, ast.Name) and stored([each])}
        bound |= {each.arg for each in ast.walk(script.tree) if isinstance(each, ast.arg)}
        bound |= stored(script.definitions)
        bound -= stored(script.imports)
        self.own = stored(script.definitions)
        self.new = {old: SYNONYMS[old] for old in bound & set(SYNONYMS) if SYNONYMS[old] not in script.names | bound}

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(self.new.get(node.id, node.id), node.ctx)

    def visit_arg(self, node: ast.arg) -> ast.arg:
        return ast.arg(self.new.get(node.arg, node.arg), node.annotation)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.name = self.new.get(node.name, node.name) if node.name in self.own else node.name
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if isinstance(node.func, ast.Name) and node.func.id in self.own:
            for each in node.keywords:
                each.arg = self.new.get(each.arg or "", each.arg)
        return self.generic_visit(node)


def with_other_names(script: Script) -> Program | None:
    renamed = Renamed(script)
    return {MAIN: ast.unparse(renamed.visit(script.tree))} if renamed.new else None


class Wrapped(ast.NodeTransformer):
    """Iterates over each loader or range inside a progress bar."""

    def visit_For(self, node: ast.For) -> ast.AST:
        node.iter = ast.Call(ast.Name("tqdm"), [node.iter], [ast.keyword("desc", ast.Constant("train"))])
        return self.generic_visit(node)


def with_progress_bars(script: Script) -> Program | None:
    if "tqdm" in script.names or not any(isinstance(each, ast.For) for each in ast.walk(script.tree)):
        return None
    return {MAIN: f"from tqdm import tqdm\n{ast.unparse(ast.fix_missing_locations(Wrapped().visit(script.tree)))}"}


def in_main(script: Script) -> Program | None:
    if not script.can_be_moved or not script.statements:
        return None
    text = text_of([*script.head, function("main", [], script.statements)])
    return {MAIN: f'{text}\nif __name__ == "__main__":\n    main()\n'}


def in_two_modules(script: Script) -> Program | None:
    used = sorted(stored(script.definitions) & set(loaded(script.statements)))
    if not script.can_be_moved or not used:
        return None
    header = text_of(script.imports) + f"from library import {', '.join(used)}\n\n"
    return {MAIN: header + text_of(script.statements), "library.py": text_of(script.head)}


def first_loop(script: Script) -> int | None:
    loops = (i for i, each in enumerate(script.statements) if isinstance(each, ast.For | ast.While | ast.With))
    return next(loops, None)


def loop_in_function(script: Script) -> Program | None:
    index = first_loop(script)
    if not script.can_be_moved or index is None or "train" in script.names:
        return None
    before, loop, after = script.statements[:index], script.statements[index], script.statements[index + 1 :]
    parameters = [each for each in loaded([loop]) if each in stored(before)]
    results = ", ".join(sorted(stored([loop]) & set(loaded(after))))
    body = [loop, *ast.parse(f"return {results}" if results else "").body]
    call = ast.parse(f"{results} = train({', '.join(parameters)})" if results else f"train({', '.join(parameters)})")
    defined = function("train", parameters, body)
    return {MAIN: text_of([*script.head, defined, *before, *call.body, *after])}


class Attributes(ast.NodeTransformer):
    """Replaces variables by attributes of self."""

    def __init__(self, names: Names) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Attribute(ast.Name("self"), node.id, node.ctx) if node.id in self.names else node


def in_a_class(script: Script) -> Program | None:
    index = first_loop(script)
    scopes = ast.Lambda | ast.comprehension | ast.FunctionDef
    if not script.can_be_moved or not index or "Trainer" in script.names:
        return None
    if any(isinstance(each, scopes) for statement in script.statements for each in ast.walk(statement)):
        return None
    attributes = Attributes(stored(script.statements[:index]))
    statements = [attributes.visit(each) for each in script.statements]
    trainer = ast.parse("class Trainer:\n    pass").body[0]
    assert isinstance(trainer, ast.ClassDef)
    methods = {"__init__": statements[:index], "run": statements[index:]}
    trainer.body = [function(name, ["self"], body) for name, body in methods.items()]
    return {MAIN: text_of([*script.head, trainer, *ast.parse("trainer = Trainer()\ntrainer.run()").body])}


WAYS: Final[Mapping[str, Callable[[Script], Program | None]]] = {
    "with other names": with_other_names,
    "with progress bars": with_progress_bars,
    "in a function main": in_main,
    "in two modules": in_two_modules,
    "with the loop in a function": loop_in_function,
    "in a class": in_a_class,
}
EXCEPTIONS: Final[Mapping[str, Names]] = {
    "with other names": {"LOS027", "LOS080"},  # `x, y, w, h` tell what the numbers of a box are
    "with progress bars": set(),
    "in a function main": {"EVL015"},
    "in two modules": set(),
    "with the loop in a function": {"GRD011", "DAT021", "DAT042", "DAT045", "CKP009"},
    "in a class": {"GRD030", "EVL009", "EVL015", "OPT006", "LRN002", "DAT014", "DAT040", "DAT042", "ENV012"},
}
"""Failures that are not reported in a program written in this way, or that are reported in a correct one."""


@cache
def found_in(script: str) -> Names:
    """Return the codes of a script, which is compared with all its forms."""
    return found({MAIN: ast.unparse(ast.parse(script))})


def found(program: Program) -> Names:
    """Return the codes of all errors and warnings."""
    texts = {os.path.abspath(name): text for name, text in program.items()}
    project = Project(list(texts), texts.__getitem__)
    results = [lint_text(text, name, RULES, project=project) for name, text in program.items()]
    assert not any(each.problem for each in results), program
    return {each.code for result in results for each in result.findings if each.severity != Severity.NOTE}


def differences(text: str, way: str) -> Names:
    """Return the codes that are found in only one of a script and its rewritten form."""
    rewritten = WAYS[way](Script(text))
    return found_in(text) ^ found(rewritten) if rewritten else set()


@pytest.mark.slow(reason="all scripts of the catalogue are linted in six forms")
@pytest.mark.parametrize("way", WAYS)
def test_findings_do_not_depend_on_the_way_a_script_is_written(way: str):
    scripts = {active.failure.code: (active.failure.bad, active.failure.good) for active in RULES}
    differing = {code: [differences(text, way) for text in pair] for code, pair in scripts.items()}
    assert {code: codes for code, codes in differing.items() if any(codes)}.keys() == EXCEPTIONS[way], differing
