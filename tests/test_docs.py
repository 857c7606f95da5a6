"""Checks of README and docs: their Python code runs, their commands exist, and their links lead to existing pages."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
DOCS = sorted((ROOT / "docs").rglob("*.md"))
OUTSIDE = [
    ROOT / name
    for name in ("CONTRIBUTING.md", "ARCHITECTURE.md", "CHANGELOG.md", "changes/README.md", "examples/README.md")
    if (ROOT / name).exists()
]
PAPERS = [README, *OUTSIDE, *DOCS]
WRITTEN = ("failures/", "api/", "proofs.md")  # pages of the site that are written when it is built: see test_site.py

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fenced block of a page."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def position(self) -> str:
        """Path and line of the block."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def find_blocks(*languages: str) -> list[Block]:
    """Return all fenced blocks in these languages."""
    blocks: list[Block] = []
    for page in PAPERS:
        text = page.read_text()
        for match in FENCE.finditer(text):
            if match[1] in languages:
                line = text.count("\n", 0, match.start()) + 1
                blocks.append(Block(page=page, line=line, language=match[1], text=match[2]))
    return blocks


PYTHON = find_blocks("python")
# A block that starts with an import or a docstring is a complete program; any other block is an excerpt.
PROGRAMS = [block for block in PYTHON if re.match(r'(?:#.*\n)*(?:import |from |""")', block.text)]


def prose(page: Path) -> str:
    """Return the text of a page without its fenced blocks, whose brackets are not links."""
    return FENCE.sub("", page.read_text())


def run_python(*arguments: str, folder: Path, forker: Any = None) -> None:
    """Run Python with warnings as errors and one thread; fail unless the exit code is 0.

    Python runs in a new interpreter, as for a user, or, with a forker, in a fork that has already imported torch.
    """
    if forker is not None:
        done = forker.run("-W", "error", *arguments, cwd=folder)
    else:
        command = [sys.executable, "-W", "error", *arguments]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


@pytest.mark.parametrize("block", PYTHON, ids=lambda block: block.position)
def test_python_compiles(block: Block):
    compile(block.text, block.position, "exec")


def test_few_blocks_are_excerpts_that_are_compiled_only():
    excerpts = [block.position for block in PYTHON if block not in PROGRAMS]
    loops = [
        position for position in excerpts if position.startswith("docs/cheatsheet.md")
    ]  # run by lab/teaching/test_sheet.py
    assert len(excerpts) - len(loops) <= 3, excerpts


@pytest.mark.slow(reason="runs the programs of the guides")
@pytest.mark.parametrize("block", PROGRAMS, ids=lambda block: block.position)
def test_a_whole_program_runs(block: Block, tmp_path: Path, forker: Any):
    script = tmp_path / "script.py"
    script.write_text(block.text)
    run_python(script.name, folder=tmp_path, forker=None if block.page == README else forker)


def test_the_readme_example_is_about_20_lines():
    [example] = [block for block in PYTHON if block.page == README]
    assert len(example.text.splitlines()) <= 22
    assert example in PROGRAMS


# Commands --------------------------------------------------------------------------------------------------------


def command_lines() -> Iterator[tuple[str, list[str]]]:
    """Yield every `trueloop ...` in a block or between backquotes, with its position and its arguments."""
    for page in PAPERS:
        text = page.read_text()
        lines = re.findall(r"(?:^(?:\$ | {4})|`)(trueloop [a-z][^\n`]*)", text, flags=re.MULTILINE)
        for line in lines:
            yield f"{page.relative_to(ROOT)}: {line}", shlex.split(line, comments=True)[1:]


COMMANDS = dict(command_lines())


def real_commands() -> set[str]:
    from trueloop.cli.app import app

    return {name for name in app if not name.startswith("-")}


def is_complete_line(tokens: list[str]) -> bool:
    """Return True for a line that could be typed; `trueloop train` in a sentence only names the command."""
    return len(tokens) > 1 or tokens == ["recipes"]


