"""`bucketlab doctor`: what it looks at, what it makes of it, and how it is shown."""

import io
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from rich.console import Console

from bucketlab import doctor
from bucketlab.cgroups import cpu_quota, memory_limit_bytes
from bucketlab.doctor import Check, examine
from bucketlab.report.doctor import print_checks

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def checks():
    return examine(environment={})


def _shown(checks, encoding="utf-8", width=80):
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    print_checks(checks, Console(file=file, width=width))
    file.flush()
    return raw.getvalue().decode(encoding)


def _variables(**environment):
    return {check.what: check for check in doctor._variables(environment)}


def test_every_topic_is_looked_at(checks):
    topics = {"versions", "devices", "backends", "launching", "limits", "links", "variables"}
    assert {check.topic for check in checks} == topics


def test_what_is_not_well_says_why(checks):
    assert all(check.why for check in checks if check.status != "ok")


def test_the_checks_survive_json(checks):
    assert msgspec.json.decode(msgspec.json.encode(checks), type=list[Check]) == checks


def test_this_machine_can_run_jobs_on_cpu(checks):
    found = {check.what: check for check in checks}
    assert found["gloo"].found == "available"
    assert found["torch"].status == "ok"
    assert found["torchrun"].status == "ok"
    assert found["private names of DDP"].status == "ok"


def test_the_needed_versions_are_those_of_the_package():
    text = (ROOT / "pyproject.toml").read_text()
    listed = text[text.index("\ndependencies = [") : text.index("\n[project.optional-dependencies]")]
    assert dict(re.findall(r'"([\w-]+)>=([\d.]+)"', listed)) == doctor.NEEDED


def test_a_package_that_is_missing_or_too_old_fails_with_the_command_that_helps():
    missing = doctor._package("bucketlab-no-such-package", "1")
    assert (missing.status, missing.why) == ("fail", 'pip install "bucketlab-no-such-package>=1"')
    old = doctor._package("rich", "999")
    assert old.status == "fail"
    assert 'pip install "rich>=999"' in old.why


@pytest.mark.parametrize(
    ("found", "least", "old"),
    [("2.13.0+cpu", "2.9", False), ("2.8.1", "2.9", True), ("2.9.0a0", "2.9", False), ("4.10", "4.9", False)],
)
def test_versions_are_compared_as_numbers(found, least, old):
    assert (doctor._numbers(found) < doctor._numbers(least)) == old


def test_a_torch_that_does_not_load_is_reported_and_the_rest_is_still_looked_at(tmp_path):
    broken = tmp_path / "torch"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise OSError('libcudart.so.12: cannot open shared object file')")
    told = subprocess.run(
        [sys.executable, "-m", "bucketlab", "doctor", "--json"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        check=True,
    )
    checks = {check.what: check for check in msgspec.json.decode(told.stdout, type=list[Check])}
    assert checks["import torch"].status == "fail"
    assert "libcudart.so.12" in checks["import torch"].why
    assert checks["torchrun"].status == "fail"
    assert "/dev/shm" in checks
    assert "gloo" not in checks


@pytest.mark.parametrize(
    "name", ["NCCL_ALGO", "NCCL_P2P_DISABLE", "GLOO_SOCKET_IFNAME", "KINETO_CONFIG", "TORCH_NCCL_BLOCKING_WAIT"]
)
def test_a_variable_that_changes_figures_is_warned_of(name):
    assert _variables(**{name: "1"})[name].status == "warn"


@pytest.mark.parametrize(
    ("name", "value"),
    [("TORCH_DISTRIBUTED_DEBUG", "OFF"), ("NCCL_DEBUG", "info"), ("CUDA_LAUNCH_BLOCKING", "0"), ("PATH", "/bin")],
)
def test_a_variable_that_changes_nothing_is_not(name, value):
    assert [check.status for check in _variables(**{name: value}).values()] == ["ok"]


def test_detailed_debugging_is_warned_of():
    assert _variables(TORCH_DISTRIBUTED_DEBUG="DETAIL")["TORCH_DISTRIBUTED_DEBUG"].status == "warn"


def test_a_python_path_of_the_users_is_said_to_be_kept():
    found = {check.what: check for check in doctor._launching(None, {"PYTHONPATH": "/own"})}
    assert found["PYTHONPATH"].found == "/own"
    assert "kept" in found["PYTHONPATH"].why


def test_a_sitecustomize_of_the_users_is_found(tmp_path, monkeypatch):
    own = tmp_path / "sitecustomize.py"
    own.write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "sitecustomize", raising=False)
    found = {check.what: check for check in doctor._launching(None, {})}
    assert found["sitecustomize"].found == str(own)


