"""Checks of the whole package: sizes, import direction, public names, docstrings, unsafe code, packaging.

If a limit is exceeded, split the module or function, or state in the change why the limit must be raised.
"""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import re
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from cyclopts import App

ROOT = Path(__file__).resolve().parents[1]
SRC = ROOT / "src" / "trueloop"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

LAYERS = PYPROJECT["tool"]["importlinter"]["contracts"][0]["layers"]  # from the top; imports run downwards only
# Frozen: a name added or removed here is a change that users notice, and brings a fragment in changes/.
PUBLIC = (
    "Accuracy",
    "CheckpointConfig",
    "Confusion",
    "Evaluation",
    "GuardConfig",
    "Loss",
    "MeanAbsoluteError",
    "MonitorConfig",
    "OptimConfig",
    "ParallelConfig",
    "Parts",
    "Recipe",
    "ScheduleConfig",
    "Shards",
    "TrainConfig",
    "Trainer",
    "TrueloopError",
    "__version__",
    "autograd",
    "evaluate",
    "load_weights",
    "plan",
    "verify",
    "watch",
)
PUBLIC_MAX = 24  # the sanitizer's door is a name of its own; what `Trainer` takes and returns would be missed
EXTRAS = {"train", "track", "lab", "export", "demo", "dev", "all"}

TOTAL_LINES_MAX = 207_949
FUNCTION_LINES_MAX = 60
PARAMETERS_MAX = 7
LOOP_LINES_MAX = 150
COMMAND_LINES_MAX = 90
NAMELESS = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "managers"}
# Tests of the whole tree or of several modules, which are not named after one module.
UNMIRRORED_FILES = {
    f"test_{name}.py"
    for name in (
        "house",
        "docs",
        "site",
        "catalogue",
        "injections",
        "examples",
        "safe_fixes",
        "vocabulary",
        "divergences",
        "gradient_calls",
        "hand_written_updates",
        "plain_forms",
        "rewritten",
    )
}
UNMIRRORED_FOLDERS = {"browser", "deploy", "distributed", "faults", "guilty", "healthy", "promises"}

Function = ast.FunctionDef | ast.AsyncFunctionDef
MODULES = sorted(SRC.rglob("*.py"))


@functools.cache
def trees() -> dict[Path, ast.Module]:
    """Return the syntax tree of every module of the package."""
    return {path: ast.parse(path.read_text(), filename=str(path)) for path in MODULES}


def location(path: Path, node: ast.AST | None = None) -> str:
    """Return "path:line", the form that editors open."""
    line = getattr(node, "lineno", None)
    return f"{path.relative_to(ROOT)}{f':{line}' if line else ''}"


def nodes(kind: type | tuple[type, ...]) -> Iterator[tuple[Path, ast.AST]]:
    """Yield every node of a type in the package, with the path of its module."""
    return ((path, node) for path, tree in trees().items() for node in ast.walk(tree) if isinstance(node, kind))


def line_count(path: Path) -> int:
    return len(path.read_text().splitlines())


def function_lines(node: Function) -> int:
    """Return the number of lines of a function, including decorators and docstring."""
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    assert node.end_lineno is not None
    return node.end_lineno - first + 1


@functools.cache
def functions() -> list[tuple[Path, Function]]:
    """Return every function of the package."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [(path, node) for path, node in nodes(kinds) if isinstance(node, kinds)]


# Sizes -----------------------------------------------------------------------------------------------------------


def test_the_package_does_not_grow():
    assert sum(map(line_count, MODULES)) <= TOTAL_LINES_MAX


def test_no_function_is_too_long():
    lengths = {f"{location(path, node)} {node.name}": function_lines(node) for path, node in functions()}
    assert not {name: length for name, length in lengths.items() if length > FUNCTION_LINES_MAX}


def parameter_count(function: Function) -> int:
    """Return the number of parameters without `self`, `cls`, `*args` and `**kwargs`."""
    positional = [*function.args.posonlyargs, *function.args.args]
    if positional and positional[0].arg in {"self", "cls"}:
        positional = positional[1:]
    return len(positional) + len(function.args.kwonlyargs)


def test_no_function_takes_too_many_parameters():
    counts = {f"{location(path, node)} {node.name}": parameter_count(node) for path, node in functions()}
    assert not {name: count for name, count in counts.items() if count > PARAMETERS_MAX}


def test_the_loop_fits_on_one_screen():
    assert line_count(SRC / "training" / "loop.py") <= LOOP_LINES_MAX


def command_files(app: App, folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield each command with its file; the commands of a sub-application are in a folder with its name."""
    for name in app:
        if name.startswith("-"):
            continue
        file = name.replace("-", "_")
        if (folder / file / "__init__.py").is_file():
            yield from ((f"{name} {sub}", path) for sub, path in command_files(app[name], folder / file))
        else:
            yield name, folder / f"{file}.py"