@pytest.mark.parametrize("tokens", COMMANDS.values(), ids=COMMANDS.keys())
def test_a_command_line_parses(tokens: list[str]):
    from trueloop.cli.app import app

    assert tokens[0] in real_commands()
    if is_complete_line(tokens):  # raises a CycloptsError for what does not fit
        app.parse_args(tokens, exit_on_error=False, print_error=False)


@pytest.mark.parametrize(
    "tokens", [tokens for tokens in COMMANDS.values() if tokens[0] == "train" and len(tokens) > 1], ids=" ".join
)
def test_the_settings_on_a_training_line_exist(tokens: list[str]):
    from trueloop.cli.recipe_line import recipe_app
    from trueloop.recipes import registry

    _, spec, *words = tokens
    if ".py" in spec:
        return  # run below, with the file that the page shows
    recipe_app(registry.load(spec), spec, lambda _: 0).parse_args(words, exit_on_error=False, print_error=False)


@pytest.mark.parametrize("tokens", [tokens for tokens in COMMANDS.values() if tokens[0] == "run"], ids=" ".join)
def test_the_options_before_a_script_exist(tokens: list[str]):
    from trueloop.cli.run import APP, OPTIONS_WITH_VALUE
    from trueloop.cli.script_words import split_words

    split = split_words(tokens[1:], OPTIONS_WITH_VALUE)
    APP.parse_args(split.options, exit_on_error=False, print_error=False)
    assert split.words or tokens == ["run"]


@pytest.mark.slow(reason="runs the programs of the guides")
def test_the_recipe_of_the_page_is_trained_by_the_lines_of_the_page(tmp_path: Path, forker: Any):
    page = ROOT / "docs" / "your-own-recipe.md"
    [recipe] = [block for block in PYTHON if block.page == page]
    (tmp_path / "recipe.py").write_text(recipe.text)
    lines = [
        line for position, line in COMMANDS.items() if position.startswith("docs/your-own-recipe.md") and len(line) > 1
    ]
    assert len(lines) >= 3
    for line in lines:
        run_python("-m", "trueloop", *line, folder=tmp_path, forker=forker)
    assert list(tmp_path.glob("runs/*/final/model.safetensors"))


# Settings --------------------------------------------------------------------------------------------------------


