"""The Trainer and what surrounds a training run: data, folder, startup checks, tracking."""