def test_a_command_is_one_short_file():
    from trueloop.cli.app import app

    files = dict(command_files(app, SRC / "cli"))
    assert not {name for name, path in files.items() if not path.is_file()}
    assert not {location(path): line_count(path) for path in files.values() if line_count(path) > COMMAND_LINES_MAX}


# Layers ----------------------------------------------------------------------------------------------------------


def test_imports_follow_the_layers():
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache", "--no-logo"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_package_belongs_to_a_layer():
    # The layers contract does not check packages that it does not list.
    listed = {name.strip().removeprefix("trueloop.") for layer in LAYERS for name in layer.split("|")}
    folders = {path.name for path in SRC.iterdir() if path.is_dir() and path.name != "__pycache__"}
    files = {path.name for path in SRC.iterdir() if path.is_file()}
    modules = {name.removesuffix(".py") for name in files} & listed
    assert folders | modules == listed
    assert files == {"__init__.py", "__main__.py", "version.py", "py.typed", *(f"{name}.py" for name in modules)}


LIGHT = ("list", "show", "best", "compare", "plot", "rollback", "export", "gc")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("--version",),
        ("plan", "--help"),
        ("runs", "--help"),
        *(("runs", name, "--help") for name in LIGHT),
    ],
)
def test_the_command_line_starts_without_torch_and_numpy(arguments: tuple[str, ...]):
    script = (
        "import sys\n"
        "from trueloop.cli.app import main\n"
        f"sys.argv = ['trueloop', *{arguments!r}]\n"
        "try:\n    code = main()\n"
        "except SystemExit as end:\n    code = end.code\n"
        "assert not code, code\n"
        "heavy = {'torch', 'numpy', 'matplotlib', 'sklearn', 'safetensors'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_import_trueloop_stays_light():
    script = "import sys, trueloop; assert not {'torch', 'numpy'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# Names and public surface ----------------------------------------------------------------------------------------


def test_modules_are_named_after_the_thing_in_them():
    nameless = [location(path) for path in MODULES if NAMELESS & {*path.relative_to(SRC).with_suffix("").parts}]
    assert not nameless


def test_the_public_surface_is_frozen():
    import trueloop

    assert tuple(trueloop.__all__) == PUBLIC
    assert list(PUBLIC) == sorted(PUBLIC)
    assert len(PUBLIC) <= PUBLIC_MAX


def test_dir_lists_the_public_names_and_public_modules_can_be_imported():
    script = (
        "import sys, trueloop\n"
        "assert dir(trueloop) == sorted(trueloop.__all__)\n"
        "assert 'torch' not in sys.modules\n"
        "import trueloop.autograd, trueloop.verify\n"
        "assert trueloop.verify.names() and trueloop.autograd.freeze\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", [name for name in PUBLIC if name != "__version__"])
def test_every_public_name_is_documented(name: str):
    import trueloop

    doc = getattr(trueloop, name).__doc__
    assert doc
    assert not doc.startswith(f"{name}("), "this is the signature that a dataclass generates"


def public_definitions(path: Path, tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Yield the module, and its public functions, classes and methods, each with its location."""
    yield location(path), tree
    queue: list[ast.Module | ast.ClassDef] = [tree]
    while queue:
        for node in queue.pop().body:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) or node.name.startswith("_"):
                continue
            yield f"{location(path, node)} {node.name}", node
            if isinstance(node, ast.ClassDef):
                queue.append(node)


def is_declared_elsewhere(node: ast.AST) -> bool:
    """Return True for overloads and property setters, which share the docstring of another definition."""
    decorators = {ast.unparse(decorator) for decorator in getattr(node, "decorator_list", [])}
    return any(name.endswith(("overload", ".setter", ".deleter")) for name in decorators)


def test_every_public_definition_has_a_docstring():
    undocumented = [
        name
        for path, tree in trees().items()
        for name, node in public_definitions(path, tree)
        if not is_declared_elsewhere(node) and not ast.get_docstring(node)  # pyright: ignore[reportArgumentType]
    ]
    assert not undocumented


# What must not be in the source ----------------------------------------------------------------------------------


def imported_modules(node: ast.Import | ast.ImportFrom) -> set[str]:
    if isinstance(node, ast.ImportFrom):
        return {(node.module or "").split(".")[0]}
    return {alias.name.split(".")[0] for alias in node.names}


def test_nothing_that_can_unpickle_is_imported():
    unsafe = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
    found = [location(p, n) for p, n in nodes((ast.Import, ast.ImportFrom)) if imported_modules(n) & unsafe]
    assert not found


def test_nothing_is_loaded_by_executing_it():
    def unsafe(call: ast.Call) -> bool:
        name = ast.unparse(call.func)
        allows_pickle = any(k.arg == "allow_pickle" and ast.unparse(k.value) != "False" for k in call.keywords)
        return name in {"torch.load", "eval", "exec", "builtins.eval", "builtins.exec"} or allows_pickle

    found = [location(path, node) for path, node in nodes(ast.Call) if isinstance(node, ast.Call) and unsafe(node)]
    found += [
        location(path, node)
        for path, node in nodes(ast.ImportFrom)
        if isinstance(node, ast.ImportFrom) and node.module == "torch" and "load" in {a.name for a in node.names}
    ]
    assert not found


BROAD = {"Exception", "BaseException"}


def catches_everything(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return bool(BROAD & {ast.unparse(kind) for kind in caught})


def does_nothing(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Return):
        return statement.value is None or (isinstance(statement.value, ast.Constant) and not statement.value.value)
    return isinstance(statement, ast.Pass | ast.Continue | ast.Break) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    )


def test_no_error_is_swallowed():
    handlers = [(p, n) for p, n in nodes(ast.ExceptHandler) if isinstance(n, ast.ExceptHandler)]
    silent = [location(p, h) for p, h in handlers if catches_everything(h) and all(map(does_nothing, h.body))]
    silent += [
        location(path, call)
        for path, call in nodes(ast.Call)
        if isinstance(call, ast.Call)
        and ast.unparse(call.func).endswith("suppress")
        and BROAD & {ast.unparse(argument) for argument in call.args}
    ]
    assert not silent


# Packaging -------------------------------------------------------------------------------------------------------


TEXT = {".cfg", ".html", ".json", ".md", ".py", ".sh", ".toml", ".txt", ".yaml", ".yml"}
TEXT_BY_NAME = {".gitignore", "LICENSE", "Makefile", "run"}


def text_files() -> Iterator[Path]:
    """Yield all text files that are not generated."""
    folders = ("src", "tests", "docs", "changes", "benchmarks", "examples", ".ci")
    for path in (*ROOT.iterdir(), *(path for folder in folders for path in (ROOT / folder).rglob("*"))):
        if path.is_file() and (path.suffix in TEXT or path.name in TEXT_BY_NAME):
            yield path


def test_the_version_is_written_once():
    from trueloop.version import __version__

    assert PYPROJECT["project"]["dynamic"] == ["version"]
    assert ROOT / PYPROJECT["tool"]["hatch"]["version"]["path"] == SRC / "version.py"
    pattern = re.compile(rf"(?<![\w.]){re.escape(__version__)}(?![\w.])")
    # The changelog names every release, a pinned package may have the same version, and results name their version.
    allowed = {ROOT / "CHANGELOG.md", ROOT / "constraints.txt", *(ROOT / "benchmarks" / "results").glob("*.json")}
    assert [path for path in text_files() if path not in allowed and pattern.search(path.read_text())] == [
        SRC / "version.py"
    ]


def test_the_promised_extras_exist_and_the_core_does_without_torch():
    assert set(PYPROJECT["project"]["optional-dependencies"]) >= EXTRAS
    core = {re.split(r"[^\w-]", requirement)[0] for requirement in PYPROJECT["project"]["dependencies"]}
    assert core == {"cyclopts", "rich", "pathspec"}
    assert importlib.metadata.metadata("trueloop")["License-Expression"] == "Apache-2.0 AND MIT"


def test_every_extra_named_in_text_or_errors_exists():
    extras = set(PYPROJECT["project"]["optional-dependencies"])
    used = {
        (location(path), extra)
        for path in text_files()
        for group in re.findall(r"trueloop\[([a-z, ]+)\]", path.read_text())
        for extra in re.split(r", ?", group)
    }
    for path, node in nodes(ast.Call):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("MissingExtra"):
            used |= {(location(path, node), a.value) for a in node.args[1:] if isinstance(a, ast.Constant)}
    assert not {(position, extra) for position, extra in used if extra not in extras}


def test_changelog_fragments_have_a_kind():
    kinds = {
        "feature",
        "bugfix",
        "doc",
        "removal",
        "misc",
    }  # towncrier's defaults, which pyproject.toml does not change
    assert not {"type", "fragment"} & PYPROJECT["tool"]["towncrier"].keys()
    fragments = [path for path in (ROOT / "changes").iterdir() if path.name != "README.md"]
    pattern = re.compile(rf"(\d+|\+[\w-]+)\.({'|'.join(kinds)})(\.\d+)?\.md")
    # towncrier silently ignores a fragment with another kind of name.
    assert not [location(path) for path in fragments if not pattern.fullmatch(path.name)]
    assert not [location(path) for path in fragments if not path.read_text().strip()]


def test_the_licence_is_whole():
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License\n                           Version 2.0, January 2004" in text
    assert "APPENDIX: How to apply the Apache License to your work." in text


def test_the_house_papers_stay_short():
    assert line_count(ROOT / "CONTRIBUTING.md") <= 60
    assert line_count(ROOT / "ARCHITECTURE.md") <= 130  # two printed pages


def test_the_makefile_has_every_target_that_is_named():
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z][a-z-]*):", makefile, flags=re.MULTILINE))
    papers = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / ".ci").iterdir()]
    # Matches between backquotes, in an indented block, after a prompt or in a script, not "make sure" in a sentence.
    command = re.compile(r"(?:`|^ {4}|^\$ |^)make (\w[\w-]*)(?=[\s`]*(?:$|`|#| {2}))", flags=re.MULTILINE)
    used = {(location(path), target) for path in papers for target in command.findall(path.read_text())}
    assert {target for _, target in used} >= {"demo", "test", "check"}
    assert not {(position, target) for position, target in used if target not in targets}


def test_no_path_of_one_machine_is_in_the_tree():
    machine = re.compile(r"(?:(?<![\w.~<])/(?:home|Users|root|work)/\w|[A-Z]:\\Users)")
    found = [location(path) for path in text_files() if machine.search(path.read_text())]
    assert not found


# Tests -----------------------------------------------------------------------------------------------------------


def test_tests_mirror_the_source_by_name():
    tests = ROOT / "tests"
    unmatched: list[str] = []
    for path in sorted(tests.rglob("test_*.py")):
        relative = path.relative_to(tests)
        if path.name in UNMIRRORED_FILES or relative.parts[0] in UNMIRRORED_FOLDERS:
            continue
        subject = SRC / relative.parent / path.stem.removeprefix("test_")
        if not subject.with_suffix(".py").is_file() and not subject.is_dir():
            unmatched.append(location(path))
    assert not unmatched


def slow_marks(tree: ast.Module) -> Iterator[tuple[ast.AST, bool]]:
    """Yield each `pytest.mark.slow` with whether it gives a reason."""
    explained = {id(call.func) for call in ast.walk(tree) if isinstance(call, ast.Call) and call.keywords}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "pytest.mark.slow":
            yield node, id(node) in explained


def test_a_slow_test_says_why():
    files = sorted((ROOT / "tests").rglob("*.py"))
    marks = [
        (location(path, node), explained)
        for path in files
        for node, explained in slow_marks(ast.parse(path.read_text()))
    ]
    assert marks
    assert not [place for place, explained in marks if not explained]


def test_the_tables_of_slow_and_quick_tests_name_tests_that_exist():
    tables = runpy.run_path(str(ROOT / "tests" / "conftest.py"))
    for entry in (*tables["SLOW"], *tables["QUICK"]):
        file, _, name = entry.partition("::")
        path = ROOT / "tests" / file
        assert path.exists(), entry
        assert not name or f"def {name.partition('[')[0]}" in path.read_text(), entry
