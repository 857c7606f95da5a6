"""Explain printed errors with the catalogue, without running the program that raised them."""

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
"""Order of errors by role: the error that ended the program is first, an error that was being handled is last."""
MIN_WORD_OVERLAP: Final = 0.5  # share of a known message's words that a similar message contains
MAX_NEAREST: Final = 3  # number of similar errors to list
MAX_LINES_WITHOUT_ERROR: Final = 100  # number of last lines to compare with known messages if no error is found
MAX_MESSAGE_LENGTH: Final = 2000  # characters of a message
_CODE: Final = re.compile(r"\b[A-Z]{3}\d{3}\b")
_RERAISED: Final = re.compile(r"Caught \w+ in ")  # by PyTorch, from a worker or a replica
_TRUELOOP_ERRORS: Final = "trueloop.core.errors"
_TORCH_PATH: Final = re.compile(r"(?:^|/)torch/(.+\.py)$")
_LIBRARY_PATH: Final = re.compile(r"/(?:site|dist)-packages/|/lib/python\d|/src/trueloop/|^<")
_NO_EVENTS: Final = RecentEvents(update=-1)  # a traceback does not contain the number of updates


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedError:
    """A printed PyTorch error that the catalogue explains."""

    kind: str
    entry: KnownError
    error: ErrorText
    location: SourceLocation | None
    """Innermost line of the user's code; None = unknown."""
    meaning: str
    """Meaning of the error; "" = the traceback is not enough to decide; the error's page lists the possibilities."""
    fix: str

    def to_json(self) -> dict[str, Any]:
        """Return the error as a JSON-ready dictionary."""
        return {
            "kind": self.kind,
            "title": self.entry.title,
            "type": self.error.type,
            "message": self.error.message,
            "role": self.error.role,
            "ranks": list(self.error.ranks),
            "location": self.location and self.location._asdict(),
            "meaning": self.meaning,
            "fix": self.fix,
            "page": error_page(self.kind),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The errors and failures that a text mentions."""

    errors: Sequence[MatchedError]
    failures: Sequence[Entry]
    """Silent failures that the text names by code, or that a PyTorch warning in the text indicates."""
    trueloop_errors: Sequence[ErrorText]
    """Errors that trueloop raised; their own messages explain what to do."""
    unknown: Sequence[ErrorText]
    """Errors that the catalogue does not explain."""
    nearest: Sequence[str]
    """Kinds of known errors whose messages resemble the unknown errors."""

    @property
    def has_known_errors(self) -> bool:
        """True if the text contains a known error or failure."""
        return bool(self.errors or self.failures or self.trueloop_errors)

    def to_json(self) -> dict[str, Any]:
        """Return the explanation as a JSON-ready dictionary, without unknown lines that have no error type."""
        return {
            "errors": [matched.to_json() for matched in self.errors],
            "failures": [{"code": each.code, "slug": each.slug, "fix": each.failure.fix} for each in self.failures],
            "trueloop_errors": [{"type": each.type, "message": each.message} for each in self.trueloop_errors],
            "unknown": [{"type": each.type, "message": each.message} for each in self.unknown if each.type],
            "nearest": list(self.nearest),
        }


def explain_text(text: str) -> Explanation:
    """Explain the errors and failures that a text mentions.

    Args:
        text: a traceback, a log that contains one, or only the message of an error.
    """
    plain_text = strip_terminal_codes(text)
    printed_errors = parse_errors(text)
    errors = list(_match_errors(printed_errors, printed_errors))
    errors = errors or list(_match_errors(_find_known_messages(plain_text), printed_errors))
    explained = [matched.error for matched in errors]
    trueloop_errors = [error for error in printed_errors if error.module == _TRUELOOP_ERRORS]
    others = [error for error in printed_errors if error not in explained and error not in trueloop_errors]
    messages = [error.message for error in others] or plain_text.splitlines()[-MAX_LINES_WITHOUT_ERROR:]
    failures = {
        entry.code: entry
        for entry in (*map(find_failure, _CODE.findall(plain_text)), *find_failures_in_warnings(plain_text))
        if entry
    }
    return Explanation(
        errors=errors,
        failures=list(failures.values()),
        trueloop_errors=trueloop_errors,
        unknown=[each for each in others if each.role in ("raised", "worker") and not _RERAISED.match(each.message)],
        nearest=[] if errors or failures or trueloop_errors else _similar_kinds(messages),
    )


def _match_errors(errors: Iterable[ErrorText], chain: Sequence[ErrorText]) -> Iterator[MatchedError]:
    """Yield the explained errors, each kind and message once; ``chain`` are all printed errors, with their causes."""
    yielded: set[tuple[str, str]] = set()
    for error in sorted(errors, key=lambda each: ROLE_ORDER.index(each.role)):
        matched = _match_error(error, chain)
        if matched is None:
            continue
        key = (matched.kind, error.message if error.type else "")
        if key not in yielded:
            yielded.add(key)
            yield matched


def _match_error(error: ErrorText, chain: Sequence[ErrorText]) -> MatchedError | None:
    location = _user_location(error) or next(
        (location for each in chain if each.role == "raised" and (location := _user_location(each))), None
    )
    raised = RaisedError(
        type=error.type,
        message=error.message,
        location=location,
        causes=(*(each.message for each in chain if each.role == "cause"), error.message),
        pytorch_files=tuple(match[1] for each in error.frames if (match := _TORCH_PATH.search(each.path))),
        recent=_NO_EVENTS,
    )
    for kind, entry in known_errors().items():
        match = entry.match(error.message) if not error.type or error.type in entry.exception_types else None
        if match is None:
            continue
        explanation = entry.explain(raised, match)
        if explanation is not None:
            return MatchedError(
                kind=kind, entry=entry, error=error, location=location, meaning=explanation.meaning, fix=explanation.fix
            )
        if not error.frames:  # the missing traceback may contain what the explanation needs
            return MatchedError(kind=kind, entry=entry, error=error, location=location, meaning="", fix="")
    return None


def _user_location(error: ErrorText) -> SourceLocation | None:
    """Return the innermost line of the user's code; None if the traceback has none, as in a worker or thread."""
    return next((location for location in reversed(error.frames) if not _LIBRARY_PATH.search(location.path)), None)


def _find_known_messages(text: str) -> Iterator[ErrorText]:
    """Yield known messages from anywhere in the text, such as a log line or PyTorch's output before it aborts."""
    for entry in known_errors().values():
        for pattern in entry.message_patterns:
            for match in re.finditer(pattern, text):
                message = text[match.start() :].partition("\n\n")[0]
                yield ErrorText(type="", message=message[:MAX_MESSAGE_LENGTH].strip())


def _similar_kinds(messages: Sequence[str]) -> list[str]:
    """Return the kinds of the known errors whose messages are most similar to these, most similar first."""
    overlaps: Mapping[str, float] = {
        kind: max(
            (_word_overlap(text, message) for text in entry.message_patterns for message in messages), default=0.0
        )
        for kind, entry in known_errors().items()
    }
    ranked = sorted(overlaps, key=lambda kind: -overlaps[kind])
    return [kind for kind in ranked if overlaps[kind] >= MIN_WORD_OVERLAP][:MAX_NEAREST]


def _word_overlap(pattern: str, message: str) -> float:
    """Return the share of the words of a pattern that a message contains; 0 for patterns of few words."""
    words = set(re.findall(r"[a-z]{3,}", re.sub(r"\\.|\(\?P?<?\w*>?|\[[^\]]*\]", " ", pattern).lower()))
    return len(words & set(re.findall(r"[a-z]{3,}", message.lower()))) / len(words) if len(words) > 2 else 0.0
