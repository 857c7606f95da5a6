"""Trackers derive facts from events that several failures need; one of each is created in a run that needs it."""
