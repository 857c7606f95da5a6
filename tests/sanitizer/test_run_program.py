"""A program that trueloop runs has the same output, globals, traceback and exit code as under Python."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from trueloop.sanitizer.run_program import ProgramCommand, ProgramResult, hide_internal_frames, run_program


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to run programs in; afterwards, changes of this process by a program are reverted."""
    original = {name: sys.modules[name] for name in ("__main__",)}
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.update(original)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return path


class ProcessOutput(NamedTuple):
    code: int
    out: str
    err: str


def run_python(*arguments: str, stdin: str = "") -> ProcessOutput:
    done = subprocess.run([sys.executable, *arguments], input=stdin, capture_output=True, text=True, check=False)
    return ProcessOutput(done.returncode, done.stdout, done.stderr)


def run_with_trueloop(program: str, *, stdin: str = "") -> ProcessOutput:
    script = (
        f"import sys\nfrom trueloop.sanitizer.run_program import ProgramCommand, run_program\n"
        f"sys.exit(run_program(ProgramCommand({program})).code)\n"
    )
    return run_python("-c", script, stdin=stdin)


CURIOUS = """\
    import os, pickle, sys
    class Here:
        pass
    print(sys.argv, __name__, __file__, __spec__ and __spec__.name, __package__, __cached__ and 1, bool(__loader__))
    print(sys.path[0], os.getcwd(), sys.stdin.read(), __builtins__.__name__, __doc__, sorted(globals()))
    print(type(pickle.loads(pickle.dumps(Here()))), sys.modules["__main__"].Here is Here)
"""


def test_a_script_runs_as_under_python(folder: Path):
    write(folder / "sub" / "script.py", '"""Words."""\n' + textwrap.dedent(CURIOUS))
    plain = run_python("sub/script.py", "--flag", "x", stdin="typed")
    ours = run_with_trueloop("target='sub/script.py', arguments=('--flag', 'x')", stdin="typed")
    assert plain.code == 0
    assert ours == plain
    assert not (folder / "sub" / "__pycache__").exists()


def test_a_module_runs_as_under_python(folder: Path):
    write(folder / "package" / "__init__.py", "")
    write(folder / "package" / "job.py", CURIOUS)
    plain = run_python("-m", "package.job", "--flag", stdin="typed")
    assert plain.code == 0
    assert run_with_trueloop("target='package.job', arguments=('--flag',), module=True", stdin="typed") == plain


def test_a_link_is_followed_for_imports_as_python_does(folder: Path):
    write(folder / "real" / "script.py", "import beside\nprint(beside.__file__, __file__)")
    write(folder / "real" / "beside.py", "")
    (folder / "link.py").symlink_to(folder / "real" / "script.py")
    assert run_with_trueloop("target='link.py'") == run_python("link.py")


def test_a_folder_and_an_archive_with_a_main_run(folder: Path, capsys: pytest.CaptureFixture[str]):
    write(folder / "app" / "__main__.py", "import part; print(part.name, __name__)")
    write(folder / "app" / "part.py", "name = 'part'")
    assert run_program(ProgramCommand(target="app")).code == 0
    with zipfile.ZipFile(folder / "app.pyz", "w") as archive:
        archive.write(folder / "app" / "__main__.py", "__main__.py")
        archive.write(folder / "app" / "part.py", "part.py")
    sys.modules.pop("part")
    assert run_program(ProgramCommand(target="app.pyz")).code == 0
    sys.modules.pop("part")
    assert capsys.readouterr().out == "part __main__\n" * 2


FAILING = {
    "raises": "def f():\n    return 1 / 0\nf()\n",
    "chain": "try:\n    {}['a']\nexcept KeyError as e:\n    raise ValueError('bad') from e\n",
    "group": "try:\n    1 / 0\nexcept ArithmeticError as e:\n    raise ExceptionGroup('many', [e])\n",
    "syntax": "x = 1\nif x\n    print(x)\n",
    "missing import": "import no_such_module_at_all\n",
    "message": "import sys\nsys.exit('a message')\n",
    "number": "import sys\nsys.exit(7)\n",
    "true": "import sys\nsys.exit(True)\n",
    "nothing": "import sys\nsys.exit()\n",
    "float": "raise SystemExit(2.5)\n",
    "own hook": "import sys\nsys.excepthook = lambda *e: print('mine', e[0])\n1 / 0\n",
    "base": "class Odd(BaseException): pass\nraise Odd('x')\n",
}


