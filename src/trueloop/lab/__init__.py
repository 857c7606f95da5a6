"""The lab: a page on this machine that shows a training loop on real PyTorch."""
