"""Prediction: what a step would take with other buckets, from one profile. Needs no torch, measures nothing."""

from bucketlab.predict.forecast import predict, unsayable

__all__ = ["predict", "unsayable"]