@pytest.mark.parametrize("text", FAILING.values(), ids=FAILING.keys())
def test_it_fails_with_pythons_message_and_code(folder: Path, text: str, capsys: pytest.CaptureFixture[str]):
    (folder / "script.py").write_text(text)
    plain = run_python("script.py")
    ended = in_process(capsys, lambda: run_program(ProgramCommand(target="script.py")))
    assert ended == plain


def in_process(capsys: pytest.CaptureFixture[str], go: Callable[[], ProcessOutput]) -> ProcessOutput:
    hook = sys.excepthook
    try:
        ended = go()
    finally:
        sys.excepthook = hook
    out, err = capsys.readouterr()
    return ProcessOutput(ended.code, out, err)


def test_a_failing_user_hook_hides_nothing(folder: Path, capsys: pytest.CaptureFixture[str]):
    write(folder / "script.py", "import sys\nsys.excepthook = lambda *e: {}['oops']\n1 / 0\n")
    seen = in_process(capsys, lambda: run_program(ProgramCommand(target="script.py")))
    assert seen.code == 1
    assert re.search(r"Error in sys.excepthook:.*oops.*Original exception was:.*ZeroDivisionError", seen.err, re.DOTALL)


@pytest.mark.parametrize("name", ["no_such_module_at_all", "package", "email", ".relative"])
def test_a_module_that_cannot_run_gives_pythons_error(folder: Path, name: str, capsys: pytest.CaptureFixture[str]):
    write(folder / "package" / "__init__.py", "")
    seen = in_process(capsys, lambda: run_program(ProgramCommand(target=name, module=True)))
    assert seen == run_python("-m", name)


def test_an_interruption_is_130_with_its_traceback(folder: Path, capsys: pytest.CaptureFixture[str]):
    write(folder / "script.py", "raise KeyboardInterrupt\n")
    seen = in_process(capsys, lambda: run_program(ProgramCommand(target="script.py")))
    assert seen.code == 130
    assert seen.err == (
        f'Traceback (most recent call last):\n  File "{folder}/script.py", line 1, in <module>\n'
        "    raise KeyboardInterrupt\nKeyboardInterrupt\n"
    )


def test_threads_exit_functions_and_pools_end_in_order(folder: Path):
    write(
        folder / "script.py",
        """\
        import atexit, sys, threading, time
        from concurrent.futures import ThreadPoolExecutor
        pool = ThreadPoolExecutor(1)
        pool.submit(lambda: time.sleep(0.05)).add_done_callback(lambda done: print("pool"))
        atexit.register(lambda: print("exit", __name__, sys.modules["__main__"].pool is pool))
        threading.Thread(target=lambda: (time.sleep(0.1), print("thread"))).start()
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        print("end")
        """,
    )
    ours = run_with_trueloop("target='script.py'")
    assert ours == run_python("script.py")
    assert ours.out.splitlines()[:3] == ["end", "pool", "thread"]


def test_a_spawned_process_finds_the_scripts_functions(folder: Path):
    write(
        folder / "script.py",
        """\
        import multiprocessing
        def double(x):
            return 2 * x
        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(double, [1, 2]))
        """,
    )
    assert run_with_trueloop("target='script.py'") == ProcessOutput(0, "[2, 4]\n", "")


def test_os_exit_leaves_at_once(folder: Path):
    write(folder / "script.py", "import os\nprint('x', flush=True)\nos._exit(9)\n")
    assert run_with_trueloop("target='script.py'") == ProcessOutput(9, "x\n", "")


