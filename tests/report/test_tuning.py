from __future__ import annotations

import io

import msgspec
import pytest
from rich.console import Console

from bucketlab.link.sweep import Search
from bucketlab.report.tuning import print_tuning
from bucketlab.schema.tuning import (
    Candidate,
    Capacities,
    JobIdentity,
    Launched,
    TunedEnvironment,
    TunedSetting,
    TunedTrial,
    Tuning,
)
from bucketlab.tune import Progress, Tuner
from bucketlab.tune.space import JobFacts
from bucketlab.tune.words import progress_line
from tests.report import profiles

MIB = 2**20
MS = 1_000_000


def result(**changes: object) -> Tuning:
    trials = [
        TunedTrial(
            number=0,
            params={"bucket_cap_mb": 25.0, "first_bucket_mb": 1.0},
            state="complete",
            bucket_bytes=[2 * MIB, 30 * MIB],
            step_ns=[214 * MS] * 4,
            speedup=0.0,
            pairs=1,
            is_current=True,
        ),
        TunedTrial(
            number=1,
            params={"bucket_cap_mb": 48.0},
            state="complete",
            bucket_bytes=[32 * MIB],
            step_ns=[190 * MS] * 24,
            speedup=0.12,
            pairs=6,
            finalist=True,
        ),
        TunedTrial(
            number=2,
            params={"bucket_cap_mb": 0.5},
            state="failed",
            bucket_bytes=[MIB] * 32,
            step_ns=[],
            failure="out of memory\x1b[2J",
        ),
    ]
    made = Tuning(
        kind="measured",
        study="mine",
        job=JobIdentity(gradients="00", gradient_bytes=32 * MIB, world_size=2),
        interconnect="gloo over loopback",
        best=TunedSetting(bucket_cap_mb=48.0, bucket_bytes=[32 * MIB], step_ns=191 * MS),
        baseline=TunedSetting(bucket_cap_mb=25.0, first_bucket_mb=1.0, step_ns=214 * MS),
        current_is_default=True,
        speedup=0.12,
        ci95=(0.093, 0.14),
        significant=True,
        rounds=14,
        finished=True,
        reason="the final race is run",
        how_to_apply="DistributedDataParallel(..., bucket_cap_mb=48)",
        trials=trials,
        steps=700,
    )
    return msgspec.structs.replace(made, **changes)


def printed(tuning: Tuning, encoding: str = "utf-8", width: int = 100) -> str:
    raw = io.BytesIO()
    console = Console(file=io.TextIOWrapper(raw, encoding=encoding, write_through=True), width=width)
    print_tuning(tuning, console)
    return raw.getvalue().decode(encoding)


def test_the_first_line_is_the_setting_its_gain_and_how_sure_that_is() -> None:
    first = " ".join(printed(result()).split("measured against")[0].split())
    assert first == (
        "bucket_cap_mb=48: +12.0 % steps per second (95 % interval +9.3 % to +14.0 %), 191 ms a step instead of 214 ms."
    )


def test_the_line_to_write_is_printed_whole_on_any_width() -> None:
    line = "DistributedDataParallel(..., " + "bucket_cap_mb_list=[" + ", ".join(["1.25"] * 40) + "])"
    assert line in printed(result(how_to_apply=line), width=80)


def test_an_interval_with_zero_in_it_means_keep_and_nothing_to_apply() -> None:
    text = printed(result(significant=False, speedup=0.004, ci95=(-0.008, 0.013), how_to_apply="keep your setting"))
    assert text.startswith("Keep your setting: nothing else is surely faster.")
    assert "-0.8 % to +1.3 %" in " ".join(text.split())
    assert "To apply it" not in text


def test_where_all_others_are_slower_that_is_said() -> None:
    text = printed(result(significant=False, speedup=-0.03, ci95=(-0.05, -0.01)))
    assert text.startswith("Keep your setting: the best other, bucket_cap_mb=48, is slower by 3.0 %.")


def test_an_unfinished_study_promises_nothing() -> None:
    text = printed(result(significant=False, ci95=None, finished=False))
    assert text.startswith("Keep your setting for now")


def test_a_failed_trial_is_listed_with_its_reason_and_obeys_nothing() -> None:
    text = printed(result())
    assert "trial 2 (0.5) failed: out of memory\\x1b[2J" in text
    assert "\x1b" not in text


@pytest.mark.parametrize("width", [40, 80, 100, 200])
def test_a_console_without_utf_8_gets_ascii(width: int) -> None:
    assert printed(result(), "ascii", width).isascii()


