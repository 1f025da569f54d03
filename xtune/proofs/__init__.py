"""Proofs that need training: what gradient compression does to a model that learns."""
