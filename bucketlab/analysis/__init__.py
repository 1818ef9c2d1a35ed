"""Traces -> figures: `analyze_paths` for files, `analyze_trace` for one rank, `merge` for what several tell."""

from bucketlab.analysis.files import analyze_paths
from bucketlab.analysis.overlap import analyze_trace
from bucketlab.analysis.ranks import merge

__all__ = ["analyze_paths", "analyze_trace", "merge"]
