"""The proofs: every module here with a ``PROOF`` is one; there is no list to edit."""
