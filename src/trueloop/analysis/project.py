"""The files of a project: finds the file of an imported module, and parses each file once."""

import ast
import os
import re
import sys
import warnings
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from functools import cache, cached_property, lru_cache
from itertools import chain, islice, repeat
from typing import Any, Final, NamedTuple, cast

from trueloop.analysis.interpreter.qualified_names import HARMLESS_PACKAGES
from trueloop.analysis.interpreter.roles_by_use import CallIndex
from trueloop.core.source_text import SourceText, nodes_in, walk_tree

MAX_LINKED_FILES: Final = 30  # files that one file imports, directly or indirectly, and that are searched for words
MAX_PARSED_FILES: Final = 64  # syntax trees in memory
MAX_TEXTS: Final = 256  # texts in memory
MAX_LINES: Final = 10_000_000  # more than any file has that is checked
LIBRARIES: Final = sys.stdlib_module_names | {"torch", "numpy"}
"""Modules that are never imported from a file of the project."""
_IMPORT: Final = re.compile(
    r"^[ \t]*(?:from[ \t]+(\.*)([\w.]*)[ \t]+import[ \t]*(?:\(([^)]*)\)|([^#\n(]*))|import[ \t]+([\w., \t]+))", re.M
)
Word = str | re.Pattern[str] | Callable[[str], bool]
_LONG_LINE: Final = re.compile(r".{2000,}")
_SEPARATORS: Final = bytes(code if chr(code).isalnum() or chr(code) == "_" or code > 127 else 32 for code in range(256))
_DEFINITIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
_NAMING: Final = (
    ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.ExceptHandler, ast.MatchAs, ast.MatchStar,
)  # fmt: skip
"""Nodes that bind the name in their ``name``."""


class ImportedName(NamedTuple):
    """What an imported name refers to: a name in a file of the project, or the file itself."""

    file: str
    name: str = ""
    """"" = the module."""


class Module:
    """A parsed file.

    Args:
        path: path of the file.
        text: text of the file.
        tree: syntax tree of the file, with the line numbers of the text.
    """

    def __init__(self, path: str, text: SourceText, tree: ast.Module) -> None:
        self.path, self.text, self.tree = path, text, tree
        self.nodes, self._child_counts = walk_tree(tree)
        """All nodes of the syntax tree, level by level, and the number of children of each."""
        self._by_kind: dict[tuple[type[ast.AST], ...], Sequence[Any]] = {}

    def nodes_of(self, *kinds: type[ast.AST]) -> Sequence[Any]:
        """Return all nodes of some classes, level by level.

        Args:
            kinds: classes of syntax nodes, also abstract ones such as ``ast.expr``.
        """
        if kinds not in self._by_kind:
            classes = tuple(each for each in self._node_classes if issubclass(each, kinds))
            self._by_kind[kinds] = (
                self._node_classes[classes[0]]
                if len(classes) == 1
                else [each for each in self.nodes if type(each) in classes]
                if classes
                else ()
            )
        return self._by_kind[kinds]

    @cached_property
    def _node_classes(self) -> dict[type[ast.AST], list[ast.AST]]:
        found: defaultdict[type[ast.AST], list[ast.AST]] = defaultdict(list)
        for each in self.nodes:
            found[type(each)].append(each)
        return found

    @cached_property
    def parents(self) -> dict[int, ast.AST]:
        """Id of a syntax node -> its parent."""
        of_each = chain.from_iterable(map(repeat, self.nodes, self._child_counts))
        return dict(zip(map(id, islice(self.nodes, 1, None)), of_each, strict=True))

    @cached_property
    def blocks(self) -> dict[int, list[ast.stmt]]:
        """Id of a statement -> the block that contains it."""
        found: dict[int, list[ast.stmt]] = {}
        for node in self.nodes:
            for name in ("body", "orelse", "finalbody"):
                block = getattr(node, name, None)
                if isinstance(block, list):
                    found.update((id(each), block) for each in cast("list[ast.stmt]", block))
        return found

    @cached_property
    def calls(self) -> CallIndex:
        """The calls in the file."""
        return CallIndex(self.nodes)

    @cached_property
    def bindings(self) -> dict[str, ast.stmt | None]:
        """Name at module level -> its only definition or import; None for variables and for several definitions."""
        found: dict[str, ast.stmt | None] = {}
        for name, statement in _bound_names(self.tree.body):
            found[name] = statement if name not in found and isinstance(statement, _DEFINITIONS) else None
        return found

    @cached_property
    def undefined_names(self) -> frozenset[str]:
        """Names that the file reads and nothing in it binds, as in a fragment; none if a star import may bind them."""
        if self.star_imports:
            return frozenset()
        names, bound = self.nodes_of(ast.Name), set[str | None]()
        bound |= {each.id for each in names if not isinstance(each.ctx, ast.Load)}
        bound |= {each.arg for each in self.nodes_of(ast.arg)}
        bound |= {each.asname or each.name.partition(".")[0] for each in self.nodes_of(ast.alias)}
        bound |= {each.name for each in self.nodes_of(*_NAMING)}
        return frozenset(each.id for each in names if each.id not in bound)

    @cached_property
    def star_imports(self) -> list[ast.ImportFrom]:
        """The statements ``from module import *``."""
        return [each for each in self.tree.body if isinstance(each, ast.ImportFrom) and each.names[0].name == "*"]


