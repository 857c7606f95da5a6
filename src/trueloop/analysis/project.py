"""The files of a project: finds the file of an imported module, and parses each file once."""

import ast
import os
import re
import sys
import warnings
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from functools import cache, cached_property, lru_cache, partial
from itertools import chain, islice, repeat
from typing import Any, Final, NamedTuple, cast

from trueloop.analysis.interpreter.qualified_names import HARMLESS_PACKAGES
from trueloop.analysis.interpreter.roles_by_use import CallIndex
from trueloop.analysis.progress_bars import remove_progress_bars
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
_OUTERMOST: Final = re.compile(r"^(?!(?:if|elif|class|def|from|import|assert|async def)\b|\w*log)\w.*\(.*", re.M)
_CALLED: Final = re.compile(r"\b([^\W\d]\w*)(?:\.\w+)*\(")
Word = str | re.Pattern[str] | Callable[[str], bool]
WordSearch = Callable[[Word], bool]
_LONG_LINE: Final = re.compile(r".{2000,}")
_SEPARATORS: Final = bytes(code if chr(code).isalnum() or chr(code) == "_" or code > 127 else 32 for code in range(256))
_SCOPES: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Module)
_DEFINITIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
_NAMING: Final = (
    ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.ExceptHandler, ast.MatchAs, ast.MatchStar,
)  # fmt: skip
"""Nodes that bind the name in their ``name``."""


WITH_BLOCKS: Final = (
    ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef, ast.For, ast.AsyncFor, ast.While, ast.If, ast.With,
    ast.AsyncWith, ast.Try, ast.TryStar, ast.ExceptHandler, ast.match_case,
)  # fmt: skip
"""Nodes that contain blocks of statements."""


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
        self._mentioned: dict[re.Pattern[str], bool] = {}

    def nodes_of(self, *kinds: type[ast.AST]) -> Sequence[Any]:
        """Return all nodes of some classes, level by level.

        Args:
            kinds: classes of syntax nodes, also abstract ones such as ``ast.expr``.
        """
        if kinds not in self._by_kind:
            places = [found for each, found in self._places.items() if issubclass(each, kinds)]
            self._by_kind[kinds] = [self.nodes[place] for place in sorted(chain.from_iterable(places))]
        return self._by_kind[kinds]

    def mentions(self, pattern: re.Pattern[str]) -> bool:
        """Return True if a pattern matches somewhere in the text of the file."""
        if pattern not in self._mentioned:
            self._mentioned[pattern] = pattern.search(self.text.source) is not None
        return self._mentioned[pattern]

    @cached_property
    def _places(self) -> dict[type[ast.AST], list[int]]:
        """Class -> the places of its nodes in `nodes`."""
        found: defaultdict[type[ast.AST], list[int]] = defaultdict(list)
        for place, each in enumerate(self.nodes):
            found[type(each)].append(place)
        return found

    @cached_property
    def parents(self) -> dict[int, ast.AST]:
        """Id of a syntax node -> its parent."""
        return dict(zip(map(id, islice(self.nodes, 1, None)), self._parent_of_each(), strict=True))

    def _parent_of_each(self) -> Iterator[ast.AST]:
        """Yield the parent of each node but the first."""
        return chain.from_iterable(map(repeat, self.nodes, self._child_counts))

    @cached_property
    def functions(self) -> dict[int, ast.AST]:
        """Id of a syntax node -> the innermost function around it; the module if there is none."""
        found: dict[int, ast.AST] = {}
        for node, parent in zip(islice(self.nodes, 1, None), self._parent_of_each(), strict=True):
            found[id(node)] = parent if type(parent) in _SCOPES else found[id(parent)]
        return found

    @cached_property
    def blocks(self) -> dict[int, list[ast.stmt]]:
        """Id of a statement -> the block that contains it."""
        found: dict[int, list[ast.stmt]] = {}
        for node in self.nodes_of(*WITH_BLOCKS):
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
        self._searches: dict[str, WordSearch] = {}
        """File -> the function that searches for words in it."""
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
        if self.is_text_of(file, source):
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

    def is_imported(self, file: str) -> bool:
        """Return True if another file that is checked imports a file."""
        self.read_files.update(self._names)
        return file in self._imported

    @property
    def has_several_files(self) -> bool:
        """Whether more than one file is checked."""
        return len(self._names) > 1

    @cached_property
    def _imported(self) -> set[str]:
        """The files that a file which is checked imports."""
        return {found for each in self._names for found in self._imports_in(each, self._text(each))}

    def calls_imported(self, file: str, text: str) -> bool:
        """Return True for a script: its outermost statements or its main block call what other files define."""
        outermost, _, main = text.partition("\nif __name__ ==")
        called = {name for line in [*_OUTERMOST.findall(outermost), main] for name in _CALLED.findall(line)}
        for dots, module, *names in _IMPORT.findall(text) if called else ():
            words = {each.split()[-1].partition(".")[0] for each in ",".join(names).split(",") if each.strip()}
            modules = [module] if dots or module else words
            if words & called and any(self.find(each, file, len(dots)) for each in modules):
                return True
        return False

    def search(self, file: str) -> WordSearch:
        """Return a function that searches for a word in the text of a file, and keeps what it found."""
        if file not in self._searches:
            self._searches[file] = word_search(partial(self._text, file))
        return self._searches[file]

    def is_text_of(self, file: str, text: str) -> bool:
        """Return True if a text is the one that a file has on disk; another one may be checked in its place."""
        return self._texts.get(file) is text

    def is_in_another(self, word: Word, own: Container[str]) -> bool:
        """Return True if the text of a file that is checked, besides some, contains a word."""
        self.read_files.update(self._names)
        return any(self.search(each)(word) for each in self._names if each not in own)

    def is_used_by_another(self, file: str, name: str, own: Container[str]) -> bool:
        """Return True if a file that is checked, besides some, imports a file and mentions a name."""
        self.read_files.update(self._names)
        others = (each for each in self._names if each not in own and not each.endswith("__init__.py"))
        return any(self.search(each)(name) and file in self.imported_files(each, self._text(each)) for each in others)


