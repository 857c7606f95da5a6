"""The teaching loop on real PyTorch: its script from a simulation, run under control."""