class Project:
    """The files that are checked together; their imports of each other are followed.

    Args:
        files: paths of all files.
        read: returns the text of a file; "" if it cannot be read.
        folders: folders whose other files are followed too, because the user named single files in them.
    """

    def __init__(self, files: Iterable[str], read: Callable[[str], str], folders: Iterable[str] = ()) -> None:
        self._read = read
        # both: absolute path -> path as the user named it
        self._names = {os.path.abspath(each): each for each in files if each.endswith((".py", ".pyw"))}
        self._named_folders = {os.path.abspath(each): each for each in folders}
        root = os.path.commonpath(list(map(os.path.dirname, self._names))) if self._names else ""
        own = (folder for each in self._names for folder in _enclosing(os.path.dirname(each)))
        self._folders = {each for each in own if each.startswith(root)}
        self._found: dict[tuple[str, int, str], str] = {}
        self._modules: OrderedDict[str, Module | None] = OrderedDict()
        self._imports: dict[str, tuple[str, ...]] = {}
        self._texts: dict[str, str] = {}
        self._names_in: dict[str, bytes] = {}
        """File -> what `distinct_names` returns."""
        self._words: dict[tuple[str, Word], bool] = {}
        """File and word -> whether the file contains the word."""
        self._numbers = {file: number for number, file in enumerate(sorted(self._names), 1)}
        """Number of each file. Its line numbers start at this times `MAX_LINES`, so no two files have equal ones."""
        self.read_files: set[str] = set()
        """Files whose text or syntax tree was asked for since the user last cleared this set."""

    @property
    def follows_unnamed_files(self) -> bool:
        """Whether imports are followed into files that are not checked themselves."""
        return bool(self._named_folders)

    def display_path(self, file: str) -> str:
        """Return the path of a file as the user named it."""
        if file in self._names:
            return self._names[file]
        for folder, name in self._named_folders.items():
            if file.startswith(folder + os.sep):
                return os.path.normpath(os.path.join(name, os.path.relpath(file, folder)))
        return file

    # Imports ---------------------------------------------------------------------------------------------------------

    def find(self, module: str, importer: str, level: int = 0) -> str:
        """Return the file or folder of a module; "" for a library.

        Args:
            module: name in the import statement: "models.resnet".
            importer: absolute path of the importing file.
            level: number of dots before the name.
        """
        folder = os.path.dirname(importer)
        key = folder, level, module
        if key not in self._found:
            parts = module.split(".") if module else []
            bases = [_parent(folder, level - 1)] if level else self._search_path(folder, parts[0])
            found = (self.submodule(base, *parts) for base in bases)
            self._found[key] = next((each for each in found if each and each != importer), "")
        return self._found[key]

    def _search_path(self, folder: str, first: str) -> Iterator[str]:
        """Yield the folders from which a file may import a module, nearest first."""
        if first in LIBRARIES:
            return
        for each in _enclosing(folder):
            in_package = self._is_file(os.path.join(each, "__init__.py"))
            if not (in_package and first in HARMLESS_PACKAGES):
                yield each
                yield os.path.join(each, "src")

    def submodule(self, location: str, *names: str) -> str:
        """Return the file of a module within a package, or its folder if the package has no file; "" if none exists.

        Args:
            location: folder or ``__init__.py`` of the package.
            names: names of the inner packages and of the module.
        """
        base = location.removesuffix(f"{os.sep}__init__.py")
        if base.endswith((".py", ".pyw")):
            return "" if names else location
        target = os.path.join(base, *names)
        package = os.path.join(target, "__init__.py")
        for each in (f"{target}.py", package) if names else (package,):
            if self._is_file(each):
                return each
        return target if target in self._folders or (self._is_followed(target) and os.path.isdir(target)) else ""

    def _is_file(self, path: str) -> bool:
        return path in self._names or (self._is_followed(path) and os.path.isfile(path))

    def _is_followed(self, path: str) -> bool:
        return any(path.startswith(each + os.sep) for each in self._named_folders)

    # Files -----------------------------------------------------------------------------------------------------------

    def module(self, file: str) -> Module | None:
        """Return a parsed file; None for a folder, and for a file that cannot be read or parsed."""
        self.read_files.add(file)
        if file in self._modules:
            self._modules.move_to_end(file)
            return self._modules[file]
        module = self._parse(file)
        self._keep(file, module)
        return module

    def parse(self, file: str, source: str) -> Module:
        """Parse a file with another text than on disk, or one that no other file has imported so far.

        Raises:
            SyntaxError, ValueError, RecursionError, MemoryError: the text cannot be parsed.
        """
        module = self._modules.get(file)
        if module is not None and module.text.source == source:
            return module
        module = parse_module(file, source, MAX_LINES * self._numbers.setdefault(file, len(self._numbers) + 1))
        if self._texts.get(file) is source:
            self._keep(file, module)
        return module

    def _keep(self, file: str, module: Module | None) -> None:
        self._modules[file] = module
        if len(self._modules) > MAX_PARSED_FILES:
            self._modules.popitem(last=False)

    def _parse(self, file: str) -> Module | None:
        try:
            return self.parse(file, self._text(file)) if file.endswith((".py", ".pyw")) else None
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None

    def add_text(self, file: str, text: str) -> None:
        """Add the text that a file on disk has, so that the file is read and parsed once."""
        if len(self._texts) >= MAX_TEXTS:
            self._texts.clear()
        self._texts[file] = text

    def _text(self, file: str) -> str:
        if file not in self._texts:
            self.add_text(file, self._read(file))
        return self._texts[file]

    # Words -----------------------------------------------------------------------------------------------------------

    def imported_files(self, file: str, text: str) -> list[str]:
        """Return the files that a file imports, directly or indirectly, nearest first.

        Args:
            file: absolute path of the file.
            text: its text.
        """
        found: dict[str, None] = {}
        queue = deque(self._imports_in(file, text))
        while queue and len(found) < MAX_LINKED_FILES:
            each = queue.popleft()
            if each not in found and each != file:
                found[each] = None
                if each not in self._imports:
                    self._imports[each] = tuple(self._imports_in(each, self._text(each)))
                queue.extend(self._imports[each])
        self.read_files.update(found)
        return list(found)

    def _imports_in(self, file: str, text: str) -> Iterator[str]:
        for dots, module, names_in_parentheses, names, modules in _IMPORT.findall(text):
            if modules:
                yield from filter(
                    None, (self.find(each.split()[0], file) for each in modules.split(",") if each.strip())
                )
                continue
            origin = self.find(module, file, len(dots))
            if origin.endswith(".py"):
                yield origin
            for each in (names_in_parentheses or names).split(",") if origin else ():
                inner = self.submodule(origin, each.split()[0]) if each.split() else ""
                if inner.endswith(".py") and inner != origin:
                    yield inner

    def contains(self, file: str, word: Word) -> bool:
        """Return True if the text of a file contains a word, see `contains_word`."""
        key = file, word
        if key not in self._words:
            if file not in self._names_in:
                self._names_in[file] = distinct_names(self._text(file))
            is_possible = may_contain(self._names_in[file], word)
            self._words[key] = is_possible and contains_word(self._text(file), word)
        return self._words[key]

    def is_in_another(self, word: Word, own: Container[str]) -> bool:
        """Return True if the text of a file that is checked, besides some, contains a word."""
        self.read_files.update(self._names)
        return any(self.contains(each, word) for each in self._names if each not in own)


