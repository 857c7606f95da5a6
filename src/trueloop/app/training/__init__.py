"""Trains models with `Trainer`: data, run folder, startup checks, tracking, tuning."""
