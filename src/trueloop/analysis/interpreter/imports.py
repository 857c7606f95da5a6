"""Follows imports into the other files of the project."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from trueloop.analysis.abstract_value import AbstractValue, ValueKind
from trueloop.analysis.interpreter.scope import ModuleScope
from trueloop.analysis.project import ImportedName, Module, Project

if TYPE_CHECKING:
    from trueloop.analysis.interpreter.interpreter import Interpreter

MAX_FILES: Final = 20  # files that are followed from one file


def is_registration(statement: ast.stmt) -> bool:
    """Return True for a statement of a file that may add a class or function to a registry under a name."""
    match statement:
        case ast.ClassDef() | ast.FunctionDef():
            return any(is_registering(each, statement) for each in statement.decorator_list)
        case ast.Expr(value=ast.Call(func=func)):
            return "regist" in ast.unparse(func).lower()
        case ast.Assign(targets=[ast.Subscript(slice=ast.Constant(value=str()))], value=ast.Name()):
            return True
        case _:
            return False


def is_registering(decorator: ast.expr, definition: ast.AST) -> bool:
    """Return True for ``@register("mlp")``, and for a decorator of a class that gets a name, as ``@HEADS("mlp")``."""
    if not isinstance(decorator, ast.Call):
        return False
    first = decorator.args[0] if decorator.args else None
    is_named = isinstance(first, ast.Constant) and isinstance(first.value, str)
    return "regist" in ast.unparse(decorator.func).lower() or (isinstance(definition, ast.ClassDef) and is_named)


class Imports:
    """Gives imported names their values, for an `Interpreter`.

    Args:
        interpreter: the interpreter.
        project: the project; None = each import is that of a library.
    """

    def __init__(self, interpreter: Interpreter, project: Project | None) -> None:
        self.interpreter, self.project = interpreter, project
        self.scopes: dict[str, ModuleScope] = {}
        """Scope of each file whose names were used, by path."""
        self._resolved: dict[ImportedName, AbstractValue | None] = {}
        self._has_registered = False

    def imported(self, name: str, node: ast.stmt, module: str, level: int = 0, attribute: str = "") -> AbstractValue:
        """Return the value of an imported name, which `resolve` looks up when it is used.

        Args:
            name: qualified name.
            node: the import statement.
            module: name of the module in the statement.
            level: number of dots before the name.
            attribute: the imported name within the module; "" = the module itself.
        """
        value = AbstractValue(kind=ValueKind.NAME, name=name, node=node)
        importer = self.interpreter.scope.module_scope.module.path
        file = self.project.find(module, importer, level) if self.project is not None else ""
        if file:
            value.scope = ImportedName(file, attribute)
        return value

    def resolve(self, value: AbstractValue) -> AbstractValue:
        """Return what an imported name refers to; the value itself if it is a library's, a module, or unknown."""
        imported = value.scope
        if not isinstance(imported, ImportedName) or not imported.name:
            return value
        if imported not in self._resolved:
            self._resolved[imported] = None  # while it is looked up: files may import each other
            self._resolved[imported] = self._look_up(imported, value)
        return self._resolved[imported] or value

    def attribute(self, owner: AbstractValue, name: str) -> AbstractValue | None:
        """Return an attribute of an imported module of the project; None if unknown."""
        if not isinstance(owner.scope, ImportedName) or owner.scope.name:
            return None
        value = AbstractValue(kind=ValueKind.NAME, name=f"{owner.name}.{name}", node=owner.node)
        value.scope = owner.scope._replace(name=name)
        found = self.resolve(value)
        return None if found is value else found

    def define(self, scope: ModuleScope, name: str) -> AbstractValue | None:
        """Return the value of a name that a file has not defined so far; None if it never does.

        A function, class or import of another file is defined alone. For a variable the whole file is interpreted.
        """
        if self.project is None:
            return None
        if not scope.is_complete and name in scope.module.bindings:
            statement = scope.module.bindings[name]
            if statement is None:
                scope.is_complete = scope.has_run = True
            self.interpreter.run_module(scope, scope.module.tree.body if statement is None else [statement])
            return scope.names.get(name)
        for each in () if name.startswith("_") else scope.module.star_imports:
            file = self.project.find(each.module or "", scope.module.path, each.level)
            imported = ImportedName(file, name)
            if file and imported not in self._resolved:
                value = AbstractValue(kind=ValueKind.NAME, name=name, node=each)
                value.scope = imported
                found = self.resolve(value)
                if found is not value:
                    return found
            elif self._resolved.get(imported) is not None:
                return self._resolved[imported]
        return None

    def run_registrations(self) -> None:
        """Run, once, what fills registries in the imported files: decorators of classes, ``register("mlp", MLP)``."""
        if self._has_registered or self.project is None:
            return
        self._has_registered = True
        queue = [next(iter(self.scopes.values())).module]  # the file itself
        seen = {queue[0].path}
        while queue and len(seen) <= MAX_FILES:
            for file in self._imported_files(queue.pop(0)):
                scope = self._scope(file) if file not in seen else None
                seen.add(file)
                if scope is not None and not scope.is_complete:
                    queue.append(scope.module)
                    found = [e for e in scope.module.tree.body if is_registration(e)]
                    new = [e for e in found if getattr(e, "name", "") not in scope.names]
                    self.interpreter.run_module(scope, new)

    def _imported_files(self, module: Module) -> Iterator[str]:
        """Yield the files of the project that the statements of a file import."""
        assert self.project is not None
        for each in module.tree.body:
            if isinstance(each, ast.Import):
                yield from filter(None, (self.project.find(alias.name, module.path) for alias in each.names))
            elif isinstance(each, ast.ImportFrom):
                file = self.project.find(each.module or "", module.path, each.level)
                inner = [self.project.submodule(file, alias.name) for alias in each.names] if file else []
                yield from filter(None, (file, *inner))

    def imported_names(self, scope: ModuleScope) -> frozenset[str]:
        """Return the names of a file that are imported from other files of the project."""
        return frozenset(name for name, value in scope.names.items() if isinstance(value.scope, ImportedName))

    def modules(self) -> list[Module]:
        """Return the files whose functions or statements were interpreted; the first one is the file itself."""
        return [each.module for each in self.scopes.values() if each.has_run]

    def _look_up(self, imported: ImportedName, value: AbstractValue) -> AbstractValue | None:
        """Return the value of a name in another file; None if unknown."""
        assert self.project is not None
        scope = self._scope(imported.file)
        found = scope.get(imported.name) if scope is not None else None
        if scope is not None and found is not None:
            scope.has_run = scope.has_run or found.kind in (ValueKind.FUNCTION, ValueKind.CLASS)  # it may be called
            return self.resolve(found) if found.kind is ValueKind.NAME else found
        inner = self.project.submodule(imported.file, imported.name)
        if not inner:
            return None
        module = AbstractValue(kind=ValueKind.NAME, name=value.name, node=value.node)
        module.scope = ImportedName(inner)
        return module

    def _scope(self, file: str) -> ModuleScope | None:
        if file not in self.scopes and len(self.scopes) <= MAX_FILES and self.interpreter.may_follow_imports():
            module = self.project.module(file) if self.project is not None else None
            if module is not None:
                self.scopes[file] = ModuleScope(module, self)
        return self.scopes.get(file)