def test_no_line_ends_in_blanks() -> None:
    assert not [line for line in printed(result()).splitlines() if line.endswith(" ")]


def test_emulated_figures_say_so() -> None:
    text = printed(result(kind="emulated"))
    assert "emulated against" in text
    assert "measured" not in text


def test_a_result_survives_its_file() -> None:
    assert msgspec.json.decode(msgspec.json.encode(result()), type=Tuning) == result()


def progress(**changes: object) -> Progress:
    values: dict[str, object] = {
        "phase": "search",
        "trials": 11,
        "most_trials": 40,
        "steps": 130,
        "rounds": 0,
        "best": Candidate(capacities=Capacities(bucket_cap_mb=6.4)),
        "best_speedup": 0.12,
        "seconds_left": 65.0,
        "steps_left": 700,
        "points": [],
    }
    return Progress(**(values | changes))  # type: ignore[arg-type]


def test_progress_is_one_line_with_trials_best_and_time_left() -> None:
    assert progress_line(progress()) == "trial 12 of 40, best so far bucket_cap_mb=6.4: +12.0 %, about 65.0 s left"
    assert progress_line(progress(phase="final race", rounds=3)).startswith("final race, round 4, best so far")
    assert "nothing faster" in progress_line(progress(best_speedup=-0.01))
    assert progress_line(progress(trials=0, best=None, best_speedup=None, seconds_left=None)) == "trial 1 of 40"


def environment(**changes: object) -> TunedEnvironment:
    plain = TunedSetting(bucket_cap_mb=25.0, step_ns=200 * MS)
    tree, large = {"NCCL_ALGO": "Tree"}, {"NCCL_BUFFSIZE": "[red]16777216"}
    launches = [
        Launched(stage="search", variables={}, setting=plain, own_step_ns=200 * MS),
        Launched(stage="search", variables=tree, setting=msgspec.structs.replace(plain, step_ns=180 * MS)),
        Launched(stage="search", variables=large, failure="rank 0 failed\x1b[2J"),
        Launched(stage="search", variables={}, setting=plain, own_step_ns=200 * MS),
    ]
    made = TunedEnvironment(
        variables=tree,
        speedup=0.11,
        ci95=(0.1, 0.12),
        significant=True,
        rounds=6,
        finished=True,
        reason="the race of launches is run",
        searched={"NCCL_ALGO": ["Tree"]},
        launches=launches,
    )
    return msgspec.structs.replace(made, **changes)


def test_variables_that_win_stand_in_the_first_line_and_in_what_to_apply() -> None:
    lines = "export NCCL_ALGO=Tree\nDistributedDataParallel(..., bucket_cap_mb=48)"
    text = " ".join(printed(result(environment=environment(), how_to_apply=lines, rounds=6)).split())
    assert text.startswith("NCCL_ALGO=Tree with bucket_cap_mb=48: +12.0 % steps per second")
    assert "final race of 6 pairs of launches" in text
    assert "To apply it in the script, or with no change: bucketlab run export NCCL_ALGO=Tree" in text
    assert "NCCL_ALGO=Tree: +11.0 % (95 % interval +10.0 % to +12.0 %, 6 pairs of launches)" in text


def test_each_group_of_variables_has_a_line_and_a_failed_one_its_reason() -> None:
    text = " ".join(printed(result(environment=environment())).split())
    assert "as it is 2 200.0 - " in text
    assert "NCCL_ALGO=Tree 1 180.0 +11.1 %" in text
    assert "NCCL_BUFFSIZE=[red]16777216 failed: rank 0 failed\\x1b[2J" in text


def test_variables_that_gain_nothing_sure_are_not_recommended() -> None:
    none = environment(significant=False, speedup=0.004, ci95=(-0.01, 0.02))
    text = " ".join(printed(result(environment=none)).split())
    assert text.startswith("bucket_cap_mb=48: +12.0 %")
    assert "Keep the environment as it is: NCCL_ALGO=Tree, the best, makes +0.4 %" in text


def test_a_script_whose_modules_have_different_capacities_has_all_of_them_named() -> None:
    job = JobFacts.of(profiles.two_modules(second_cap_mb=4), lists=True)
    assert job.current_by_module == "25 MiB, DDP's default (0 GPT); 4 MiB (1 Head)"
    tuner = Tuner(job, Search(), None, "two")
    text = " ".join(printed(tuner.result(), width=200).split())
    tuner.close()
    assert f"measured against {job.current_by_module}, 2 ranks" in text
    alike = JobFacts.of(profiles.exposed(), lists=True)
    assert alike.current_by_module == ""
