"""The production loop: one window, one update, correct by construction."""
