"""Checks of the built site: it loads no other site, has no dead link, and has a page for each failure and name."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import inspect
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("mkdocs")

from trueloop.failures.load import catalogue
from trueloop.failures.page import first_reference_url as reference_of

ROOT = Path(__file__).resolve().parents[1]
MAKING = ROOT / "docs" / "making"
LOADED = re.compile(r'(?:<(?:script|img|iframe|source|audio|video)\b[^>]*?\ssrc|<link\b[^>]*?\shref)="([^"]*)"')
LINK = re.compile(r'<a\b[^>]*?\shref="([^"]*)"')
ANCHOR = re.compile(r'\sid="([^"]*)"')


@pytest.fixture(scope="module")
def making() -> Iterator[Any]:
    """Import a module of docs/making."""
    sys.path.insert(0, str(MAKING))
    yield importlib.import_module
    sys.path.remove(str(MAKING))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site as `make docs` does."""
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    folder = tmp_path_factory.mktemp("site")
    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True))
    return folder


@pytest.fixture(scope="module")
def site(folder: Path) -> dict[str, str]:
    """Return the contents of all text files by their paths."""
    suffixes = {".html", ".css", ".js", ".svg"}
    return {
        path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8")
        for path in folder.rglob("*")
        if path.suffix in suffixes
    }


def test_nothing_is_loaded_from_anywhere(site: dict[str, str]):
    pages = {name: text for name, text in site.items() if name.endswith(".html")}
    loaded = {address for text in pages.values() for address in LOADED.findall(text)}
    assert len(pages) > 100
    assert {Path(address).name for address in loaded} >= {"site.css", "code.css", "site.js", "icon.svg"}
    assert not [address for address in loaded if "//" in address or address.startswith("data:")]
    for name, text in site.items():
        assert not name.endswith(".css") or not re.search(r"url\(|@import", text), name
    assert not re.search(r"fetch\(|https?://|XMLHttpRequest|import\(", site["site.js"])


