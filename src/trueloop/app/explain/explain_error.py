"""An error as it was printed, to what is known of it: the catalogue's pages, without the program that raised it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from trueloop.app.explain.tracebacks import ErrorText, parse_errors, strip_terminal_codes
from trueloop.core.findings import SourceLocation
from trueloop.failures.load import Entry, error_page, find_failure, known_errors
from trueloop.failures.pytorch_error import KnownError, RaisedError, RecentEvents
from trueloop.failures.warning_search import find_failures_in_warnings

ROLE_ORDER: Final = ("raised", "worker", "cause", "context")
"""What ended the program comes first, what was only being handled when that came last."""
MIN_WORD_OVERLAP: Final = 0.5  # of a known message's words
MAX_NEAREST: Final = 3  # near ones that are named
MAX_LINES_WITHOUT_ERROR: Final = 100  # lines of a text without any error that are looked at for what is near
MAX_MESSAGE_LENGTH: Final = 2000  # characters of a message
_CODE: Final = re.compile(r"\b[A-Z]{3}\d{3}\b")
_RERAISED: Final = re.compile(r"Caught \w+ in ")  # by torch, from a worker or a replica
_TRUELOOP_ERRORS: Final = "trueloop.core.errors"
_TORCH_PATH: Final = re.compile(r"(?:^|/)torch/(.+\.py)$")
_LIBRARY_PATH: Final = re.compile(r"/(?:site|dist)-packages/|/lib/python\d|/trueloop/(?:engines|faces)/|^<")
_NO_EVENTS: Final = RecentEvents(update=-1)  # how many updates went by before does not stand in a traceback


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedError:
    """One error of torch's that is known."""

    kind: str
    entry: KnownError
    error: ErrorText
    location: SourceLocation | None
    """The innermost line of the user's."""
    meaning: str
    """"" = a traceback says too little; the page says what it can be."""
    fix: str

    def to_json(self) -> dict[str, Any]:
        """Return it JSON-ready."""
        return {
            "kind": self.kind, "title": self.entry.title, "type": self.error.type, "message": self.error.message,
            "how": self.error.role, "ranks": list(self.error.ranks), "site": self.location and self.location._asdict(),
            "meaning": self.meaning, "fix": self.fix, "page": error_page(self.kind),
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What a text is about."""

    errors: Sequence[MatchedError]
    failures: Sequence[Entry]
    """Silent failures that it names by their code, or that torch warned of."""
    trueloop_errors: Sequence[ErrorText]
    """Errors of trueloop's own, which say themselves what to do."""
    unknown: Sequence[ErrorText]
    nearest: Sequence[str]
    """Kinds of errors whose words are like those of the unknown ones."""

    @property
    def has_known_errors(self) -> bool:
        """Something in it is known."""
        return bool(self.errors or self.failures or self.trueloop_errors)

    def to_json(self) -> dict[str, Any]:
        """Return it JSON-ready; a line that names no type of error is not listed among what is unknown."""
        return {
            "errors": [match_.to_json() for match_ in self.errors],
            "failures": [{"code": each.code, "slug": each.slug, "fix": each.failure.fix} for each in self.failures],
            "ours": [{"type": each.type, "message": each.message} for each in self.trueloop_errors],
            "unknown": [{"type": each.type, "message": each.message} for each in self.unknown if each.type],
            "nearest": list(self.nearest),
        }


def explain_text(text: str) -> Explanation:
    """Look up everything a text speaks of.

    Args:
        text: a traceback, a log that holds one, or an error's message alone.
    """
    bare = strip_terminal_codes(text)
    seen = parse_errors(text)
    errors = list(_match_errors(seen, seen)) or list(_match_errors(_messages_in(bare), seen))
    explained = [match_.error for match_ in errors]
    ours = [error for error in seen if error.module == _TRUELOOP_ERRORS]
    rest = [error for error in seen if error not in explained and error not in ours]
    failures = {entry.code: entry for entry in (*map(find_failure, _CODE.findall(bare)), *find_failures_in_warnings(bare)) if entry}
    return Explanation(
        errors=errors,
        failures=list(failures.values()),
        trueloop_errors=ours,
        unknown=[each for each in rest if each.role in ("raised", "worker") and not _RERAISED.match(each.message)],
        nearest=[]
        if errors or failures or ours
        else _nearest([error.message for error in rest] or bare.splitlines()[-MAX_LINES_WITHOUT_ERROR:]),
    )


def _match_errors(errors: Iterable[ErrorText], chain: Sequence[ErrorText]) -> Iterator[MatchedError]:
    kinds: set[tuple[str, str]] = set()
    for error in sorted(errors, key=lambda each: ROLE_ORDER.index(each.role)):
        match_ = _match_error(error, chain)
        key = (match_.kind, error.message if error.type else "") if match_ else None
        if match_ is not None and key is not None and key not in kinds:
            kinds.add(key)
            yield match_


def _match_error(error: ErrorText, chain: Sequence[ErrorText]) -> MatchedError | None:
    site = _user_location(error) or next((site for each in chain if each.role == "raised" and (site := _user_location(each))), None)
    raised = RaisedError(
        type=error.type,
        message=error.message,
        location=site,
        causes=(*(each.message for each in chain if each.role == "cause"), error.message),
        pytorch_files=tuple(found[1] for each in error.frames if (found := _TORCH_PATH.search(each.path))),
        recent=_NO_EVENTS,
    )
    for kind, entry in known_errors().items():
        match = entry.match(error.message) if not error.type or error.type in entry.exception_types else None
        if match is None:
            continue
        words = entry.explain(raised, match)
        if words is not None:
            return MatchedError(kind=kind, entry=entry, error=error, location=site, meaning=words.meaning, fix=words.fix)
        if not error.frames:  # what the explanation looks for may be in the traceback that was not given
            return MatchedError(kind=kind, entry=entry, error=error, location=site, meaning="", fix="")
    return None


def _user_location(error: ErrorText) -> SourceLocation | None:
    """Return the innermost line of the user's; in a worker, or in a thread, there may be none."""
    return next((site for site in reversed(error.frames) if not _LIBRARY_PATH.search(site.path)), None)


def _messages_in(text: str) -> Iterator[ErrorText]:
    """Yield known messages that stand anywhere: in a logger's line, or said by torch's own code before it aborts."""
    for entry in known_errors().values():
        for words in entry.message_patterns:
            for found in re.finditer(words, text):
                rest = text[found.start() :].partition("\n\n")[0]
                yield ErrorText(type="", message=rest[:MAX_MESSAGE_LENGTH].strip())


def _nearest(messages: Sequence[str]) -> list[str]:
    weighed: Mapping[str, float] = {
        kind: max((_word_overlap(text, message) for text in entry.message_patterns for message in messages), default=0.0)
        for kind, entry in known_errors().items()
    }
    ranked = sorted(weighed, key=lambda kind: -weighed[kind])
    return [kind for kind in ranked if weighed[kind] >= MIN_WORD_OVERLAP][:MAX_NEAREST]


def _word_overlap(pattern: str, message: str) -> float:
    """Return the share of a known text's words that stand in a message; 0 for texts of few words."""
    words = set(re.findall(r"[a-z]{3,}", re.sub(r"\\.|\(\?P?<?\w*>?|\[[^\]]*\]", " ", pattern).lower()))
    return len(words & set(re.findall(r"[a-z]{3,}", message.lower()))) / len(words) if len(words) > 2 else 0.0
