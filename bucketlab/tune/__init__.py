"""Tuning: which buckets are best for a job, from steps measured while it trains. Needs no torch.

Importing this does not import Optuna.
"""

from bucketlab.tune.space import JobFacts
from bucketlab.tune.tuner import Block, Progress, Tuner

__all__ = ["Block", "JobFacts", "Progress", "Tuner"]
