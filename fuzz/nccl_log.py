"""NCCL's own log: read, joined over ranks, held against what was wished for."""

from __future__ import annotations

from pathlib import Path

from bucketlab.link.nccl_log import check_link, explain, in_words, joined, read_logs, what_was_used
from fuzz.driver import ROOT


def read(data: bytes, folder: Path) -> None:
    file = folder / "nccl.log"
    file.write_bytes(data)
    logs = read_logs([file])
    if logs:
        used = what_was_used(logs)
        in_words(joined([used, used]))
    for wanted in ("infiniband", "nvlink", "pcie"):
        found = check_link(wanted, logs)
        if found:
            explain(wanted, found)


def seeds() -> list[bytes]:
    return [path.read_bytes() for path in sorted((ROOT / "tests" / "link" / "logs").glob("*.log"))]
