"""What Linux's control groups allow this process of the machine: cores' time and memory. Knows versions 1 and 2."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

# Version 1 writes a number near 2^63 where there is no limit.
_NO_LIMIT_BYTES = 2**60


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Cores' worth of time that control groups allow this process; None without a limit."""
    quotas = []
    for folder in _control_groups(root, "cpu"):
        words = [*_words(folder / "cpu.max")]
        if not words:
            words = [*_words(folder / "cpu.cfs_quota_us"), *_words(folder / "cpu.cfs_period_us")]
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
            quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def memory_limit_bytes(root: Path = Path("/")) -> int | None:
    """Memory that control groups allow this process; None without a limit."""
    limits = [
        int(word)
        for folder in _control_groups(root, "memory")
        for name in ("memory.max", "memory.limit_in_bytes")
        for word in _words(folder / name)
        if word.isdigit() and int(word) < _NO_LIMIT_BYTES
    ]
    return min(limits, default=None)


def _control_groups(root: Path, controller: str) -> Iterator[Path]:
    """Folders of this process's group and of the groups around it, each of which may set a limit."""
    mount = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = mount / controllers if controllers else mount
        if not top.is_dir():
            top = mount / controller
        group = top / path.strip("/")
        while True:
            yield group
            if group == top or top not in group.parents:
                break
            group = group.parent


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []
