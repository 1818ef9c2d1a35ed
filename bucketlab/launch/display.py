"""What a person sees while a job runs: the script's own output, and below it one line of progress on a terminal.

Without a terminal the script's output is passed on untouched; a study, which takes minutes, says now and then how far
it is.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from bucketlab.saying import say
from bucketlab.worker.progress import PHASES, Progress

_LINE_SECONDS = 20.0


class Display:
    """What one launch shows of itself.

    Args:
        plain: the job's own output and nothing else.
    """

    def __init__(self, plain: bool = False) -> None:
        self._on_terminal = sys.stderr.isatty() and not plain
        self._bar: _Bar | None = None
        self._lines = None if self._on_terminal or plain else _Lines()

    def environment(self) -> dict[str, str]:
        # Behind a pipe Python would hold the script's lines back for kilobytes at a time.
        return {"PYTHONUNBUFFERED": "1"} if self._on_terminal else {}

    def child_stdout(self, output_to_stderr: bool) -> int | IO[str] | None:
        if self._on_terminal:
            return subprocess.PIPE
        return sys.stderr if output_to_stderr else None

    def child_stderr(self) -> int | None:
        return subprocess.PIPE if self._on_terminal else None

    @contextmanager
    def following(self, process: subprocess.Popen[bytes], output_to_stderr: bool) -> Iterator[None]:
        if not self._on_terminal:
            yield
            return
        with _Bar() as self._bar:
            to_terminal = output_to_stderr or sys.stdout.isatty()
            pumps = [
                threading.Thread(target=self._pump, args=(process.stdout, to_terminal), daemon=True),
                threading.Thread(target=self._pump, args=(process.stderr, True), daemon=True),
            ]
            for pump in pumps:
                pump.start()
            yield
            for pump in pumps:
                pump.join(timeout=5)

    def show(self, progress: Sequence[Progress], control: Path) -> None:
        if self._bar is not None:
            self._bar.show(progress, control)
        elif self._lines is not None:
            self._lines.show(control)

    def _pump(self, stream: IO[bytes], to_terminal: bool) -> None:
        for line in iter(stream.readline, b""):
            if to_terminal and self._bar is not None:
                self._bar.line(line.decode(errors="replace").rstrip("\n"))
                continue
            with contextlib.suppress(OSError):  # whoever reads has had enough; the script must still get rid of it
                sys.stdout.buffer.write(line)
                sys.stdout.buffer.flush()


class _Lines:
    """A plain line of a study's progress every so often."""

    def __init__(self) -> None:
        self._told_at = time.monotonic()

    def show(self, control: Path) -> None:
        if time.monotonic() - self._told_at < _LINE_SECONDS:
            return
        from bucketlab.tune.files import read_live

        live = read_live(control)
        if live is None:
            return
        from bucketlab.tune.words import progress_line

        self._told_at = time.monotonic()
        say(progress_line(live.progress))


class _Bar:
    """One line at the bottom of the terminal: phase, steps of it, ranks, time."""

    def __init__(self) -> None:
        from rich.console import Console, RenderableType
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress
        from rich.text import Text

        class BelowLines(RichProgress):
            """The bar, and above it whatever lines there are."""

            lines: Sequence[str] = ()

            def get_renderables(self) -> Iterator[RenderableType]:
                yield from (Text(line, overflow="crop", no_wrap=True) for line in self.lines)
                yield self.make_tasks_table(self.tasks)

        self._console = Console(stderr=True)
        self._progress = BelowLines(
            TextColumn("bucketlab"),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
        )
        self._task = self._progress.add_task("starting", total=None)

    def __enter__(self) -> _Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def line(self, text: str) -> None:
        from rich.text import Text

        self._console.print(Text.from_ansi(text), soft_wrap=True)

    def show(self, progress: Sequence[Progress], control: Path) -> None:
        ranks = [one for one in progress if one.rank >= 0]
        if not ranks:
            return
        slowest = min(ranks, key=lambda one: (one.phase, one.done))
        phase = PHASES[slowest.phase]
        if phase == "tuning" and self._show_study(control):
            return
        self._progress.lines = ()
        what = "ending the script" if phase == "done" else phase
        # A phase of unknown length is one unit of work, begun: rich cannot take a total back.
        self._progress.update(
            self._task,
            description=f"{what}, {len(ranks)} ranks here",
            completed=slowest.done if slowest.total else 0,
            total=slowest.total or 1,
        )

    def _show_study(self, control: Path) -> bool:
        """Trials, best so far, the curve as it forms, time left; False where nothing is known of the study here."""
        from bucketlab.report.tuning import progress_curve
        from bucketlab.tune.files import read_live
        from bucketlab.tune.words import progress_line

        live = read_live(control)
        if live is None:
            return False
        study = live.progress
        self._progress.lines = progress_curve(study, self._console.options.ascii_only)
        self._progress.update(
            self._task,
            description=progress_line(study),
            completed=study.steps,
            total=None if study.steps_left is None else study.steps + study.steps_left,
        )
        return True
