"""Abstract interpreter: goes through the statements of a file in the order of execution, without running them."""

import ast
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

from trueloop.analysis.abstract_value import EXTERNAL, GRAD, AbstractValue, ValueKind, join_values, unknown_value
from trueloop.analysis.interpreter.assignments import Assignments
from trueloop.analysis.interpreter.calls import Calls
from trueloop.analysis.interpreter.contexts import enter_context
from trueloop.analysis.interpreter.evaluator import Evaluator, element
from trueloop.analysis.interpreter.imports import Imports, is_registering
from trueloop.analysis.interpreter.methods import KEYWORDS, KNOWN_ITEMS
from trueloop.analysis.interpreter.recording import (
    MAX_CALL_DEPTH,
    MAX_STATEMENTS_WITH_IMPORTS,
    LimitExceeded,
    Recording,
)
from trueloop.analysis.interpreter.roles_by_use import kind_by_use
from trueloop.analysis.interpreter.scope import ModuleScope, Scope
from trueloop.analysis.interpreter.undefined_names import UndefinedNames
from trueloop.analysis.operations import Branch, OpKind
from trueloop.analysis.project import Module, Project
from trueloop.analysis.source_file import SourceFile
from trueloop.core.source_text import children

Function = ast.FunctionDef | ast.AsyncFunctionDef
_JUMPS: Final = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_CONTEXT_MANAGERS: Final = frozenset(("contextmanager", "asynccontextmanager", "fixture"))


def interpret(
    module: Module, *, notebook: bool = False, project: Project | None = None, follows_imports: bool = True
) -> SourceFile:
    """Interpret a file and return it with its operations.

    Args:
        module: the file.
        notebook: whether the source code consists of the cells of a notebook.
        project: the other files, into which imports are followed, and in which rules may look for a word.
        follows_imports: False if the imports shall not be followed.
    """
    interpreter = Interpreter(module, project if follows_imports else None)
    try:
        interpreter.run()
    except (LimitExceeded, RecursionError):
        if project is not None and follows_imports:
            return interpret(module, notebook=notebook, project=project, follows_imports=False)
        interpreter.recording.operations.clear()  # an incomplete program proves nothing
    recording = interpreter.recording
    return SourceFile(
        interpreter.imports.modules(),
        recording.operations,
        recording.names,
        notebook=notebook,
        project=project,
        follows_imports=follows_imports,
    )


@dataclass(slots=True)
class _Body:
    """The body of a ``with`` statement, and where it runs."""

    item: ast.withitem
    others: Sequence[ast.withitem]
    """Context managers of the same statement that are entered later."""
    statements: Sequence[ast.stmt]
    scope: Scope
    returns: list[AbstractValue]
    yields: list[AbstractValue]
    outer: "_Body | None"
    frame: tuple[Any, ...]
    has_run: bool = False


class Interpreter:
    """Interprets statements; `evaluator` evaluates their expressions, and `calls` their calls.

    Args:
        module: the file to interpret.
        project: files into which imports are followed.
    """

    def __init__(self, module: Module, project: Project | None = None) -> None:
        self.recording = Recording()
        self.imports = Imports(self, project)
        self.scope: Scope = ModuleScope(module, self.imports)
        self.module_scope = self.imports.scopes[module.path] = self.scope
        self.module_scope.is_complete = self.module_scope.has_run = self._follows_imports = True
        self.evaluator = Evaluator(self)
        self.calls = Calls(self)
        self.assignments = Assignments(self)
        self.undefined_names = UndefinedNames(self)
        self.executed: set[Any] = set()
        """Functions that were interpreted."""
        self._handlers: dict[type[ast.stmt], Callable[[Any], None] | None] = {}
        """Class of a statement -> the method that runs it."""
        self._imported: Set[str] = frozenset()
        """Names of the module that are imported from other files of the project."""
        self._returns: list[AbstractValue] = []
        self._yields: list[AbstractValue] = []
        self._bodies: dict[ast.AST, _Body] = {}
        """Call of a context manager -> the body of the ``with`` statement that calls it."""
        self._body: _Body | None = None
        """What the running context manager runs at its ``yield``."""
        self._call_stack: list[Any] = []
        self._conditions: dict[ast.stmt, AbstractValue] = {}
        """Condition -> its value at the latest evaluation."""

    def run(self) -> None:
        """Run the module, then every function that the file does not call, since other files may call it."""
        module = self.module_scope.module
        self.run_block(module.tree.body)
        called = {getattr(node.func, "attr", getattr(node.func, "id", "")) for node in module.calls.calls}
        self._imported = self.imports.imported_names(self.module_scope)
        # First the functions that nothing calls, then those that only code that was not interpreted calls.
        for only_uncalled in (True, False):
            for value, node in list(self._definitions()):
                if not only_uncalled or (node.name not in called and node.name != "__init__"):
                    self._run_uncalled(value, node)

    def _definitions(self) -> Iterator[tuple[AbstractValue, Function]]:
        """Yield the value and definition of every function, and for every method its class and definition."""
        for value in self.module_scope.names.values():
            if value.kind is ValueKind.FUNCTION and isinstance(value.node, Function):
                yield value, value.node
            elif value.kind is ValueKind.CLASS:
                yield from ((value, each) for each in value.node.body if isinstance(each, Function))

    def _run_uncalled(self, value: AbstractValue, node: Function) -> None:
        """Run a function that the file does not call; the kinds of its arguments are inferred from their use."""
        calls = self.module_scope.module.calls
        if node in self.executed or not (node.name in ("forward", "__init__") or calls.may_train(node, self._imported)):
            return
        if _is_context_manager(node):  # what it yields to is in another file
            return
        self.recording.entry_point += 1
        self._follows_imports = node.name == "__init__" or calls.may_run_training(node, self._imported)
        if value.kind is ValueKind.CLASS:
            instance = self.calls.create_instance(value, node, [], {})
            if node.name == "__init__":
                return
            value = AbstractValue(kind=ValueKind.FUNCTION, node=node, scope=value.scope, sources=(instance,))
        self.run_function(value, node, [], {})

    def run_module(self, scope: ModuleScope, statements: Sequence[ast.stmt]) -> None:
        """Run statements of an imported file, outside of the loops and functions of the running code."""
        before = self.scope, self._returns, self._yields
        self.scope, self._returns, self._yields = scope, [], []
        try:
            with self.recording.module_level():
                self.run_block(statements)
        finally:
            self.scope, self._returns, self._yields = before

    def may_follow_imports(self) -> bool:
        """Return False in an uncalled function that neither trains nor evaluates, and after many statements."""
        return self._follows_imports and self.recording.statements < MAX_STATEMENTS_WITH_IMPORTS

    # Functions -------------------------------------------------------------------------------------------------------

    def run_function(
        self,
        function: AbstractValue,
        call: ast.AST,
        positional: Sequence[AbstractValue],
        keyword: dict[str, AbstractValue],
    ) -> AbstractValue:
        """Run a function of the file, and return its return value."""
        node: Any = function.node
        outer: Scope = function.scope or self.module_scope  # a union of functions has no scope
        is_limited = outer.module_scope is not self.module_scope and not self.may_follow_imports()
        if len(self._call_stack) >= MAX_CALL_DEPTH or node in self._call_stack or is_limited:
            self.recording.add(OpKind.ESCAPE, call, function, *positional, *keyword.values(), *function.sources)
            return unknown_value(call, *positional, *keyword.values())
        self.executed.add(node)
        outer.module_scope.has_run = True
        scope = Scope(outer)
        before = self.scope, self._returns, self._yields, self._body
        with self.recording.call(call, node), self.recording.restored_modes():
            self._bind_arguments(function, scope, positional, keyword, uncalled=call is node)
            self.scope, self._returns, self._yields = scope, [], []
            self._body = self._bodies.pop(call) if call in self._bodies and _is_context_manager(node) else None
            self._call_stack.append(node)
            try:
                for decorator in getattr(node, "decorator_list", ()):
                    enter_context(self, decorator)
                if isinstance(node, ast.Lambda):
                    self._returns.append(self.evaluator.evaluate(node.body))
                else:
                    self.run_block(node.body)
                returned, yielded = self._returns, self._yields
            finally:
                self._call_stack.pop()
                self.scope, self._returns, self._yields, self._body = before
        if yielded:
            return self._generator_result(node, call, yielded)
        return reduce(join_values, returned) if returned else AbstractValue(kind=ValueKind.CONSTANT, node=call)

    def _generator_result(self, node: Any, call: ast.AST, yielded: Sequence[AbstractValue]) -> AbstractValue:
        """Return what a generator function returns: a sequence of its yielded values, or a context manager's value."""
        if _is_context_manager(node):
            return reduce(join_values, yielded)
        return AbstractValue(kind=ValueKind.SEQUENCE, name="generator", node=call, sources=tuple(yielded))

    def _bind_arguments(
        self,
        function: AbstractValue,
        scope: Scope,
        positional: Sequence[AbstractValue],
        keyword: dict[str, AbstractValue],
        *,
        uncalled: bool,
    ) -> None:
        node: Any = function.node
        arguments: ast.arguments = node.args
        parameters = [*arguments.posonlyargs, *arguments.args]
        values = [*function.sources[:1], *positional]  # the source of a bound method is its instance
        defaults = dict(zip([each.arg for each in reversed(parameters)], reversed(arguments.defaults), strict=False))
        defaults |= {
            each.arg: default
            for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
            if default is not None
        }
        for each in (*parameters, *arguments.kwonlyargs):
            if values and each in parameters:
                value = values.pop(0)
            elif each.arg in keyword:
                value = keyword[each.arg]
            elif "**" in keyword and not uncalled:  # model(**batch), whose keys are unknown
                value = unknown_value(each, keyword["**"])
            elif each.arg in defaults and not uncalled:
                value = self._default_value(defaults[each.arg], function)
            else:
                value = self._external_argument(each, node)
            scope.names[each.arg] = self.infer_kind(value, each.arg, node, scope)
        if arguments.vararg is not None:
            scope.names[arguments.vararg.arg] = unknown_value(node, *values, *keyword.values())
        if arguments.kwarg is not None:
            taken = {each.arg for each in (*arguments.args, *arguments.kwonlyargs)}
            rest = {key: each for key, each in keyword.items() if key not in taken}
            scope.names[arguments.kwarg.arg] = _keywords(node, rest) or unknown_value(node, *values, *keyword.values())

    def _default_value(self, node: ast.expr, function: AbstractValue) -> AbstractValue:
        """Return the default value of an argument, evaluated in the scope of the definition."""
        before, self.scope = self.scope, function.scope or self.scope
        try:
            return self.evaluator.evaluate(node)
        finally:
            self.scope = before

    def _external_argument(self, argument: ast.arg, node: Any) -> AbstractValue:
        """Return the value of an argument that the file does not pass; its kind is that of the annotation."""
        value = unknown_value(argument)
        value.facts = value.facts | {EXTERNAL}
        annotation = argument.annotation
        if annotation is not None:
            kind = self.evaluator.annotated_kind(annotation)
            if kind is not None:
                value.kind = kind
        return value

    def infer_kind(self, value: AbstractValue, path: str, user: Any, scope: Scope | None = None) -> AbstractValue:
        """Set the kind of a value, if unknown, to that inferred from the methods that a function or class calls on it.

        Args:
            value: the value.
            path: name or attribute that has the value: "self.net".
            user: the function, class or module that uses the value.
            scope: a scope in the file of the user; None = the running scope.

        Returns:
            The value.
        """
        if value.kind is ValueKind.UNKNOWN and user is not None:
            calls = (scope or self.scope).module_scope.module.calls
            kind = kind_by_use(calls.methods_of(path, user), path.rpartition(".")[2])
            if kind is not None:
                value.kind = kind
        return value

    def add_return(self, value: AbstractValue) -> None:
        """Add a return value of the running function."""
        self._returns.append(value)

    def add_yield(self, value: AbstractValue) -> None:
        """Add a value that the running generator yields; a context manager runs the body of its ``with`` statement."""
        self._yields.append(value)
        if self._body is not None:
            self._run_body(self._body, value)

    # Statements ------------------------------------------------------------------------------------------------------

    def run_block(self, statements: Sequence[ast.stmt]) -> None:
        """Run statements in order; if one arm of an ``if`` leaves the block, the rest belongs to the other arm."""
        for index, statement in enumerate(statements):
            self.recording.start_statement(statement)
            self._run_statement(statement)
            if isinstance(statement, ast.If):
                ends = [_leaves_block(arm) for arm in (statement.body, statement.orelse)]
                decided = self.evaluator.static_truth(statement.test) if any(ends) else None
                if decided is not None and ends[0 if decided else 1]:
                    return
                if any(ends) and not all(ends) and decided is None:
                    with self.recording.branch(Branch(statement, 1 if ends[0] else 0, self._conditions.get(statement))):
                        self.run_block(statements[index + 1 :])
                    return
            if isinstance(statement, _JUMPS):
                return

    def _run_statement(self, statement: ast.stmt) -> None:
        kind = type(statement)
        if kind not in self._handlers:
            self._handlers[kind] = getattr(self, f"_{kind.__name__.lower()}", None)
        run = self._handlers[kind]
        if run is not None:
            run(statement)
            return
        for value in children(statement):  # assert, delete ...
            if isinstance(value, ast.expr):
                self.evaluator.evaluate(value)

    def _delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            if isinstance(target, ast.Attribute) and target.attr == GRAD:
                self.assignments.assign(target, AbstractValue(kind=ValueKind.CONSTANT, node=target))
            else:
                self.evaluator.evaluate(target)

    def _functiondef(self, node: Function) -> None:
        value = AbstractValue(kind=ValueKind.FUNCTION, name=node.name, node=node, scope=self.scope)
        self.scope.assign(node.name, value)
        self._register(node, value)

    _asyncfunctiondef = _functiondef

    def _classdef(self, node: ast.ClassDef) -> None:
        value = self.calls.define_class(node)
        self.scope.assign(node.name, value)
        self._register(node, value)

    def _register(self, node: Function | ast.ClassDef, value: AbstractValue) -> None:
        """Run the decorators of the program with arguments, as ``@register("adam")``, which store what they get."""
        for decorator in node.decorator_list if not self.recording.functions else ():
            if not is_registering(decorator, node):
                continue
            found = self.evaluator.evaluate(decorator)
            if found.kind is ValueKind.FUNCTION and not found.union:
                self.run_function(found, decorator, [value], {})

    def _import(self, node: ast.Import) -> None:
        for alias in node.names:
            name = alias.name if alias.asname else alias.name.partition(".")[0]
            self.scope.assign(alias.asname or name, self.imports.imported(name, node, name))

    def _importfrom(self, node: ast.ImportFrom) -> None:
        module = "." * node.level + (node.module or "")
        for alias in node.names:
            value = self.imports.imported(f"{module}.{alias.name}", node, node.module or "", node.level, alias.name)
            self.scope.assign(alias.asname or alias.name, value)

    def _global(self, node: ast.Global) -> None:
        for name in node.names:
            self.scope.declare(name, is_global=True)

    def _nonlocal(self, node: ast.Nonlocal) -> None:
        for name in node.names:
            self.scope.declare(name, is_global=False)

    def _expr(self, node: ast.Expr) -> None:
        self.evaluator.evaluate(node.value)

    def _assign(self, node: ast.Assign) -> None:
        value = self.evaluator.evaluate(node.value)
        for target in node.targets:
            self.assignments.assign(target, value)

    def _annassign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.assignments.assign(node.target, self.evaluator.evaluate(node.value))
            return
        kind = self.evaluator.annotated_kind(node.annotation)
        if kind is not None and isinstance(node.target, ast.Name):
            self.scope.assign(node.target.id, AbstractValue(kind=kind, node=node, facts={EXTERNAL}))

    def _augassign(self, node: ast.AugAssign) -> None:
        self.assignments.assign_augmented(node)

    def _return(self, node: ast.Return) -> None:
        self.add_return(
            self.evaluator.evaluate(node.value) if node.value else AbstractValue(kind=ValueKind.CONSTANT, node=node)
        )

    def _if(self, node: ast.If) -> None:
        decided = self.evaluator.static_truth(node.test)
        self._conditions[node] = self.evaluator.evaluate(node.test)
        if decided is not None:
            self.run_block(node.body if decided else node.orelse)
            return
        self._run_arms(node, [node.body, node.orelse])

    def _run_arms(self, node: ast.stmt, arms: Sequence[Sequence[ast.stmt]]) -> None:
        """Run each arm with the same initial names, then merge the names of the arms that do not leave the block."""
        start, ends = self.scope.copy_names(), list[dict[str, AbstractValue]]()
        test = self._conditions.get(node)
        for number, arm in enumerate(arms):
            self.scope.names = dict(start)
            with self.recording.branch(Branch(node, number, test)):
                self.run_block(arm)
            if not _leaves_block(arm):
                ends.append(self.scope.names)
        self.scope.names = ends[0] if ends else start
        for other in ends[1:]:
            self.scope.merge(other)

    def _try(self, node: ast.Try) -> None:
        body = [*node.body, *node.orelse]
        if node.handlers:
            start = self.scope.copy_names()
            self.run_block(body)
            merged = self.scope.names
            for number, handler in enumerate(node.handlers, 1):
                self.scope.names = dict(start)
                with self.recording.branch(Branch(node, number)):
                    self.run_block(handler.body)
                if not _leaves_block(handler.body):
                    self.scope.merge(merged)
                    merged = self.scope.names
            self.scope.names = merged
        else:
            self.run_block(body)
        self.run_block(node.finalbody)

    _trystar = _try

    def _match(self, node: ast.Match) -> None:
        self.evaluator.evaluate(node.subject)
        self._run_arms(node, [*(case.body for case in node.cases), []])

    def _for(self, node: ast.For | ast.AsyncFor) -> None:
        iterable = self.evaluator.evaluate(node.iter)
        self.recording.add(OpKind.ITERATE, node, iterable)
        before = self.scope.copy_names()
        with self.recording.loop(node, iterable):
            items = iterable.sources if iterable.name == KNOWN_ITEMS else (element(iterable, node),)
            for item in items:  # several only for the items of keyword arguments
                self.assignments.assign(node.target, item)
                self.run_block(node.body)
        self.scope.merge(before)
        self.run_block(node.orelse)

    _asyncfor = _for

    def _while(self, node: ast.While) -> None:
        before = self.scope.copy_names()
        with self.recording.loop(node, None):
            self.evaluator.evaluate(node.test)
            self.run_block(node.body)
        self.scope.merge(before)
        self.run_block(node.orelse)

    def _with(self, node: ast.With | ast.AsyncWith) -> None:
        with self.recording.restored_modes():
            self._run_with(node.items, node.body)

    _asyncwith = _with

    def _run_with(self, items: Sequence[ast.withitem], statements: Sequence[ast.stmt]) -> None:
        """Enter context managers one after the other, and run the statements within them."""
        if not items:
            self.run_block(statements)
            return
        item, *others = items
        frame = self.recording.frame()
        body = _Body(item, others, statements, self.scope, self._returns, self._yields, self._body, frame)
        self._bodies[item.context_expr] = body
        value = enter_context(self, item.context_expr)
        self._bodies.pop(item.context_expr, None)
        if body.has_run:
            return
        enter, leave = (self.calls.find_method(value, name) for name in ("__enter__", "__exit__"))
        entered = self.run_function(enter, item.context_expr, [], {}) if enter is not None else value
        self._enter(body, entered)
        if leave is not None:
            self.run_function(leave, item.context_expr, [unknown_value(item.context_expr)] * 3, {})

    def _enter(self, body: _Body, value: AbstractValue) -> None:
        """Run the body of a ``with`` statement with the value of its context manager."""
        body.has_run = True
        if body.item.optional_vars is not None:
            self.assignments.assign(body.item.optional_vars, value)
        self._run_with(body.others, body.statements)

    def _run_body(self, body: _Body, value: AbstractValue) -> None:
        """Run the body of a ``with`` statement where its context manager yields, in the scope of the statement."""
        before = self.scope, self._returns, self._yields, self._body
        self.scope, self._returns, self._yields, self._body = body.scope, body.returns, body.yields, body.outer
        manager = self._call_stack.pop()
        try:
            with self.recording.at(body.frame):
                self._enter(body, value)
        finally:
            self._call_stack.append(manager)
            self.scope, self._returns, self._yields, _ = before
            self._body = None


def _is_context_manager(function: Any) -> bool:
    """Return True for a generator function that is a context manager."""
    decorators = {ast.unparse(each).rpartition(".")[2] for each in getattr(function, "decorator_list", ())}
    return not decorators.isdisjoint(_CONTEXT_MANAGERS)


def _keywords(node: ast.AST, given: dict[str, AbstractValue]) -> AbstractValue | None:
    """Return the dictionary of the remaining keyword arguments of a call; None if some of them may be unknown."""
    inner = given.pop("**", None)
    if inner is not None and inner.name == KEYWORDS:
        given |= {key[2:-2]: each for key, each in inner.attributes.items()}
    elif inner is not None or not given:
        return None
    items = {f"[{key!r}]": each for key, each in given.items()}
    return AbstractValue(
        kind=ValueKind.SEQUENCE, name=KEYWORDS, node=node, sources=tuple(given.values()), attributes=items
    )


def _leaves_block(arm: Sequence[ast.stmt]) -> bool:
    """Return True if the statements after an arm cannot be reached from its end."""
    last = arm[-1] if arm else None
    if isinstance(last, ast.If):
        return _leaves_block(last.body) and _leaves_block(last.orelse)
    return isinstance(last, _JUMPS)
