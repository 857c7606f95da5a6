"""The sanitizer: sees what a training script does, and judges it by the catalogue."""
