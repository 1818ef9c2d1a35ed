"""A study's result as one screen of text: the answer first, what to write where, the curve, the trials.

Also the curve that a live display shows while it runs. Says of every figure whether it is measured or emulated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from bucketlab import units
from bucketlab.report.screen import data, width_of, without_trailing_blanks
from bucketlab.schema.tuning import (
    Launched,
    TunedEnvironment,
    TunedSetting,
    TunedTrial,
    Tuning,
)
from bucketlab.tune import words
from bucketlab.tune.groups import gains_of
from bucketlab.tune.tuner import Progress

MOST_TRIAL_ROWS = 12
MOST_FAILED_ROWS = 4
_CURVE_ROWS, _CURVE_COLUMNS = 9, 64
_INDENT = "  "


def print_tuning(result: Tuning, console: Console) -> None:
    """Print the report of one study; without UTF-8 on the console everything is ASCII.

    Args:
        result: of a finished study or of one that was interrupted; the report says which.
        console: its width and colours are respected.
    """
    _put(console, answer(result), "bold")
    _put(console, data(basis(result), console, "dim"))
    if result.significant:
        _heading(console, "To apply it", "in the script, or with no change: bucketlab run")
        _put_whole(console, result.how_to_apply.splitlines())
    if result.environment is not None:
        _print_environment(result.environment, result.kind, console)
    curve = _curve(result, console.options.ascii_only)
    if curve:
        _heading(console, "Step time", f"{result.kind}, part of the current setting's, against bucket_cap_mb")
        _put_whole(console, curve)
    if result.trials:
        what = "speed-up over blocks of the current setting nearby, ms at the current setting's pace in the race"
        _heading(console, "Trials", f"{result.kind}, fastest first; {what}")
        _put(console, _trials(result))
        for line in _failed(result.trials):
            _put(console, data(_INDENT + line, console, "red"))
    if result.notes:
        _heading(console, "Notes", "")
        for note in result.notes:
            _put(console, Padding(data(note, console), (0, 0, 0, len(_INDENT))))


def _put(console: Console, what: RenderableType, style: str = "") -> None:
    for line in console.render_lines(what, console.options.update(width=width_of(console)), pad=False):
        console.print(without_trailing_blanks(line, style), soft_wrap=True)


def _put_whole(console: Console, lines: Sequence[str]) -> None:
    """Indented, and cut nowhere: code, and pictures whose cells stand one below the other."""
    for line in lines:
        console.print(Text((_INDENT + line).rstrip()), soft_wrap=True)


def progress_curve(progress: Progress, ascii_only: bool) -> list[str]:
    """The curve as it forms; no lines until there are two different capacities."""
    best = progress.best.capacities.bucket_cap_mb if progress.best else None
    return _scatter(progress.points, best, ascii_only)


# ---- the answer -----------------------------------------------------------------------------------------------


def answer(result: Tuning) -> Text:
    """The sentence that a study ends in, with what to take in green."""
    text = Text(words.answer(result))
    if result.significant:
        text.stylize("green", 0, len(words.best(result)))
    return text


def basis(result: Tuning) -> str:
    """What the answer rests on."""
    parts = [
        f"{result.kind} against {_current(result)}",
        units.counted(result.job.world_size, "rank"),
        result.interconnect,
        units.counted(sum(not trial.is_current for trial in result.trials), "trial"),
        _race(result),
        f"{units.counted(result.steps, 'step')} {_where_spent(result)}",
    ]
    return "; ".join([", ".join(part for part in parts if part), result.reason])


def _current(result: Tuning) -> str:
    """The script's own setting, of every module where they differ."""
    if result.current_is_default:
        return "DDP's default"
    return result.current_by_module or words.named(result.baseline.candidate())


def _race(result: Tuning) -> str:
    if result.environment and result.environment.significant:
        return f"final race of {_pairs_of_launches(result.rounds)}"
    return f"final race of {units.counted(result.rounds, 'round')}"


def _pairs_of_launches(count: int) -> str:
    return f"{units.counted(count, 'pair')} of launches"


def _where_spent(result: Tuning) -> str:
    measured = sum(len(trial.step_ns) for trial in result.trials)
    return "in all" if measured <= result.steps else "in the last launch"


