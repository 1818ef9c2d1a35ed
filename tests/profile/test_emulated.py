"""A job profiled on a link that is not there: slower than the real one, labelled emulated, or not valid."""

from __future__ import annotations

from pathlib import Path

from tests.commands import SCRIPTS, bucketlab, last_line, profiled

SLOW = """
name = "slow"
description = "a link slower than any real one"
[link]
kind = "ethernet"
ranks = 2
latency_us = 100.0
bandwidth_gb_s = {bandwidth}
"""


def _sweep(folder: Path, bandwidth: float) -> str:
    file = folder / "slow.toml"
    file.write_text(SLOW.format(bandwidth=bandwidth))
    return str(file)


def test_steps_last_as_long_as_the_modelled_link_needs_and_all_is_called_emulated(tmp_path: Path) -> None:
    # 2.2 MB of gradients at 10 MB/s take about 0.22 s: the real link is far faster.
    sweep = _sweep(tmp_path, 0.01)
    profile = profiled(SCRIPTS / "plain.py", "--steps", "10", "--emulate", sweep, cwd=tmp_path)
    assert profile.kind == "emulated"
    assert profile.link is not None and profile.link.kind == "emulated"
    gradient_bytes = sum(gradient.bytes for gradient in profile.gradients)
    assert profile.step is not None
    assert profile.step.median_ns > 0.9 * gradient_bytes / 0.01
    assert profile.breakdown is None and any("trace" in line for line in profile.missing)
    (folder,) = (tmp_path / "traces").iterdir()
    assert not list(folder.glob("*.pt.trace.json.gz"))


def test_the_report_says_emulated_where_the_figures_are(tmp_path: Path) -> None:
    done = bucketlab(
        "profile", "--steps", "10", "--emulate", _sweep(tmp_path, 0.01), SCRIPTS / "plain.py", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "on a link that is not there: emulated" in done.stdout
    assert "emulated untraced: median" in done.stdout


def test_a_link_faster_than_the_real_one_gives_no_figures(tmp_path: Path) -> None:
    done = bucketlab(
        "profile", "--emulate", _sweep(tmp_path, 5000.0), SCRIPTS / "embedding_larger_than_cap.py", cwd=tmp_path
    )
    assert done.returncode == 1
    assert "the emulation is not valid" in last_line(done)
    assert not list((tmp_path / "traces").iterdir())
