"""An exported model behind HTTP: bounded, batched, measured, and stopped without losing what is in flight."""
