"""The arena: tracks, what may be configured, the script that an entry stands for, and the board of those judged."""
