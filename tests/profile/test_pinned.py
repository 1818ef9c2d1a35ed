"""A sweep asks for a link, and NCCL's log of the run says what was used. There is no GPU, so the log is put there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commands import ROOT, SCRIPTS, bucketlab, last_line

# Each rank leaves a log where its process's NCCL would write it, and trains on gloo.
WITH_A_LOG = """
import os, runpy, socket, sys
import torch.distributed as dist

init_process_group = dist.init_process_group

def init_and_log(*args, **options):
    init_process_group(*args, **options)
    name = os.environ["NCCL_DEBUG_FILE"].replace("%h", socket.gethostname()).replace("%p", str(os.getpid()))
    open(name, "w").write(open(os.environ["LOG"]).read())

dist.init_process_group = init_and_log
sys.path.insert(0, os.environ["SCRIPTS"])
runpy.run_path(os.path.join(os.environ["SCRIPTS"], "plain.py"), run_name="__main__")
"""


@pytest.mark.parametrize(("log", "used"), [("nvlink-2.17.1", "P2P/IPC/read"), ("shared-memory-2.20.5", "SHM/direct")])
def test_another_link_than_the_sweeps_is_an_error_with_the_line_that_shows_it(
    log: str, used: str, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(WITH_A_LOG)
    environment = {"LOG": str(ROOT / "tests" / "link" / "logs" / f"{log}.log"), "SCRIPTS": str(SCRIPTS)}
    words: list[str | Path] = ["profile", "--sweep", "ethernet", "--steps", "8", "--link-seconds", "0.5", script]
    done = bucketlab(*words, cwd=tmp_path, environment=environment)
    assert done.returncode == 1
    assert "the sweep asks for ethernet, and NCCL used another path" in last_line(done)
    assert f"via {used}" in done.stderr[done.stderr.index("the sweep asks for ethernet") :]
    assert not list((tmp_path / "traces").iterdir())
