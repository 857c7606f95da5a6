"""Optimizers, parameter groups, schedules and weight averages."""
