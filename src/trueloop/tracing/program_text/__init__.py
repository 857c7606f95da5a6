"""What the source files of a running program say; read when events alone cannot decide."""
