"""The lab: a local web page that shows a training loop in real PyTorch."""
