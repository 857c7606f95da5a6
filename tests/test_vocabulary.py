"""A list of words and names that source code and documentation must not contain, as they are hard to understand."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROSE = (  # regular expressions, matched without regard to case
    r"of torch's",
    r"of ours",
    r"whoever",
    r"nobody",
    r"somebody",
    r"beside",
    r"anew",
    r"unfinite",
    r"any more",
    r"for ever",
    r"by heart",
    r"told",
    r"untold",
    r"hears?",
    r"heard",
    r"lively",
    r"mend(s|ed)?",
    r"as it (is|was)",
    r"as they (are|were)",
    r"whence",
    r"stands? in for",
    r"is spared",
    r"of its own accord",
    r"a stranger",
    r"the house",
    r"rouses?",
    r"abstains?",
    r"farewells?",
    r"sacred",
    r"deeds?",
    r"gives? back",
    r"puts? back",
    r"at fault",
    r"wants to be",
    r"what comes of",
)
NAMES = {
    "moments",
    "rouses",
    "abstains",
    "hear",
    "tell",
    "told",
    "heard",
    "asked",
    "lively",
    "wholes",
    "farewells",
    "looks",
    "fenced",
    "guarded",
    "modes_aside",
    "unnoticed",
    "wild",
    "is_steep",
    "written",
    "shown",
    "taken",
    "given",
    "kept",
    "held",
    "noted",
    "Thing",
    "Act",
    "Deed",
    "Letter",
    "Exchange",
    "Levels",
    "StandIns",
    "Halving",
    "Desk",
    "Clerk",
    "Referee",
    "Wishes",
    "Kept",
    "Mark",
    "Card",
    "Survey",
    "Told",
    "Asked",
    "Given",
    "Beside",
    "Bring",
}
"""Names that no function, class or module may have, with or without a leading underscore."""
EXTENSIONS = {".py", ".md", ".js", ".html", ".css", ".toml", ".yml", ".yaml"}


def text_files() -> Iterator[Path]:
    """Yield the text files that are not generated."""
    folders = ("src", "docs", "examples", "tools", "benchmarks", "changes")
    paths = (path for folder in folders for path in sorted((ROOT / folder).rglob("*")))
    for path in (*sorted(ROOT.glob("*.md")), *paths):
        generated = {"vendor", "results", "signatures", "__pycache__"} & set(path.parts)
        if path.suffix in EXTENSIONS and not generated:
            yield path


def test_sentences_use_plain_words():
    pattern = re.compile(rf"\b({'|'.join(PROSE)})\b", flags=re.IGNORECASE)
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match[0]}"
        for path in text_files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        for match in pattern.finditer(line)
    ]
    assert not found, f"{len(found)} places, such as {found[:20]}"


def definitions(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name


def test_definitions_are_not_named_in_the_old_words():
    source = sorted((ROOT / "src").rglob("*.py"))
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in source
        for line, name in definitions(path)
        if name.strip("_") in NAMES
    ]
    found += [str(path.relative_to(ROOT)) for path in source if path.stem in NAMES]
    assert not found, f"{len(found)} names, such as {found[:20]}"


def test_the_glossary_is_short():
    rows = [line for line in (ROOT / "docs" / "glossary.md").read_text().splitlines() if line.startswith("| ")]
    assert len(rows) - 1 <= 40
