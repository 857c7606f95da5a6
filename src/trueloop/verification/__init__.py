"""Prove properties of the user's model and training loop; each file in `proofs` defines one proof."""
