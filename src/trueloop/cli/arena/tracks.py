"""`trueloop arena tracks`: the tracks with their targets, and the settings of an entry."""

from trueloop.app.option_types import Flag
from trueloop.cli.arena_entry_text import format_entry_settings
from trueloop.cli.columns import align_columns, print_line, terminal_width
from trueloop.core.formatting import format_percent
from trueloop.core.untrusted_input import describe_fields
from trueloop.lab.arena.entry import Entry
from trueloop.lab.arena.tracks import TRACKS, Track
from trueloop.lab.arena.trial import SEEDS
from trueloop.runs.journal_lines import encode_line


def tracks_command(*, json: Flag = False) -> None:
    """List the tracks, and the settings that the TOML file of an entry may contain.

    Args:
        json: Print one JSON object and nothing else.
    """
    fields = describe_fields(Entry)
    if json:
        print(encode_line({"tracks": [as_record(track) for track in TRACKS.values()], "settings": fields}), end="")
        return
    for track in TRACKS.values():
        print_line(f"{track.name}: {track.title}")
        print_line(f"    {track.description}")
        print_line(f"    baseline: {format_entry_settings(track.baseline)}\n")
    rows = [[field["name"], _default(field), _range(field), field["help"]] for field in fields]
    titles = ["setting", "default", "allowed", "meaning"]
    print_line("\n".join(align_columns(titles, rows, width=terminal_width(), never_cut={0, 1})))
    print_line(f"\nScore: the median over {SEEDS} seeds of the updates until both held-out splits reach the target.")
    print_line("trueloop arena submit config.toml --track digits")


def as_record(track: Track) -> dict[str, object]:
    """Return the `--json` record of a track."""
    return {
        "name": track.name,
        "title": track.title,
        "description": track.description,
        "target": track.target,
        "goal": f"{format_percent(track.target)} on two held-out splits",
        "examples": track.examples,
        "baseline": track.baseline.non_default_settings(),
        "fingerprint": track.fingerprint,
        "model": track.model,
    }


def _default(field: dict[str, object]) -> str:
    default = field["default"]
    return f'"{default}"' if isinstance(default, str) else f"{default:g}"


def _range(field: dict[str, object]) -> str:
    if field["kind"] == "choice":
        choices = field["choices"]
        assert isinstance(choices, list)
        return " ".join(map(str, choices))
    return f"{field['lowest']:g} to {field['highest']:g}"
