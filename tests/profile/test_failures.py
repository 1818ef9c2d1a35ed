"""What goes wrong is said in one line, with the right exit code, and leaves no run behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from tests.commands import SCRIPTS, bucketlab, last_line
from tests.faults.injecting import begun, wait_until

ENDLESS = {"STEPS": "1000000"}


def _nothing_left(folder: Path) -> bool:
    return not any(folder.glob("traces/*"))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("crash_rank1", ["rank 1 of", "ValueError", "traceback is above"]),
        ("exits_rank1", ["rank 1 of", "ended with exit code 3"]),
        ("oom", ["rank 1 of", "OutOfMemoryError", "smaller batch"]),
        ("no_ddp", ["never built a DistributedDataParallel", "plain model"]),
        ("data_parallel", ["never built a DistributedDataParallel", "DataParallel"]),
        ("fsdp", ["never built a DistributedDataParallel", "fully_shard"]),
        ("never_steps", ["no optimizer ever stepped"]),
    ],
)
def test_a_script_that_gives_nothing_to_measure_is_named_with_its_reason(
    name: str, words: list[str], tmp_path: Path
) -> None:
    done = bucketlab("profile", SCRIPTS / f"{name}.py", cwd=tmp_path)
    assert done.returncode == 1
    for word in words:
        assert word in last_line(done)
    assert _nothing_left(tmp_path)


@pytest.mark.fault(
    "ranks",
    "an exception, timing",
    command="profile",
    outcome="exit code 1; the script's traceback, and none of ours; the last line names rank, step and exception",
)
def test_the_scripts_own_traceback_is_shown_and_none_of_ours(tmp_path: Path) -> None:
    done = bucketlab("profile", SCRIPTS / "crash_rank1.py", cwd=tmp_path)
    assert "a bad sample, on rank 1 alone" in done.stderr
    assert "bucketlab/commands" not in done.stderr


@pytest.mark.fault(
    "ranks",
    "a collective hangs, timing",
    command="profile",
    outcome="exit code 1 after --timeout, with the stack of each rank; no process and no run is left",
)
def test_a_hang_ends_with_the_stack_of_each_rank(tmp_path: Path) -> None:
    job = begun("profile", "--timeout", "20", SCRIPTS / "hangs.py", cwd=tmp_path)
    job.wait_until_it_trains()
    done = job.ended()
    assert done.returncode == 1
    assert "made no step for 20 s after step 9" in last_line(done)
    assert "--- rank 0 ---" in done.stderr and "--- rank 1 ---" in done.stderr
    assert "hangs.py" in done.stderr.split("--- rank 1 ---")[1]
    assert _nothing_left(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "no script was given"),
        (["absent.py"], "there is no script absent.py"),
        (["--nproc-per-node", "many", "x.py"], "--nproc-per-node many"),
        (["--nproc-per-node", "0", "x.py"], "--nproc-per-node 0"),
        (["--steps", "1", "x.py"], "--steps"),
        (["--no-such-option", "x.py"], "--no-such-option"),
        (["--", "no-such-launcher", "x.py"], "no program 'no-such-launcher'"),
        (["."], "is a folder"),
        (["--sweep", "infinband", "x.py"], "did you mean infiniband"),
        (["--sweep", "absent.toml", "x.py"], "absent.toml"),
    ],
)
def test_bad_usage_is_found_before_anything_starts(arguments: list[str], words: str, tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("raise SystemExit('was started')\n")
    done = bucketlab("profile", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert words in last_line(done)
    assert len(done.stderr.splitlines()) == 1
    assert "was started" not in done.stderr
    assert _nothing_left(tmp_path)


def test_a_folder_that_cannot_be_written_is_said_before_the_launch(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file, not a folder")
    done = bucketlab("profile", "--out", tmp_path / "taken", SCRIPTS / "plain.py", cwd=tmp_path)
    assert done.returncode == 2
    assert "taken" in last_line(done) and "--out" in last_line(done)


@pytest.mark.fault(
    "disk",
    "the disk is full when the run is written",
    command="profile",
    outcome="exit code 1; the message names the file and the cause; no run is left",
)
def test_a_full_disk_is_said_with_the_file_and_leaves_no_run(tmp_path: Path) -> None:
    full = tmp_path / "small"
    full.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(full)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no small file system to be had: {mounted.stderr.decode().strip()}")
    try:
        done = bucketlab("profile", "--out", full / "traces", SCRIPTS / "plain.py", cwd=tmp_path)
        assert done.returncode == 1
        assert "No space left on device" in last_line(done)
        assert not any((full / "traces").iterdir())
    finally:
        subprocess.run(["umount", str(full)], check=True)


@pytest.mark.fault(
    "hosts",
    "the port of the meeting point is in use",
    command="profile",
    outcome="exit code 1; the last line names it and --master-port",
)
def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET6) as taken:
        taken.bind(("::", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        options = ["--nnodes", "1", "--master-addr", "127.0.0.1", "--master-port", port]
        done = bucketlab("profile", *options, SCRIPTS / "plain.py", cwd=tmp_path)
    assert done.returncode == 1
    assert "in use" in last_line(done) and "--master-port" in last_line(done)


@pytest.mark.fault(
    "ranks",
    "Ctrl-C, or SIGTERM to the command",
    command="profile",
    outcome="exit code 1; the job is stopped; no process and no run is left",
)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_profile_stops_the_job_and_keeps_nothing(number: signal.Signals, tmp_path: Path) -> None:
    job = begun("profile", "--steps", "100000", SCRIPTS / "slow_input.py", cwd=tmp_path, environment=ENDLESS)
    job.wait_until_it_trains()
    job.process.send_signal(number)
    done = job.ended()
    assert done.returncode == 1
    assert "interrupted" in done.stderr.splitlines()[-1]
    assert _nothing_left(tmp_path)


@pytest.mark.fault(
    "ranks",
    "kill -9 of the command",
    command="profile",
    outcome="the ranks end with it",
)
def test_ranks_do_not_outlive_a_killed_profile(tmp_path: Path) -> None:
    job = begun("profile", "--steps", "100000", SCRIPTS / "slow_input.py", cwd=tmp_path, environment=ENDLESS)
    job.wait_until_it_trains()
    job.process.kill()
    job.process.wait()
    wait_until(lambda: not job.processes())


def _with(folder: Path) -> str:
    return os.pathsep.join([str(folder), str(Path(__file__).parents[2])])


@pytest.mark.skipif(Path("/sys/class/infiniband").exists(), reason="this host has InfiniBand")
def test_a_link_that_this_host_lacks_is_said_before_anything_starts(tmp_path: Path) -> None:
    done = bucketlab("profile", "--sweep", "infiniband", SCRIPTS / "plain.py", cwd=tmp_path)
    assert done.returncode == 2
    assert "no active adapter" in last_line(done)
    assert _nothing_left(tmp_path)


@pytest.mark.fault(
    "ranks",
    "an exception after the measurement",
    command="profile --keep-running",
    outcome="exit code 1; the last line names the exception and where the whole profile is",
)
def test_a_script_that_fails_after_the_measurement_loses_none_of_it(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    source = (SCRIPTS / "crash_rank1.py").read_text()
    assert "step == 10" in source
    script.write_text(source.replace("step == 10", "step == 100"))
    options = ["--steps", "20", "--keep-running"]
    done = bucketlab("profile", *options, script, cwd=tmp_path, environment={"PYTHONPATH": _with(SCRIPTS)})
    assert done.returncode == 1
    assert "ValueError" in last_line(done) and "What was measured before that is in" in last_line(done)
    assert len(list(tmp_path.glob("traces/*/profile.json"))) == 1
