"""Proofs on somebody's own model and loop: one file per proof in `proofs`, each returns evidence."""
