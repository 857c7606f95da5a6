"""Which lines of a text are new, against the text that was shown before."""

from __future__ import annotations

from difflib import SequenceMatcher


def new_lines(before: str, now: str) -> list[int]:
    """Return the numbers, from 1, of the lines of ``now`` that ``before`` has not; blank ones are not told."""
    old, new = before.splitlines(), now.splitlines()
    same = SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks()
    kept = {block.b + place for block in same for place in range(block.size)}
    return [place + 1 for place, line in enumerate(new) if place not in kept and line.strip()]


def gone_lines(before: str, now: str) -> list[str]:
    """Return the lines of ``before`` that ``now`` has no more, as they stood; blank ones are not told."""
    old = before.splitlines()
    return [old[number - 1] for number in new_lines(now, before)]
