"""Proofs of properties: each module defines one proof as ``PROOF``, which `trueloop.verification.discover` finds."""
