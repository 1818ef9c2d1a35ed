"""Prediction: what a step would take with other buckets, from one profile, and what to do next. Needs no torch."""

from bucketlab.predict.forecast import predict, unsayable

__all__ = ["predict", "unsayable"]
