"""One file for each thing that is looked at, each with a ``CHECK``; nothing to register."""
