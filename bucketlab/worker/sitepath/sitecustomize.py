"""Found by every Python that a profiled launch starts, because the launch puts this folder first on PYTHONPATH.

It steps aside for a `sitecustomize` of the user's own, then lets bucketlab wait for torch. A process that has nothing
to do with training pays for one small import.
"""

import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent


def _run_the_users_own() -> None:
    sys.path[:] = [entry for entry in sys.path if not entry or Path(entry).resolve() != _HERE]
    del sys.modules["sitecustomize"]
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ModuleNotFoundError as missing:
        if missing.name != "sitecustomize":
            raise


def _wait_for_torch() -> None:
    package_root = str(_HERE.parents[2])
    sys.path.append(package_root)  # for launches from a checkout, or of another interpreter
    try:
        from bucketlab.worker import bootstrap
    except ImportError as error:
        print(
            f"bucketlab: {sys.executable} cannot import it ({error}): this process is not measured",
            file=sys.stderr,
        )
        return
    finally:
        sys.path.remove(package_root)
    bootstrap.install()


_this = sys.modules["sitecustomize"]
try:
    _run_the_users_own()
finally:
    sys.modules.setdefault("sitecustomize", _this)
    _wait_for_torch()