def test_it_is_looked_at_from_its_folder_wide_on_a_phone_and_in_the_dark(folder: Path):
    sync_api = pytest.importorskip("playwright.sync_api")
    chromium = Path("/usr/bin/chromium")
    if not chromium.exists():
        pytest.skip("/usr/bin/chromium is not installed; `make chromium` installs it.")
    errors: list[str] = []
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(chromium), args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_context(color_scheme="dark").new_page()
        page.on("request", lambda request: request.url.startswith("file://") or errors.append(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: message.type == "error" and errors.append(message.text))
        for width in (390, 1440):
            page.set_viewport_size({"width": width, "height": 900})
            for name in ("index", "failures/index", "failures/never-cleared", "benchmarks", "proofs", "api/Trainer"):
                page.goto(f"file://{folder}/{name}.html")
                assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{name} at {width}"
        paper = "getComputedStyle(document.documentElement).backgroundColor"
        dark = page.evaluate(paper)
        page.click("#theme")
        assert page.evaluate(paper) != dark
        page.fill("#search input", "softmax twice")
        page.wait_for_selector("#found a")
        page.press("#search input", "Enter")
        page.wait_for_url("**/failures/softmax-applied-twice.html")
        assert page.evaluate(paper) != dark, "the choice is kept"
        browser.close()
    assert not errors


def test_every_link_within_the_site_leads_somewhere(site: dict[str, str]):
    anchors = {name: set(ANCHOR.findall(text)) for name, text in site.items() if name.endswith(".html")}
    dead: set[str] = set()
    for name in anchors:
        for link in set(LINK.findall(site[name])):
            if re.match(r"\w+:", link) or name == "404.html":
                continue
            path, _, anchor = link.partition("#")
            target = resolve_link(name, path)
            if target not in anchors or (anchor and anchor not in anchors[target]):
                dead.add(f"{name}: {link}")
    assert not dead


def resolve_link(page: str, path: str) -> str:
    """Return the path that a relative link of a page leads to."""
    if not path:
        return page
    parts = page.split("/")[:-1]
    for part in path.split("/"):
        parts = parts[:-1] if part == ".." else [*parts, part] if part not in ("", ".") else parts
    return "/".join(parts)


def test_every_failure_has_a_page_that_the_terminal_and_the_linter_agree_with(site: dict[str, str]):
    index = site["failures/index.html"]
    for entry in catalogue().values():
        page = site[entry.page]  # `trueloop explain` names it
        assert f'id="{entry.code}"' in index
        assert f"trueloop explain {entry.code}" in re.sub(r"<[^>]+>", "", page)
        address = reference_of(entry.failure.doc)  # SARIF's helpUri
        assert address is None or f'href="{address}"' in page, entry.code
        assert "<h2" in page
        assert all(word not in page for word in ("``", "&lt;dt&gt;")), entry.code


def test_the_cards_of_the_simulator_show_the_measured_curves(making: Any):
    signatures = making("signatures")
    assert signatures.CARDS_FILE.read_text() == signatures.cards_text(), "make signatures"
    assert len(signatures.CARDS) == 8


def test_the_wall_of_the_lab_shows_the_measured_curves_of_every_injectable_failure(making: Any):
    signatures = making("signatures")
    assert signatures.WALL_FILE.read_text() == signatures.wall_text(), "make signatures"
    injectable = {entry.code for entry, _ in signatures.injectable_failures()}
    assert set(json.loads(signatures.wall_text())["plots"]) == injectable


def test_signatures_are_those_of_todays_scripts_and_drawn(making: Any, site: dict[str, str]):
    signatures = making("signatures")
    assert not [entry.code for entry, _ in signatures.stale()], "make signatures"
    wanted = {entry.code: entry for entry, _ in signatures.injectable_failures()}
    assert {path.stem for path in signatures.FOLDER.glob("*.json")} == set(wanted)
    for entry in wanted.values():
        curves = signatures.read_signature(entry)
        assert curves["found"], f"{entry.code} is not found from any seed"
        page = site[f"failures/{entry.slug}.html"]
        assert page.count('<path class="line broken"') >= len(curves["plots"]) - 1
        assert page.count('role="img"') == len(curves["plots"])


def test_every_public_name_is_told_of(making: Any, site: dict[str, str]):
    reference = making("reference")
    import trueloop

    documented = dict(reference.documented())
    assert set(trueloop.__all__) - {"__version__"} <= set(documented)
    for name, thing in documented.items():
        assert (inspect.getdoc(thing) or "").strip(), f"{name} has no docstring"
        page = site[f"api/{name.partition('.')[0]}.html"]
        assert "." not in name or f'id="{name.replace(".", "-")}"' in page, name
    assert "[object" not in "".join(text for name, text in site.items() if name.startswith("api/"))


def test_every_example_of_a_public_docstring_runs(making: Any):
    finder, runner = doctest.DocTestFinder(recurse=False), doctest.DocTestRunner()
    tried = 0
    for name, thing in making("reference").documented():
        target = thing.fget if isinstance(thing, property) else thing
        if ">>>" in (inspect.getdoc(target) or ""):
            for test in finder.find(target, name, module=False, globs={}):
                tried += runner.run(test).attempted
    assert tried >= 10
    assert not runner.summarize().failed


def test_every_test_that_a_guide_names_is_shown(making: Any, site: dict[str, str]):
    proofs = making("proofs")
    named = proofs.find_test_names(path.read_text() for path in (ROOT / "docs").glob("*.md"))
    assert len(named) > 50
    assert all(f'id="{proofs.anchor(path, name)}"' in site["proofs.html"] for path, name in named)
    with pytest.raises(LookupError, match="test_nowhere"):
        proofs.source("tests/test_site.py", "test_nowhere")


# Writing a failure ------------------------------------------------------------------------------------------------

GUIDE = ROOT / "docs" / "writing-a-failure.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, ModuleType]]:
    """Install the guide's failure as a package; return its catalogue entry and the module of its tests."""
    from trueloop.failures import load

    failure, tests = BLOCK.findall(GUIDE.read_text())
    package = tmp_path / "my_failures" / "gradient"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package / "clipped_to_nothing.py").write_text(failure)
    monkeypatch.syspath_prepend(tmp_path)
    mine = importlib.metadata.EntryPoint("mine", "my_failures", load.ENTRY_POINT_GROUP)
    monkeypatch.setattr(load, "entry_points", lambda group: [mine] if group == load.ENTRY_POINT_GROUP else [])
    load.catalogue.cache_clear()
    module = ModuleType("test_clipped_to_nothing")
    exec(compile(tests, "test_clipped_to_nothing.py", "exec"), module.__dict__)
    yield load.catalogue()["GRD901"], module
    load.catalogue.cache_clear()


