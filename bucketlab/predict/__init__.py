"""What a step would take with other buckets, from one profile, and what to do about it. Needs no torch, measures nothing."""

from bucketlab.predict.forecast import predict, unsayable

__all__ = ["predict", "unsayable"]