def word_search(text: Callable[[], str]) -> WordSearch:
    """Return a function that searches for a word in a text and keeps what it found, see `contains_word`.

    Args:
        text: returns the text, which need not be kept.
    """
    names = distinct_names(text())

    @cache  # many rules search for the same words
    def contains(word: Word) -> bool:
        if not isinstance(word, str):
            return contains_word(text(), word)
        name, is_name = _longest_name(word)
        return name in names and (is_name or word in text())

    return cache(partial(matches, contains=contains))


def program_search(searches: Sequence[WordSearch]) -> WordSearch:
    """Return a function that searches for words in several files: "a&b" may be in two of them."""
    if len(searches) == 1:
        return searches[0]

    @cache
    def contains_one(word: Word) -> bool:
        for search in searches:  # noqa: SIM110 - half the time of any()
            if search(word):
                return True
        return False

    return cache(partial(matches, contains=contains_one))


def matches(word: Word, contains: WordSearch) -> bool:
    """Return True if a text contains a word, where "a|b&c" is a, or both b and c.

    Args:
        word: the word, pattern or function.
        contains: returns True for a single word, pattern or function that applies to the text.
    """
    if not isinstance(word, str):
        return contains(word)
    single, joint = _parsed(word)
    return any(map(contains, single)) or (bool(joint) and any(all(map(contains, each)) for each in joint))


@cache
def _parsed(words: str) -> tuple[list[str], list[list[str]]]:
    """Return the words of which one is enough, and the groups of words that must all be there."""
    alternatives = words.split("|")
    return [e for e in alternatives if "&" not in e], [e.split("&") for e in alternatives if "&" in e]


def contains_word(text: str, word: Word) -> bool:
    """Return True if a text contains a word or what a pattern matches, or if a function returns True for it."""
    if isinstance(word, str):
        return matches(word, lambda each: isinstance(each, str) and each in text)
    code = _without_long_lines(text)
    return word.search(code) is not None if isinstance(word, re.Pattern) else word(code)


@lru_cache(maxsize=256)  # many patterns are searched in one text
def _without_long_lines(text: str) -> str:
    """Return a text without the lines that are data; the time of many patterns grows with the square of a line."""
    return _LONG_LINE.sub("", text)


def distinct_names(text: str) -> bytes:
    """Return all names and numbers in a text, each once: absent words are found faster in these than in the text."""
    return b" ".join(set(text.encode("utf-8", "surrogatepass").translate(_SEPARATORS).split()))


@cache
def _longest_name(word: str) -> tuple[bytes, bool]:
    """Return the longest name or number in a word, and whether the word is nothing else."""
    longest = max(re.findall(r"\w+", word, re.ASCII), key=len, default="")
    return longest.encode(), longest == word


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
    remove_progress_bars(tree, source)
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
        except SyntaxError:
            if "async" not in source:
                raise
            try:
                return ast.parse(source, feature_version=(3, 6))  # `x.cuda(async=True)`, of 2018
            except SyntaxError:
                pass
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
