"""The arena: tracks, entries, their scripts, the judge and the leaderboard."""