def test_a_folder_that_need_not_exist_yet_is_judged_by_the_one_it_would_be_made_in(tmp_path):
    assert doctor._disk(tmp_path / "not" / "yet").found.startswith("writable")


def test_a_file_in_the_place_of_the_folder_fails(tmp_path):
    (tmp_path / "traces").write_text("")
    check = doctor._disk(tmp_path / "traces")
    assert check.status == "fail"
    assert "--out" in check.why


def test_a_nearly_full_disk_is_warned_of(tmp_path, monkeypatch):
    usage = SimpleNamespace(total=2**40, used=2**40, free=doctor.LITTLE_DISK_BYTES - 1)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    assert doctor._disk(tmp_path).status == "warn"
    usage.free = doctor.NO_DISK_BYTES - 1
    assert doctor._disk(tmp_path).status == "fail"


def test_shared_memory_of_dockers_default_size_is_warned_of(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(total=64 * 2**20, used=0, free=64 * 2**20))
    check = doctor._shared_memory(tmp_path)
    assert check.status == "warn"
    assert "--shm-size" in check.why


def _group(root, files):
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def test_the_tightest_control_group_around_the_process_counts(tmp_path):
    root = _group(
        tmp_path,
        {
            "proc/self/cgroup": "0::/jobs/one\n",
            "sys/fs/cgroup/jobs/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/jobs/one/cpu.max": "max 100000\n",
            "sys/fs/cgroup/jobs/memory.max": "max\n",
            "sys/fs/cgroup/jobs/one/memory.max": f"{4 * 2**30}\n",
        },
    )
    assert cpu_quota(root) == 1.5
    assert memory_limit_bytes(root) == 4 * 2**30


def test_version_1_of_control_groups_is_read_too(tmp_path):
    root = _group(
        tmp_path,
        {
            "proc/self/cgroup": "5:cpu,cpuacct:/docker/ab\n3:memory:/docker/ab\n",
            "sys/fs/cgroup/cpu,cpuacct/docker/ab/cpu.cfs_quota_us": "400000\n",
            "sys/fs/cgroup/cpu,cpuacct/docker/ab/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )
    assert cpu_quota(root) == 4
    assert memory_limit_bytes(root) is None


def test_without_control_groups_there_is_no_limit(tmp_path):
    assert cpu_quota(tmp_path) is None
    assert memory_limit_bytes(tmp_path) is None


def test_a_machine_that_allows_no_namespaces_says_what_is_lost(monkeypatch):
    monkeypatch.setattr(doctor, "_TRY_A_LINK", "echo 'RTNETLINK answers: Operation not permitted' >&2; exit 2")
    (check,) = doctor._two_hosts()
    assert check.status == "warn"
    assert "skipped" in check.why


def test_every_check_is_shown_with_its_status_and_its_why(checks):
    shown = _shown(checks, width=250)
    for check in checks:
        assert re.search(rf"^ +{check.status} +{re.escape(check.what)} ", shown, re.MULTILINE)
        assert check.why in shown


def test_names_are_text_and_ascii_where_the_terminal_has_nothing_else():
    check = Check(topic="limits", what="[bold]dir", found="é\x1b[2J", status="warn", why="<b>")
    shown = _shown([check], encoding="ascii")
    assert shown.isascii()
    assert "[bold]dir" in shown
    assert "\x1b" not in shown


def test_the_last_line_counts_what_is_wrong():
    checks = [Check(topic="t", what=status, found="x", status=status, why="y") for status in ("ok", "warn", "fail")]
    assert "1 fail, 1 warning, 1 ok" in _shown(checks)
    assert _shown(checks[:1]).strip().endswith("All well.")
