"""Prediction: what a step would take with other buckets, from one profile. Needs no torch."""
