"""Saved states that are not what they seem."""
