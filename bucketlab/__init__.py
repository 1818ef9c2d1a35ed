"""BucketLab: where a DistributedDataParallel step's time goes, and which gradient buckets fit its link.

The command line is the interface to whatever launches a job. What it stores, other programs read with the names here:

    from pathlib import Path

    import bucketlab
    from bucketlab.predict import predict

    analysis = bucketlab.analyze_paths(["job/traces"])  # exact figures of traces, as `bucketlab analyze --json`
    run = bucketlab.find_run(None, Path("traces"))  # folder of the newest run
    profile = bucketlab.load_profile(run)  # all that it measured
    prediction = predict(profile)  # step time of other buckets
    tuning = bucketlab.load_result(Path("sweeps/study"))  # what a study found

Each is imported when it is first used; none imports torch. What a name hands back is a document of `bucketlab.schema`,
plain data whose layout has a version in its `schema` field. Beside these names and those of `bucketlab.predict` and
`bucketlab.schema`, everything may change with any release.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bucketlab.analysis import analyze_paths
    from bucketlab.errors import BucketlabError
    from bucketlab.runs import find_run, load_profile
    from bucketlab.tune.files import load_result

__version__ = "0.1.0"
__all__ = ["BucketlabError", "__version__", "analyze_paths", "find_run", "load_profile", "load_result"]

_WHERE = {
    "BucketlabError": "bucketlab.errors",
    "analyze_paths": "bucketlab.analysis",
    "find_run": "bucketlab.runs",
    "load_profile": "bucketlab.runs",
    "load_result": "bucketlab.tune.files",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_WHERE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
