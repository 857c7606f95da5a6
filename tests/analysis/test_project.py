"""The files of a project: which file an import means, and what an imported name is."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from trueloop.analysis.abstract_value import ValueKind
from trueloop.analysis.interpreter.interpreter import interpret
from trueloop.analysis.operations import OpKind
from trueloop.analysis.project import MAX_LINKED_FILES, Project, parse_module, parse_tree
from trueloop.analysis.source_file import SourceFile

NET = "from torch import nn\nclass Net(nn.Module):\n    def forward(self, x):\n        return x\n"


@pytest.fixture
def write(tmp_path: Path):
    """Write files and return their project."""

    def write(**texts: str) -> Project:
        paths: list[str] = []
        for name, text in texts.items():
            path = tmp_path / (name.replace("__", "/").replace("/init", "/__init__") + ".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            paths.append(str(path))
        return Project(paths, lambda path: Path(path).read_text())

    return write


def read(project: Project, path: Path) -> SourceFile:
    return interpret(project.parse(str(path), path.read_text()), project=project)


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("import models", "app/models/__init__.py"),
        ("import models.net", "app/models/net.py"),
        ("from models import net", "app/models/__init__.py"),
        ("from .models import net", "app/models/__init__.py"),
        ("from . import other", "app"),
        ("from ..shared import f", "shared.py"),
        ("import shared", "shared.py"),
        ("import library", "src/library/__init__.py"),
        ("import torch", ""),
        ("import json", ""),
        ("import yaml", ""),
        ("import main", ""),
    ],
)
def test_the_file_of_a_module(write, tmp_path, statement, expected):
    files = {"app__main": "", "app__other": "", "app__models__init": "", "app__models__net": "", "shared": ""}
    project = write(**files, app__torch="", app__json="", src__library__init="")
    node = ast.parse(statement).body[0]
    assert isinstance(node, ast.Import | ast.ImportFrom)
    module, level = (node.names[0].name, 0) if isinstance(node, ast.Import) else (node.module or "", node.level)
    found = project.find(module, str(tmp_path / "app" / "main.py"), level)
    assert found == (str(tmp_path / expected) if expected else "")


def test_in_a_package_an_installed_library_is_not_a_file_next_to_it(write, tmp_path):
    project = write(pkg__init="", pkg__train="", pkg__wandb="", scripts__train="", scripts__wandb="")
    assert project.find("wandb", str(tmp_path / "pkg/train.py")) == ""
    assert project.find("wandb", str(tmp_path / "scripts/train.py")) == str(tmp_path / "scripts/wandb.py")


@pytest.mark.parametrize(
    ("main", "others"),
    [
        ("from net import Net\nm = Net()", {"net": NET}),
        ("from net import Net as N\nm = N()", {"net": NET}),
        ("import net\nm = net.Net()", {"net": NET}),
        ("import pkg.net\nm = pkg.net.Net()", {"pkg__net": NET}),
        ("import pkg.net as n\nm = n.Net()", {"pkg__net": NET}),
        ("from pkg import net\nm = net.Net()", {"pkg__net": NET}),
        ("from pkg import Net\nm = Net()", {"pkg__init": "from .net import Net", "pkg__net": NET}),
        ("from pkg import *\nm = Net()", {"pkg__init": "from .net import *", "pkg__net": NET}),
        ("from make import build\nm = build()", {"net": NET, "make": "import net\ndef build():\n    return net.Net()"}),
        ("from made import net\nm = net", {"net": NET, "made": "from net import Net\nnet = Net()"}),
        ("def f():\n    from net import Net\n    return Net()\nm = f()", {"net": NET}),
        ("try:\n    from net import Net\nexcept ImportError:\n    Net = None\nm = Net()", {"net": NET}),
        (
            "from a import Net\nm = Net()",
            {"a": "from b import *\nfrom net import Net", "b": "from a import *", "net": NET},
        ),
    ],
)
def test_an_imported_class_is_followed_to_its_file(write, tmp_path, main, others):
    source = read(write(main=main, **others), tmp_path / "main.py")
    created = [each.subject for each in source.ops(OpKind.CREATE) if each.name == "Net"]
    assert [each.kind for each in created] == [ValueKind.MODEL]


@pytest.mark.parametrize(
    ("main", "others"),
    [
        ("from other import f\nf(1)", {"other": "def f("}),
        ("from other import f\nf(1)", {"other": "from main import f"}),
        ("from a import f\nf(1)", {"a": "from b import f", "b": "from a import f"}),
        ("from a import *\nf(1)", {"a": "from b import *", "b": "from a import *"}),
        ("import a\na.b.c.d(1)", {"a": "import b", "b": "import a as c"}),
        ("from a import f\nf(1)", {"a": "f = g\ndef g(): return f\nf = f(f)"}),
    ],
)
def test_broken_files_and_cycles_end(write, tmp_path, main, others):
    source = read(write(main=main, **others), tmp_path / "main.py")
    assert source.modules[0].path == str(tmp_path / "main.py")


def test_a_cycle_of_calls_ends(write, tmp_path):
    project = write(
        a="import b\ndef f(x):\n    return b.g(x)", b="import a\ndef g(x):\n    return a.f(x)", m="import a\na.f(1)"
    )
    source = read(project, tmp_path / "m.py")
    assert [Path(each.path).name for each in source.modules] == ["m.py", "a.py", "b.py"]


def test_a_guarded_main_program_is_not_run_by_an_import(write, tmp_path):
    engine = "import torch\nlr = 0.1\nif __name__ == '__main__':\n    torch.load('x')\n"
    source = read(write(main="from engine import lr\nprint(lr)", engine=engine), tmp_path / "main.py")
    assert not source.ops(OpKind.LOAD)
    assert read(write(engine=engine), tmp_path / "engine.py").ops(OpKind.LOAD)


def test_constants_of_another_file_have_their_values(write, tmp_path):
    main = (
        "import torch\nfrom config import RATE, Config\nm = torch.nn.Dropout(RATE)\nn = torch.nn.Dropout(Config.rate)"
    )
    config = "class Config:\n    rate = 0.3\nRATE = 0.1 * 2\n"
    created = read(write(main=main, config=config), tmp_path / "main.py").ops(OpKind.CREATE)
    assert created[0].arguments["0"].constant() == pytest.approx(0.2)


def test_only_files_whose_code_runs_belong_to_the_program(write, tmp_path):
    project = write(main="from net import Net\nfrom other import f\nNet()(1)", net=NET, other="def f(): pass")
    assert [Path(each.path).name for each in read(project, tmp_path / "main.py").modules] == ["main.py", "net.py"]


def test_lines_of_all_files_differ_and_texts_agree(write, tmp_path):
    project = write(main="from net import Net\nNet()(1)", net=NET)
    source = read(project, tmp_path / "main.py")
    for module in source.modules:
        for each in module.tree.body:
            assert source.module_of(each.lineno) is module
            assert ast.dump(ast.parse(source.text.segment(each)).body[0]) == ast.dump(each)


def test_without_a_project_nothing_is_followed():
    source = interpret(parse_module("main.py", "from net import Net\nm = Net()"))
    assert len(source.modules) == 1
    assert not source.ops(OpKind.CREATE)


def test_the_search_for_imported_files_is_bounded(write, tmp_path):
    count = 2 * MAX_LINKED_FILES
    texts = {f"m{number}": f"import m{number + 1}\n" for number in range(count)}
    project = write(**texts)
    found = project.imported_files(str(tmp_path / "m0.py"), texts["m0"])
    assert [Path(each).name for each in found] == [f"m{number}.py" for number in range(1, MAX_LINKED_FILES + 1)]


def test_imports_in_parentheses_are_found(write, tmp_path):
    project = write(main="", pkg__init="", pkg__a="", pkg__b="")
    text = "from pkg import (\n    a,\n    b as c,\n)\n"
    found = project.imported_files(str(tmp_path / "main.py"), text)
    assert [Path(each).name for each in found] == ["__init__.py", "a.py", "b.py"]


def test_files_next_to_a_named_file_are_followed(tmp_path):
    for name in ("main", "net"):
        (tmp_path / f"{name}.py").write_text("")
    alone = Project([str(tmp_path / "main.py")], Path.read_text)  # pyright: ignore[reportArgumentType]
    named = Project([str(tmp_path / "main.py")], Path.read_text, [str(tmp_path)])  # pyright: ignore[reportArgumentType]
    assert alone.find("net", str(tmp_path / "main.py")) == ""
    assert named.find("net", str(tmp_path / "main.py")) == str(tmp_path / "net.py")
    assert named.display_path(str(tmp_path / "net.py")) == str(tmp_path / "net.py")


@pytest.mark.parametrize("statement", ["from utils import common", "import utils.common as common"])
def test_a_folder_without_init_next_to_a_named_file_is_a_package(tmp_path, statement):
    (tmp_path / "utils").mkdir()
    (tmp_path / "utils" / "common.py").write_text("def rate(): return 0.1\n")
    main = tmp_path / "train.py"
    main.write_text(f"{statement}\nvalue = common.rate()\n")
    project = Project([str(main)], lambda path: Path(path).read_text(), [str(tmp_path)])
    program = interpret(project.parse(str(main), main.read_text()), project=project)
    assert [Path(each.path).name for each in program.modules] == ["train.py", "common.py"]


def test_words_of_files_that_a_program_does_not_run(write, tmp_path):
    project = write(main="import net\nnet.build()\n", net="def build(): return 1\n", other="counter.steps += 1\n")
    source = interpret(project.parse(str(tmp_path / "main.py"), "import net\nnet.build()\n"), project=project)
    assert source.is_in_other_file(".steps +=")
    assert not source.is_in_other_file("def build")
    assert str(tmp_path / "other.py") in project.read_files


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="this version of Python has `async` as a keyword only")
def test_files_of_old_versions_are_parsed():
    (statement,) = parse_tree("inputs = inputs.cuda(async=True)").body
    assert ast.unparse(statement) == "inputs = inputs.cuda(async=True)"
    with pytest.raises(SyntaxError):
        parse_tree("print 'async'")
