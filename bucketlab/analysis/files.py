"""Paths -> analysis: finds the traces, reads them on all cores, keeps and reads back summaries of ranks.

A summary is an analysis document of one rank. It is a few kilobytes where the trace is many megabytes: made where the
trace lies, it can be merged with other ranks' elsewhere.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from bucketlab import units
from bucketlab.analysis.overlap import analyze_trace
from bucketlab.analysis.ranks import merge
from bucketlab.documents import written_whole
from bucketlab.errors import BadInput, WorkFailed
from bucketlab.schema.analysis import SCHEMA, Analysis, RankAnalysis
from bucketlab.schema.limits import wrong_in
from bucketlab.trace import classify
from bucketlab.trace.intervals import LONGEST_AXIS_NS
from bucketlab.trace.kineto import read_trace

_SUMMARY_HEAD = re.compile(rb'\s*\{\s*"schema"\s*:\s*"(bucketlab\.analysis/\d{1,9})"')
_SUMMARY_HEAD_BYTES = 256


def analyze_paths(
    paths: Iterable[str | Path],
    rules: classify.Rules = classify.BUILT_IN,
    on_file: Callable[[int, int], None] = lambda done, of: None,
) -> Analysis:
    """Reads traces and summaries and merges them.

    Args:
        paths: files, pipes, "-" for the standard input, and folders that are searched for files. Of a folder with
            files named `*.pt.trace.json[.gz]` only those count, else all `*.json[.gz]`.
        rules: which kernels are collectives.
        on_file: called with how many files have been read, and of how many.

    Raises:
        BadInput: there is no such path, or none of the files could be used. A file that cannot be used beside others
            that can is a warning.
        WorkFailed: a process that read a trace was killed.
    """
    files = find_traces(paths)
    ranks: list[RankAnalysis] = []
    refused: list[str] = []
    for done, outcome in enumerate(_read_all(files, rules), start=1):
        if isinstance(outcome, BadInput):
            refused.append(str(outcome))
        else:
            ranks += outcome
        on_file(done, len(files))
    if not ranks:
        others = f" (and {units.counted(len(refused) - 1, 'file')} more)" if len(refused) > 1 else ""
        raise BadInput(refused[0] + others)
    analysis = merge(ranks)
    return msgspec.structs.replace(analysis, warnings=refused + analysis.warnings)


def runs_apart(analysis: Analysis) -> dict[str, Analysis]:
    """Ranks by the folder of their traces, where one rank came from several folders: those are different runs.

    One run under the name "" where no rank comes twice.
    """
    ranks = [one.rank for one in analysis.ranks]
    folders = {str(Path(one.source).parent) for one in analysis.ranks}
    if len(folders) < 2 or len(set(ranks)) == len(ranks):
        return {"": analysis}
    return {
        folder: merge([one for one in analysis.ranks if str(Path(one.source).parent) == folder])
        for folder in sorted(folders)
    }


def find_traces(paths: Iterable[str | Path]) -> list[Path]:
    """The files meant by paths, in order of name within a folder. Raises BadInput where a path leads to none."""
    found: dict[Path, None] = {}
    for path in map(Path, paths):
        if str(path) == "-":
            found[Path("/dev/stdin")] = None
        elif path.is_dir():
            found |= dict.fromkeys(_in_folder(path))
        elif path.exists():
            found[path] = None
        else:
            raise BadInput(f"{path}: no such file or folder")
    return list(found)


def _in_folder(folder: Path) -> list[Path]:
    files = sorted(path for path in folder.rglob("*.json*") if path.suffix in (".json", ".gz") and path.is_file())
    traces = [path for path in files if path.name.endswith((".pt.trace.json", ".pt.trace.json.gz"))]
    if not files:
        raise BadInput(f"{folder}: no traces in this folder (*.pt.trace.json, *.json, either with .gz)")
    return traces or files


def _read_all(files: Sequence[Path], rules: classify.Rules) -> Iterator[list[RankAnalysis] | BadInput]:
    """What `_read` makes of each file, in order. With several cores, each file has a process, or one file several."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    workers = min(len(files), cores)
    if workers < 2:
        yield from (_read(file, rules, cores) for file in files)
        return
    import multiprocessing  # a tenth of the time of a small trace, and not needed for one
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    # a forked process has numpy and msgspec loaded already, and needs no importable __main__
    method = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
    with ProcessPoolExecutor(workers, multiprocessing.get_context(method)) as pool:
        try:
            yield from pool.map(_read, files, [rules] * len(files))
        except BrokenProcessPool:
            raise WorkFailed(
                "a process that read traces was killed, probably for memory: give fewer at a time"
            ) from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _read(file: Path, rules: classify.Rules, processes: int = 1) -> list[RankAnalysis] | BadInput:
    try:
        if file.is_file() and _is_summary(file):  # of a pipe the first bytes can be read only once
            return read_summary(file)
        return [analyze_trace(read_trace(file, processes), rules)]
    except BadInput as refusal:
        return refusal


def _is_summary(file: Path) -> bool:
    try:
        with file.open("rb") as opened:
            return _SUMMARY_HEAD.match(opened.read(_SUMMARY_HEAD_BYTES)) is not None
    except OSError as error:
        raise BadInput(f"{file}: {error.strerror}") from None


def write_summaries(analysis: Analysis, folder: Path) -> list[Path]:
    """One file for each rank's trace; returns them. Files of the same name are replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for number, one in enumerate(analysis.ranks):
        path = folder / f"rank{one.rank if one.rank is not None else 'unknown'}.{number}.summary.json"
        with written_whole(path) as temporary:
            temporary.write_bytes(msgspec.json.encode(merge([one])))
        written.append(path)
    return written


def read_summary(file: Path) -> list[RankAnalysis]:
    """The ranks in an analysis document. Raises BadInput where it is none."""
    try:
        text = file.read_bytes()
        found = _SUMMARY_HEAD.match(text)
        if found is not None and found[1].decode() != SCHEMA:
            raise BadInput(f"{file} is {found[1].decode()!r}; this release reads {SCHEMA}. Analyze the traces again.")
        document = msgspec.json.decode(text, type=Analysis)
    except (OSError, msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BadInput(f"{file}: no summary of ranks: {error}") from None
    wrong = wrong_in(document, LONGEST_AXIS_NS) if document.ranks else "there is none in it"
    if wrong is not None:
        raise BadInput(f"{file}: no summary of ranks: {wrong}")
    return document.ranks