def test_the_failure_of_the_guide_keeps_what_every_failure_promises(example: tuple[Any, ModuleType], tmp_path: Path):
    import torch

    from trueloop.failures.load import SECTIONS
    from trueloop.failures.page import split_sections
    from trueloop.lab.teaching.inject import write_script
    from trueloop.lab.teaching.simulation import Simulation
    from trueloop.lint.check_file import ActiveRule, lint_text

    entry, tests = example
    failure = entry.failure
    assert (entry.family, entry.slug) == ("gradient", "clipped-to-nothing")
    assert [heading for heading, _ in split_sections(failure.doc)] == ["", *SECTIONS]
    rules = [
        ActiveRule(each.failure, each.slug, each.failure.rule) for each in catalogue().values() if each.failure.rule
    ]
    assert {found.code for found in lint_text(failure.bad, "bad.py", rules).findings} == {"GRD901"}
    assert not lint_text(failure.good, "good.py", rules).findings
    torch.manual_seed(0)
    assert reported_lines(failure.bad, tmp_path) == {("GRD901", line_of(failure.bad, "clip_grad_norm_"))}
    assert not reported_lines(failure.good, tmp_path)
    for script in (tests.HEAD + each for each in tests.FAULTY.values()):
        assert reported_lines(script, tmp_path) == {("GRD901", line_of(script, "# <- GRD901"))}
    for script in tests.CORRECT.values():
        assert not reported_lines(tests.HEAD + script, tmp_path)
    lesson = Simulation(dataset="moons", samples=60, clip=1.0, epochs=2)
    loop = write_script(lesson, [failure.inject]).loop
    assert [each.after for each in loop.changed_lines()] == [
        "norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm=0)"
    ]
    assert {code for code, _ in reported_lines(loop.text(), tmp_path)} == {"GRD901"}


def reported_lines(script: str, folder: Path) -> set[tuple[str, int]]:
    """Return (code, line) of each finding that is more than a note."""
    return {(each.code, each.location.line) for each in run_watched(script, folder).findings if each.severity != "note"}


def run_watched(script: str, folder: Path) -> Any:
    """Run a script with all detectors; return the report."""
    import runpy

    from trueloop.sanitizer.dispatch import WatchedFailure
    from trueloop.sanitizer.watch import Watch

    (folder / "train.py").write_text(script)
    watch = Watch([WatchedFailure(each.failure, each.slug) for each in catalogue().values()])
    with watch:
        runpy.run_path(str(folder / "train.py"), run_name="__main__")
    return watch.report()


def line_of(script: str, text: str) -> int:
    """Return the number of the first line that contains a text."""
    return next(number for number, line in enumerate(script.splitlines(), 1) if text in line)


def test_a_new_failure_begins_with_two_files_and_the_next_code(tmp_path: Path):
    spec = importlib.util.spec_from_file_location("new_failure", ROOT / "tools" / "new_failure.py")
    assert spec is not None
    assert spec.loader is not None
    new_failure = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(new_failure)
    code = new_failure.next_code("memory")
    assert code not in catalogue()
    assert not [used for used in catalogue() if int(used[3:]) >= new_failure.FIRST_EXTERNAL_CODE], (
        "these codes are reserved for other packages"
    )
    failure, test = new_failure.create_files("memory", "held_for_ever", tmp_path)
    names: dict[str, Any] = {"__doc__": "", "__name__": "held_for_ever"}
    exec(compile(failure.read_text(), str(failure), "exec"), names)
    assert names["FAILURE"].code == code
    assert test.relative_to(tmp_path) == Path("tests/failures/memory/test_held_for_ever.py")
    compile(test.read_text(), str(test), "exec")
    assert f"# <- {code}" in test.read_text()
    with pytest.raises(FileExistsError):
        new_failure.create_files("memory", "held_for_ever", tmp_path)