def settings(record: object, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield (dotted name, repr of the default) for every field of nested dataclasses."""
    for field in fields(record):  # pyright: ignore[reportArgumentType]
        value = getattr(record, field.name)
        if is_dataclass(value):
            yield from settings(value, f"{path}{field.name}.")
        else:
            yield f"{path}{field.name}", repr(value)


def test_every_setting_is_listed_with_its_default():
    from trueloop.training.config import TrainConfig

    page = (ROOT / "docs" / "configuration.md").read_text()
    listed = re.findall(r"^\| `([\w.]+)` \| `([^`]+)` \| \S", page, flags=re.MULTILINE)
    assert listed == list(settings(TrainConfig()))


# Output ----------------------------------------------------------------------------------------------------------

SHOWN = [block for block in find_blocks("text") if block.text.startswith("$ trueloop plan --parameters")]


@pytest.mark.parametrize("block", SHOWN, ids=lambda block: block.position)
def test_what_a_command_prints_is_what_the_page_shows(
    block: Block, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    from trueloop.cli.app import main

    monkeypatch.setenv("COLUMNS", "100")
    line, _, shown = block.text.partition("\n")
    assert main(shlex.split(line)[2:]) == 0
    assert capsys.readouterr().out == shown


def test_the_page_on_scale_shows_what_it_speaks_of():
    assert len([block for block in SHOWN if block.page.name == "scale.md"]) == 3


REPORT = [
    block
    for block in find_blocks("text")
    if block.page.name == "reading-a-report.md" or (block.page == README and block.text.startswith("trueloop: 4"))
]
VARYING_LINES = re.compile(r"^(judged|traced|update) ")  # lines whose numbers differ from run to run


def mask_numbers(text: str) -> list[str]:
    """Return the lines of a report without the numbers that differ from run to run."""
    return [
        re.sub(r"\d[\d.]*( (µs|ms|s)\b)?", "N", line) if VARYING_LINES.match(line) else line.rstrip()
        for line in text.splitlines()
    ]


def test_the_report_is_the_one_that_is_read_line_by_line(forker: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "100")
    done = forker.run("-m", "trueloop", "run", "four_mistakes.py", cwd=ROOT / "examples" / "broken")
    report = "\n".join(mask_numbers(done.stderr))
    assert len(REPORT) >= 11
    for block in REPORT:
        for part in "\n".join(mask_numbers(block.text)).split("\n...\n"):
            assert part in report, f"{block.position} differs from the printed report:\n{part}"
    [accuracy] = re.findall(r"its accuracy rises to (\d\.\d+)", README.read_text())
    assert f"{float(done.stdout.split()[-1]):.2f}" == accuracy


# Links -----------------------------------------------------------------------------------------------------------


def slug(heading: str) -> str:
    """Return the anchor that GitHub and mkdocs create for a heading: "The loss" -> "the-loss"."""
    return re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", heading.strip().lower()))


def links(page: Path) -> list[str]:
    return [target for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)) if "://" not in target]


@pytest.mark.parametrize("page", PAPERS, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_somewhere(page: Path):
    dead: list[str] = []
    for link in links(page):
        path, _, anchor = link.partition("#")
        if path.startswith(WRITTEN):
            continue
        target = (page.parent / path).resolve() if path else page
        anchors = {slug(h) for h in re.findall(r"^#+ (.+)$", target.read_text(), re.MULTILINE)} if anchor else {""}
        if not target.exists() or anchor not in anchors:
            dead.append(link)
    assert not dead


@pytest.mark.parametrize(("page", "least"), [("ARCHITECTURE.md", 20), ("docs/anatomy-of-a-finding.md", 15)])
def test_the_architecture_names_files_that_exist(page: str, least: int):
    named = set(re.findall(r"[\w./]*\w\.py\b", (ROOT / page).read_text())) - {"train.py", "hook.py"}
    files = [path.relative_to(ROOT).as_posix() for top in ("src", "tests") for path in (ROOT / top).rglob("*.py")]
    assert len(named) >= least  # or the pattern above no longer finds them
    assert not {name for name in named if not any(f"/{file}".endswith(f"/{name}") for file in files)}


def test_the_way_of_a_finding_is_told_in_at_most_eight_files():
    drawing = (ROOT / "docs" / "anatomy-of-a-finding.md").read_text().split("```")[1]
    files = set(re.findall(r"[\w/]+/\w+\.py\b|failures/\w+/\w+/", drawing))
    assert len(files) == 8


def test_every_page_is_in_the_navigation_and_exists():
    # A regular expression replaces a YAML parser, because this test must not depend on mkdocs.
    nav = re.findall(r"^ +- [^:]+: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), flags=re.MULTILINE)
    nav = [page for page in nav if not page.startswith(WRITTEN)]
    assert sorted(nav) == sorted(str(page.relative_to(ROOT / "docs")) for page in DOCS)
    assert len(nav) == len(set(nav))


def test_pages_of_the_site_link_only_within_the_site():
    outside = [f"{page.name}: {link}" for page in DOCS for link in links(page) if link.startswith("../")]
    assert not outside


def test_every_benchmark_is_in_the_table_of_the_page():
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    scripts = {path.name for path in (ROOT / "benchmarks").glob("[a-z]*.py")}
    scripts -= {"page.py", "measure.py", "workloads.py"}
    assert not {name for name in scripts if f"| `{name}` |" not in page}


def test_the_figures_are_those_of_the_results():
    """benchmarks/page.py writes the figures into the pages after each measurement."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("page", ROOT / "benchmarks" / "page.py")
    page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.page(text) == text
    text = README.read_text(encoding="utf-8")
    assert page.readme(text) == text
    text = page.PUBLIC_CODE.read_text(encoding="utf-8")
    assert page.public_code(text) == text