def contains_word(text: str, word: Word) -> bool:
    """Return True if a text contains a word or what a pattern matches, or if a function returns True for it."""
    if isinstance(word, str):
        return word in text
    code = _without_long_lines(text)
    return word.search(code) is not None if isinstance(word, re.Pattern) else word(code)


@lru_cache(maxsize=256)  # many patterns are searched in one text
def _without_long_lines(text: str) -> str:
    """Return a text without the lines that are data; the time of many patterns grows with the square of a line."""
    return _LONG_LINE.sub("", text)


def distinct_names(text: str) -> bytes:
    """Return all names and numbers in a text, each once: absent words are found faster in these than in the text."""
    return b" ".join(set(text.encode("utf-8", "surrogatepass").translate(_SEPARATORS).split()))


def may_contain(names: bytes, word: Word) -> bool:
    """Return False if a text with these distinct names certainly does not contain a word."""
    return not isinstance(word, str) or _longest_name(word) in names


@cache
def _longest_name(word: str) -> bytes:
    return max(re.findall(r"\w+", word, re.ASCII), key=len, default="").encode()


def parse_module(file: str, source: str, lines_before: int = 0) -> Module:
    """Parse a file.

    Args:
        file: absolute path of the file.
        source: its text.
        lines_before: number that is added to every line number.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: the text cannot be parsed.
    """
    tree = parse_tree(source)
    module = Module(file, SourceText(source, lines_before), tree)
    for node in module.nodes if lines_before else ():
        position: dict[str, Any] = node.__dict__
        if "lineno" in position:
            position["lineno"] += lines_before
            position["end_lineno"] += lines_before
    return module


def parse_tree(source: str) -> ast.Module:
    """Return the syntax tree of a text.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: the text cannot be parsed.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in the file
        try:
            return ast.parse(source)
        except SystemError:  # Python 3.11: another thread was parsing at the same time
            return ast.parse(source)


def _bound_names(statements: Iterable[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    """Yield each name that statements bind, also in their blocks, with the statement."""
    for each in statements:
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield each.name, each
        elif isinstance(each, ast.Import | ast.ImportFrom):
            yield from ((alias.asname or alias.name.partition(".")[0], each) for alias in each.names)
        else:
            yield from ((node.id, each) for node in nodes_in(each, ast.Name) if isinstance(node.ctx, ast.Store))
            for block in ("body", "orelse", "finalbody"):
                yield from _bound_names(getattr(each, block, ()))
            for handler in getattr(each, "handlers", ()):
                yield from _bound_names(handler.body)


def _enclosing(folder: str) -> Iterator[str]:
    """Yield a folder and all folders that contain it."""
    while True:
        yield folder
        parent = os.path.dirname(folder)
        if parent == folder:
            return
        folder = parent


def _parent(folder: str, levels: int) -> str:
    for _ in range(levels):
        folder = os.path.dirname(folder)
    return folder
