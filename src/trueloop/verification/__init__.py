"""Proofs on the user's model and loop: one file per proof in `proofs`, each returns evidence."""
