"""The files of a program."""

import ast
import sys
from types import ModuleType

import pytest

from trueloop.analysis.program_files import imported_modules, parse_files
from trueloop.analysis.program_files import parse_program as parse_program_of_modules
from trueloop.tracing.running_code import user_modules


def parse_program(files):
    return parse_program_of_modules(files, user_modules())


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A script, a package whose modules it imports in several ways, and a module that nothing imports."""
    texts = {
        "main.py": "import parts.one\nfrom parts import two\n",
        "parts/__init__.py": "",
        "parts/one.py": "from . import three\nfrom .four import f\n",
        "parts/two.py": "import json, torch\n",
        "parts/three.py": "a = 1\n",
        "parts/four.py": "def f(): ...\n",
        "other.py": "a = 1\n",
    }
    (tmp_path / "parts").mkdir()
    for name, text in texts.items():
        path = tmp_path / name
        path.write_text(text)
        dotted = name.removesuffix(".py").replace("/__init__", "").replace("/", ".")
        module = ModuleType(dotted)
        module.__file__ = str(path)
        module.__package__ = "parts" if name.startswith("parts") else ""
        if dotted != "main":
            monkeypatch.setitem(sys.modules, dotted, module)
    return tmp_path


def test_exactly_the_imported_files_are_parsed(program):
    found = parse_program([str(program / "main.py")])
    assert found is not None
    names = {"main.py", "parts/__init__.py", "parts/one.py", "parts/two.py", "parts/three.py", "parts/four.py"}
    assert set(found) == {str(program / name) for name in names}


@pytest.mark.parametrize("line", ["exec(text)", "importlib.import_module(name)", "runpy.run_path(path)", "a = ("])
def test_no_result_if_unknown_code_may_run(program, line):
    (program / "parts" / "three.py").write_text(line + "\n")
    assert parse_program([str(program / "main.py")]) is None


def test_a_model_in_eval_mode_hides_nothing(program):
    (program / "parts" / "three.py").write_text("model.eval()\n")
    assert parse_program([str(program / "main.py")]) is not None


def test_a_missing_file_is_not_ignored(program):
    assert parse_program([str(program / "main.py"), str(program / "gone.py")]) is None


def test_imports_of_a_source():
    text = "import a.b\nfrom c import d\nfrom . import e\nfrom ..f import g\n"
    assert imported_modules(ast.parse(text), "x.y") == {"a", "a.b", "c", "c.d", "x", "x.y", "x.y.e", "x.f", "x.f.g"}


def test_unreadable_files_give_no_result(tmp_path):
    good, bad = tmp_path / "good.py", tmp_path / "bad.py"
    good.write_text("import torch\n")
    bad.write_text("import (\n")
    assert set(parse_files([str(good)], user_modules()) or ()) == {str(good)}
    assert parse_files([str(good), str(bad)]) is None
