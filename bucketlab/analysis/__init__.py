"""Traces -> figures. `analyze_trace` for one rank, `merge` for what only several ranks together can tell."""

from bucketlab.analysis.overlap import analyze_trace
from bucketlab.analysis.ranks import merge

__all__ = ["analyze_trace", "merge"]