def test_errors_are_reported_before_they_are_printed(folder: Path, capsys: pytest.CaptureFixture[str]):
    write(folder / "script.py", "1 / 0\n")
    errors: list[tuple[BaseException, str]] = []
    ended = run_program(
        ProgramCommand(target="script.py"), on_error=lambda error: errors.append((error, capsys.readouterr().err))
    )
    ((error, printed),) = errors
    assert ended.error is error
    assert isinstance(error, ZeroDivisionError)
    assert not printed
    write(folder / "script.py", "raise SystemExit(3)\n")
    assert run_program(
        ProgramCommand(target="script.py"), on_error=lambda error: errors.append((error, ""))
    ) == ProgramResult(3, None)
    assert len(errors) == 1


def test_internal_frames_are_hidden_everywhere(tmp_path: Path):
    import trueloop

    ours = Path(os.path.dirname(trueloop.__file__)) / "tracing" / "hooks" / "made_up.py"
    between: dict[str, Callable[..., None]] = {}
    code = compile("def call(function):\n    try:\n        function()\n    finally:\n        pass\n", str(ours), "exec")
    exec(code, between)

    def fail() -> None:
        raise ValueError("deep")

    def fail_again() -> None:
        try:
            between["call"](fail)
        except ValueError as error:
            raise RuntimeError("after") from error

    with pytest.raises(RuntimeError) as caught:
        between["call"](fail_again)
    error = caught.value
    hide_internal_frames(error)
    assert error.__cause__ is not None
    names = [[frame.f_code.co_name for frame in frames(each)] for each in (error, error.__cause__)]
    assert names == [
        ["test_internal_frames_are_hidden_everywhere", "fail_again"],
        ["fail_again", "fail"],
    ]


def frames(error: BaseException):
    trace = error.__traceback__
    while trace:
        yield trace.tb_frame
        trace = trace.tb_next


def notebook(path: Path, *cells: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    code = [{"cell_type": "code", "source": textwrap.dedent(each)} for each in cells]
    path.write_text(json.dumps({"cells": [{"cell_type": "markdown", "source": "# Title"}, *code]}))
    return path


def test_a_notebook_runs_in_its_folder_as_under_jupyter(folder: Path):
    write(folder / "notes" / "parts.py", "NAME = 'parts'\n")
    notebook(
        folder / "notes" / "a.ipynb",
        "%matplotlib inline\n!pip install x\nimport os\nfrom parts import NAME\nprint(__name__, os.getcwd()[-5:])",
        "%%time\ntotal = 1\ntotal + 1",
        "%%bash\nrm -rf everything",
        "no python here",
        "'text'",
        "total;",
        "print('last')\ndisplay(total, 'shown')\nprint(os.environ['MPLBACKEND'])",
    )
    done = run_with_trueloop('target="notes/a.ipynb"')
    assert not done.code, done.err
    assert done.out == "__main__ notes\n2\n'text'\nlast\n1\n'shown'\nAgg\n"
    assert done.err == (
        "trueloop: skipped what only Jupyter runs: `%matplotlib inline`, `!pip install x`, `%%time`, ...\n"
        "trueloop: skipped cell 5 line 1: invalid syntax\n"
    )


def test_an_error_in_a_notebook_names_the_cell_and_stops_it(folder: Path):
    notebook(folder / "a.ipynb", "def divide(x):\n    return 1 / x", "\ndivide(0)", "print('not reached')")
    done = run_with_trueloop('target="a.ipynb"')
    assert (done.code, done.out) == (1, "")
    file = folder / "a.ipynb"
    assert done.err.splitlines() == [
        "Traceback (most recent call last):",
        f'  File "{file}:cell 3", line 2, in <module>',
        "    divide(0)",
        f'  File "{file}:cell 2", line 2, in divide',
        "    return 1 / x",
        "           ~~^~~",
        "ZeroDivisionError: division by zero",
    ]


def test_a_file_that_is_no_notebook_is_named(folder: Path):
    (folder / "a.ipynb").write_text("{}")
    done = run_with_trueloop('target="a.ipynb"')
    assert done.code == 1
    assert done.err == f"{folder / 'a.ipynb'}: not a notebook: it has no cells\n"
