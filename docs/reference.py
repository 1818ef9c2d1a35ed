"""Builds the API reference, HTML, from the docstrings.

    python docs/reference.py [FOLDER]        (default build/reference; needs the extra `dev`)

Every module is in it but the command line's and the example's: `--help` and reading them tell more.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from pkgutil import walk_packages

import bucketlab

_LEFT_OUT = ("bucketlab.cli", "bucketlab.commands", "bucketlab.examples", "bucketlab.__main__")


def modules() -> list[str]:
    """Names of the modules that the reference has."""
    found = [one.name for one in walk_packages(bucketlab.__path__, "bucketlab.")]
    return ["bucketlab", *sorted(name for name in found if not name.startswith(_LEFT_OUT))]


def build(folder: Path) -> None:
    import pdoc

    for name in bucketlab.__all__:  # pdoc looks for them where they are once they have been used
        getattr(bucketlab, name)
    pdoc.render.configure(docformat="google", show_source=False)
    with warnings.catch_warnings():  # it finds some twice, through their package, and types that only checkers import
        warnings.simplefilter("ignore", UserWarning)
        pdoc.pdoc(*modules(), output_directory=folder)


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "build/reference")
    build(target)
    print(target / "index.html")
