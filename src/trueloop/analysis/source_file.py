"""A parsed file: its source code, syntax tree and operations, which lint rules read."""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from operator import itemgetter
from typing import Any, Final

from trueloop.analysis.abstract_value import AbstractValue, ValueKind
from trueloop.analysis.loop_invariance import is_loop_invariant
from trueloop.analysis.operations import Loop, Op, OpKind
from trueloop.analysis.project import Module, Project, Word
from trueloop.core.findings import Severity
from trueloop.core.source_text import Edit, Fix, Node, encloses, nodes_in, unparse, walk

PATH_NODES: Final = (ast.Name, ast.Attribute, ast.Subscript)
REMOVING_METHODS: Final = frozenset(("clear", "pop", "popleft", "popitem", "remove"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A match of a lint rule."""

    message: str
    """One sentence that describes what the code does, with the names in the code."""
    node: Any
    """Syntax node whose first line is reported."""
    related: tuple[tuple[Any, str], ...] = ()
    """Related nodes, each with a description: (node, "cleared here")."""
    fix: Fix | None = None
    severity: Severity | None = None
    """Severity of this match, if it is lower than that of the failure; None = the severity of the failure."""


class SourceFile:
    """A parsed file: its text, syntax tree and operations, together with the files whose code it runs.

    Args:
        modules: the file, and the files of the project whose code it runs; text and tree contain all of them.
        operations: operations of the program, in order.
        names: node id of an expression -> its qualified name: "torch.nn.functional.dropout".
        notebook: whether the text consists of the cells of a notebook.
        project: all files of the project; None if the file is alone.
        follows_imports: False for a file that may have nothing to do with the others, as it imports none of them.
    """

    def __init__(
        self,
        modules: Sequence[Module],
        operations: Iterable[Op],
        names: dict[int, str],
        *,
        notebook: bool = False,
        project: Project | None = None,
        follows_imports: bool = True,
    ) -> None:
        self.modules, self.notebook, self._project = modules, notebook, project
        self._follows_imports = follows_imports
        first, *others = modules
        self.text, self.tree = first.text, first.tree
        if others:
            self.text = first.text.joined([each.text for each in others])
            self.tree = ast.Module([statement for each in modules for statement in each.tree.body], [])
        self.operations = tuple(operations)
        self._names = names

    def is_in_other_file(self, word: Word) -> bool:
        """Return True if another file of the project, whose code the program does not run, contains a word.

        A file that imports none of the others, and that none of them imports, may have nothing to do with them.
        """
        if self._project is None:
            return False
        is_part = self._follows_imports or self._project.is_imported(self.modules[0].path)
        return is_part and self._project.is_in_another(word, {each.path for each in self.modules})

    def is_unused(self, name: str) -> bool:
        """Return True if no file of a project of several files reads a function or class, by its name."""
        if self._project is None or not self._project.has_several_files:
            return False
        read = any(
            getattr(each, "attr", getattr(each, "id", "")) == name for each in self.nodes_of(ast.Name, ast.Attribute)
        )
        return not read and not self._project.is_in_another(name, {each.path for each in self.modules})

    def is_used_elsewhere(self, node: Any) -> bool:
        """Return True if another file, whose code the program does not run, uses the function or class of a node.

        It may use another one of the same file in its place, which uses that of the node.
        """
        if self._project is None:
            return False
        file = self.module_of(node.lineno)
        outermost = [each for each in file.tree.body if isinstance(each, ast.FunctionDef | ast.ClassDef)]
        names = {each.name for each in outermost if encloses(each, node)}
        users = {d.name for d in outermost if any(e.id in names for e in nodes_in(d, ast.Name))} | names
        own = {each.path for each in self.modules}
        return any(self._project.is_used_by_another(file.path, each, own) for each in users)

    def module_of(self, line: int) -> Module:
        """Return the file that contains a line of the syntax tree."""
        return max((each for each in self.modules if each.text.lines_before < line), key=lambda m: m.text.lines_before)

    def places_in_other_files(self, hit: Hit) -> list[tuple[Any, str]]:
        """Return the call that leads to a match in another file, and where another file created what it is about."""
        if len(self.modules) == 1:
            return []
        file = self.module_of(hit.node.lineno)
        operation = next((each for each in self.operations if each.node is hit.node), None)
        if operation is None:
            return []
        call = next((c for c in reversed(operation.calls) if self.module_of(c.lineno) is not file), None)
        created = self.created_by.get(id(operation.subject)) or next(
            (o for o in self.ops(OpKind.CREATE) if o.subject is operation.subject), None
        )
        found = [(call, "called here")] if call is not None else []
        if created is not None and self.module_of(created.node.lineno) is not file:
            found.append((created.node, f"the {created.subject.kind} was created here"))
        return [each for each in found if all(each[0] is not node for node, _ in hit.related)]

    def qualified_name(self, node: ast.expr) -> str:
        """Return the qualified name of the object that an expression refers to; "" if unknown."""
        return self._names.get(id(node), "")

    def calls_of(self, *names: str) -> Iterator[ast.Call]:
        """Yield every call of a function with one of these qualified names, also in unreachable code."""
        found = [each for name in set(names) for each in self._calls_by_qualified_name.get(name, ())]
        yield from (call for _, call in sorted(found, key=itemgetter(0)))

    @cached_property
    def _calls_by_qualified_name(self) -> dict[str, list[tuple[int, ast.Call]]]:
        """Qualified name -> the calls of it, with their places in `all_calls`."""
        found: dict[str, list[tuple[int, ast.Call]]] = {}
        for place, call in enumerate(self.all_calls):
            found.setdefault(self.qualified_name(call.func), []).append((place, call))
        return found

    @cached_property
    def all_calls(self) -> Sequence[ast.Call]:
        """Every call in the file."""
        return self.nodes_of(ast.Call)

    def nodes_of(self, *kinds: type[Node]) -> Sequence[Node]:
        """Return all nodes of some classes, outer ones before inner ones."""
        if len(self.modules) == 1:
            return self.modules[0].nodes_of(*kinds)
        if kinds not in self._nodes_by_kind:
            self._nodes_by_kind[kinds] = [node for each in self.modules for node in each.nodes_of(*kinds)]
        return self._nodes_by_kind[kinds]

    @cached_property
    def _nodes_by_kind(self) -> dict[tuple[type[ast.AST], ...], Sequence[Any]]:
        return {}

    def mentions(self, pattern: re.Pattern[str]) -> bool:
        """Return True if a pattern matches somewhere in the text of the files; each file is searched once."""
        return any(each.mentions(pattern) for each in self.modules)

    def hits_unless(self, pattern: re.Pattern[str], hits: Iterable[Hit]) -> Iterator[Hit]:
        """Yield hits if a pattern matches nowhere in the files, which are searched only if there is a hit."""
        return (each for each in hits if not self.mentions(pattern))

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of the syntax tree, outer ones before inner ones."""
        return list(chain.from_iterable(each.nodes for each in self.modules))

    @cached_property
    def parents(self) -> dict[int, ast.AST]:
        """Id of a syntax node -> its parent."""
        return _joined([each.parents for each in self.modules])

    @cached_property
    def functions(self) -> dict[int, ast.AST]:
        """Id of a syntax node -> the innermost function around it; its module if there is none."""
        return _joined([each.functions for each in self.modules])

    def ops(self, *kinds: OpKind) -> list[Op]:
        """Return the operations of the given kinds, in order."""
        if kinds not in self._ops_by_kinds:
            self._ops_by_kinds[kinds] = [each for each in self.operations if each.kind in kinds]
        return [*self._ops_by_kinds[kinds]]

    @cached_property
    def _ops_by_kinds(self) -> dict[tuple[OpKind, ...], list[Op]]:
        return {}

    def ops_in_loop(self, loop: Loop, *kinds: OpKind, root: int | None = None) -> list[Op]:
        """Return the operations in a loop, including those in inner loops and in functions that the loop calls."""
        return [
            each
            for each in self.operations
            if (not kinds or each.kind in kinds) and (root is None or each.entry_point == root) and each.is_inside(loop)
        ]

    def assigned_in(self, loop: Loop) -> Mapping[str, list[ast.expr]]:
        """Return the assignments in a loop except ``+=``: source code of a target -> full targets that contain it."""
        if id(loop.node) not in self._assignments_by_loop:
            self._assignments_by_loop[id(loop.node)] = _assignment_targets(loop.node)
        return self._assignments_by_loop[id(loop.node)]

    @cached_property
    def _assignments_by_loop(self) -> dict[int, dict[str, list[ast.expr]]]:
        return {}

    def ops_of_run(self, operation: Op) -> list[Op]:
        """Return all operations with the same entry point, in order."""
        return self._ops_by_entry_point[operation.entry_point]

    @cached_property
    def _ops_by_entry_point(self) -> dict[int, list[Op]]:
        found: dict[int, list[Op]] = {}
        for each in self.operations:
            found.setdefault(each.entry_point, []).append(each)
        return found

    @cached_property
    def created_by(self) -> dict[int, Op]:
        """Id of a value -> the operation that created the value."""
        return {id(each.result): each for each in self.operations if each.result is not None}

    @cached_property
    def emptied_containers(self) -> frozenset[str]:
        """Names and attributes of containers from which the file removes items, and of their aliases."""
        calls = [each.func for each in self.all_calls if isinstance(each.func, ast.Attribute)]
        deleted = [target for each in self.nodes if isinstance(each, ast.Delete) for target in each.targets]
        assigned = [each for each in self.nodes if isinstance(each, ast.Assign)]
        slices = [
            target
            for each in assigned
            for target in each.targets
            if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Slice)
        ]
        found = {
            last_name(each) for each in (*(e.value for e in calls if e.attr in REMOVING_METHODS), *deleted, *slices)
        }
        for each in assigned:  # losses = self.losses
            names = {last_name(n) for n in (*each.targets, each.value) if isinstance(n, ast.Name | ast.Attribute)}
            if isinstance(each.value, ast.Name | ast.Attribute) and names & found:
                found |= names
        return frozenset(found)

    def is_loop_invariant(self, expression: ast.expr, operation: Op, loop: Loop) -> bool:
        """Return True if an argument of an operation certainly has the same value in every iteration of a loop."""
        bound = {each.name for each in self.ops_in_loop(loop, OpKind.SET_ATTRIBUTE, root=operation.entry_point)}
        return is_loop_invariant(expression, operation, loop, bound)

    def remove_statement(self, operation: Op) -> Edit | None:
        """Return the edit that removes the line of an operation; None if the line contains more, even a comment."""
        statement = operation.statement
        if not isinstance(statement, ast.Expr) or statement.value is not operation.node:
            return None
        if len(self.block(statement)) < 2 or statement.lineno != statement.end_lineno:
            return None
        rest, indent = self.text.insert_after(statement), self.text.indent(statement)
        start, end = self.text.span(statement)
        if rest is None or indent is None or self.text.content[end : rest.end].strip():
            return None
        return Edit(start - len(indent.encode()), rest.end, "")

    def statement_of(self, node: ast.AST) -> Any:
        """Return the innermost statement that contains a node, or is the node; None for a module."""
        found: ast.AST | None = node
        while found is not None and not isinstance(found, ast.stmt):
            found = self.parents.get(id(found))
        return found

    def block(self, statement: ast.stmt | None) -> list[ast.stmt]:
        """Return the block that contains a statement."""
        return next((each.blocks[id(statement)] for each in self.modules if id(statement) in each.blocks), [])

    def following(self, statement: ast.stmt | None) -> list[ast.stmt]:
        """Return the statements after one in its own block."""
        block = self.block(statement)
        return block[block.index(statement) + 1 :] if statement in block else []

    @staticmethod
    def escapes(value: AbstractValue, operations: Iterable[Op]) -> bool:
        """Return True if a value, or a model whose parameters it contains, was passed to code outside the file.

        Args:
            value: a model, optimizer, scaler ...
            operations: the operations to search.
        """
        return any(
            passed.may_alias(value) or passed.covers(value)
            for operation in operations
            if operation.kind is OpKind.ESCAPE
            for passed in operation.inputs
            if passed.kind is not ValueKind.STATE  # code that gets a state has neither the model nor its gradients
        )

    @staticmethod
    def may_clear(operation: Op, value: AbstractValue) -> bool:
        """Return True if an operation may clear or modify gradients of the parameters that a value contains."""
        if operation.kind not in (OpKind.CLEAR_GRADIENTS, OpKind.ACCESS_GRADIENTS):
            return False
        known = operation.subject.models() and value.models()
        return not known or operation.subject.covers(value)

    @staticmethod
    def clears_all(operation: Op, optimizer: AbstractValue) -> bool:
        """Return True for ``zero_grad()`` of an optimizer, or of models that contain all its parameters."""
        if operation.kind is not OpKind.CLEAR_GRADIENTS or operation.name:
            return False
        models = optimizer.models()
        all_parameters = bool(models) and all(part.kind is ValueKind.PARAMETERS for part in optimizer.sources)
        return operation.subject is optimizer or (
            all_parameters and all(operation.subject.covers(each) for each in models)
        )

    @staticmethod
    def reaches(backward: Op, value: AbstractValue) -> bool:
        """Return True if a backward pass starts from the output of a model whose parameters a value may contain."""
        models = [each for each in backward.subject.autograd_graph() if each.kind is ValueKind.MODEL]
        return bool(models) and (not value.models() or any(each.covers(value) or value.covers(each) for each in models))


def _joined(tables: Sequence[dict[int, ast.AST]]) -> dict[int, ast.AST]:
    """Return the entries of several tables; a single one is not copied."""
    return tables[0] if len(tables) == 1 else dict(chain.from_iterable(each.items() for each in tables))


def last_name(node: Any) -> str:
    """Return the name or last attribute of an expression: "log" for ``self.log["loss"]``."""
    while type(node) is ast.Subscript:
        node = node.value
    kind = type(node)
    return node.id if kind is ast.Name else node.attr if kind is ast.Attribute else ""


def _assignment_targets(loop: ast.AST) -> dict[str, list[ast.expr]]:
    found: dict[str, list[ast.expr]] = {}
    for each in walk(loop):
        other = isinstance(each, ast.AnnAssign | ast.NamedExpr | ast.For)
        for target in each.targets if isinstance(each, ast.Assign) else [each.target] if other else []:
            for part in walk(target):
                if isinstance(part, PATH_NODES):
                    found.setdefault(unparse(part), []).append(target)
    return found