# ---- variables of the environment ------------------------------------------------------------------------------


def _print_environment(environment: TunedEnvironment, kind: str, console: Console) -> None:
    remark = f"{kind}, a launch for each line; speed-up over launches of the environment as it is nearby"
    _heading(console, "Environment", remark)
    _put(console, data(_INDENT + _what_they_gain(environment), console))
    _put(console, _launches(environment))
    for group, failure in _failures(environment):
        _put(console, data(_INDENT + f"{group} failed: {failure}", console, "red"))
    for note in environment.notes:
        _put(console, data(_INDENT + note, console))


def _what_they_gain(environment: TunedEnvironment) -> str:
    if environment.ci95 is None or environment.speedup is None:
        return f"Keep the environment as it is: {environment.reason}."
    interval = words.interval(environment.ci95)
    gain = f"{words.signed(environment.speedup)} ({interval}, {_pairs_of_launches(environment.rounds)})"
    if environment.significant:
        return f"{words.spelt(environment.variables)}: {gain} over the best buckets in the environment as it is."
    return f"Keep the environment as it is: {words.spelt(environment.variables)}, the best, makes {gain}."


def _launches(environment: TunedEnvironment) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column(_INDENT + "variables", no_wrap=False)
    for heading in ("launches", "ms", "speed-up"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("buckets")
    for group, launches in _by_group(environment.launches):
        measured = [one.setting.step_ns for one in launches if one.setting and one.setting.step_ns is not None]
        if not measured:
            continue
        setting = next(one.setting for one in launches if one.setting is not None)
        tuned = any(one.is_tuned for one in launches)
        gain = _gain_nearby(environment.launches, group)
        table.add_row(
            Text(_INDENT + (words.spelt(group) or "as it is")),
            str(len(launches)),
            units.milliseconds(median(measured)),
            units.NOTHING if gain is None else words.signed(gain),
            words.named(setting.candidate()) if tuned else "the script's own",
            style="green" if environment.significant and group == environment.variables else "",
        )
    return table


def _gain_nearby(launches: Sequence[Launched], group: dict[str, str]) -> float | None:
    gains = {words.spelt(one): gain for one, gain in gains_of(launches)}
    gain = gains.get(words.spelt(group))
    return None if gain is None else math.expm1(gain)


def _by_group(launches: Sequence[Launched]) -> list[tuple[dict[str, str], list[Launched]]]:
    found: dict[str, tuple[dict[str, str], list[Launched]]] = {}
    for one in launches:
        found.setdefault(words.spelt(one.variables), (one.variables, []))[1].append(one)
    return list(found.values())


def _failures(environment: TunedEnvironment) -> list[tuple[str, str]]:
    return [(words.spelt(one.variables), one.failure) for one in environment.launches if one.failure is not None]


# ---- the curve ------------------------------------------------------------------------------------------------


def _curve(result: Tuning, ascii_only: bool) -> list[str]:
    points = [
        (float(cap_mb), 1 / (1 + trial.speedup))
        for trial in result.trials
        if trial.speedup is not None
        and trial.failure is None
        and isinstance(cap_mb := trial.params.get("bucket_cap_mb"), int | float)
        and cap_mb > 0
    ]
    return _scatter(points, result.best.bucket_cap_mb, ascii_only)


def _scatter(points: Sequence[tuple[float, float]], best_mb: float | None, ascii_only: bool) -> list[str]:
    """Relative step time over the logarithm of the capacity, with a line where the current setting is."""
    caps = [math.log2(cap) for cap, _ in points]
    if len(set(caps)) < 2:
        return []
    # A capacity at which every gradient travels alone may take many times as long; the rest should not be a flat line.
    ordered = sorted(value for _, value in points)
    top = min(ordered[-1], max(1.0, ordered[len(ordered) // 2] * 1.5))
    bottom, top = min(ordered[0], 1.0), max(top, 1.0)
    height = max(top - bottom, 0.01)
    dot, star, line = ("o", "X", "-") if ascii_only else ("\u25cb", "\u25cf", "\u2500")
    rows = [[" "] * _CURVE_COLUMNS for _ in range(_CURVE_ROWS)]

    def row_of(value: float) -> int:
        return min(_CURVE_ROWS - 1, max(0, round((top - value) / height * (_CURVE_ROWS - 1))))

    rows[row_of(1.0)] = [line] * _CURVE_COLUMNS
    for (cap, value), at in sorted(zip(points, caps, strict=True), key=lambda one: one[0][0] == best_mb):
        column = round((at - min(caps)) / (max(caps) - min(caps)) * (_CURVE_COLUMNS - 1))
        rows[row_of(value)][column] = star if cap == best_mb else dot
    labels = {row_of(top): f"{top:.2f}", row_of(bottom): f"{bottom:.2f}", row_of(1.0): "1.00"}
    lines = [f"{labels.get(number, ''):>5} {''.join(row).rstrip()}" for number, row in enumerate(rows)]
    low, high = f"{min(cap for cap, _ in points):g}", units.capacity(max(cap for cap, _ in points))
    lines.append(" " * 6 + low + high.rjust(_CURVE_COLUMNS - len(low)))
    lines.append(" " * 6 + f"{star} best, {line * 3} the current setting")
    return lines


# ---- trials ---------------------------------------------------------------------------------------------------


def _trials(result: Tuning) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column(_INDENT + "#", justify="right")
    table.add_column("setting", no_wrap=True)
    for heading in ("buckets", "largest MiB", "ms", "speed-up", "steps"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("")
    measured = sorted(
        (trial for trial in result.trials if trial.speedup is not None and trial.failure is None),
        key=lambda trial: -(trial.speedup or 0.0),
    )
    shown = measured[:MOST_TRIAL_ROWS]
    shown += [trial for trial in measured[MOST_TRIAL_ROWS:] if trial.finalist or trial.is_current]
    for trial in shown:
        table.add_row(
            str(trial.number),
            setting_of(trial),
            f"{len(trial.bucket_bytes):,}",
            units.mebibytes(max(trial.bucket_bytes, default=0)),
            units.milliseconds(step_ns_of(trial, result.baseline)),
            units.NOTHING if trial.is_current else words.signed(trial.speedup or 0.0),
            f"{len(trial.step_ns):,}",
            "the current setting" if trial.is_current else "in the final race" if trial.finalist else "",
            style="green" if result.significant and _is_best(trial, result.best) else "",
        )
    if len(measured) > len(shown):
        table.add_row("", f"and {len(measured) - len(shown)} slower ones", style="dim")
    return table


def step_ns_of(trial: TunedTrial, baseline: TunedSetting) -> float | None:
    """A trial's step, if all had been measured when the current setting took its median time: machines drift."""
    if baseline.step_ns is None or trial.speedup is None:
        return median(trial.step_ns) if trial.step_ns else None
    return baseline.step_ns / (1 + (0.0 if trial.is_current else trial.speedup))


def _is_best(trial: TunedTrial, best: TunedSetting) -> bool:
    return trial.finalist and trial.bucket_bytes == best.bucket_bytes


def setting_of(trial: TunedTrial) -> str:
    """What was tried, in a few words."""
    if not trial.params:
        return "the current buckets"
    names = {"bucket_cap_mb": "", "first_bucket_mb": "first ", "bucket_cap_mb_list": "list "}
    said = []
    for name, value in trial.params.items():
        text = f"{value:g}" if isinstance(value, float) else str(value)
        if name == "bucket_cap_mb_list" and text.count(",") >= words.MOST_LISTED:
            text = ",".join(text.split(",")[: words.MOST_LISTED]) + ", ..."
        if (name, value) != ("compression", "none"):
            said.append(names.get(name, f"{name} ") + text)
    return ", ".join(said)


def _failed(trials: Sequence[TunedTrial]) -> list[str]:
    failed = [trial for trial in trials if trial.failure is not None]
    lines = [
        f"trial {trial.number} ({setting_of(trial)}) failed: {trial.failure}" for trial in failed[:MOST_FAILED_ROWS]
    ]
    if len(failed) > MOST_FAILED_ROWS:
        lines.append(f"and {len(failed) - MOST_FAILED_ROWS} more failed")
    return lines


def _heading(console: Console, title: str, remark: str) -> None:
    console.print()
    console.print(Text.assemble((title, "bold"), (f"  {remark}" if remark else "", "dim")), soft_wrap=True)
