"""What several rules ask of a text: is a loader swept, what grows from turn to turn, where can a statement go."""
