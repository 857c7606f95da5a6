"""The arena's referee: every entry is run again from its configuration, watched, before it counts."""
