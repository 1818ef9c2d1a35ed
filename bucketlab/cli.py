"""The commands: parse, call, render. No logic, and no import of torch, numpy or rich before a command needs it."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from bucketlab import __version__
from bucketlab.errors import BadInput, BucketlabError, WorkFailed
from bucketlab.launch.command import HIDDEN, TORCHRUN_FLAGS, TORCHRUN_OPTIONS, Job

F = TypeVar("F", bound=Callable[..., Any])


class _LaunchCommand(click.Command):
    """A command in front of a script: options end where the script begins; after `--` stands a whole command line."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = list(args)
        rest = super().parse_args(ctx, args)
        target = ctx.params["target"]
        before = len(given) - len(target) - 1
        ctx.params["own_launcher"] = bool(target) and before >= 0 and given[before] == "--"
        return rest


def _launch_options(command: F) -> F:
    for name, text in reversed(list(TORCHRUN_OPTIONS.items())):
        command = click.option(*_spellings(name), help=text, metavar="")(command)
    for name, text in reversed(list(TORCHRUN_FLAGS.items())):
        command = click.option(*_spellings(name), is_flag=True, help=text)(command)
    return command


def _spellings(name: str) -> list[str]:
    """torchrun takes its options with dashes and with underscores, and -m for --module."""
    names = [f"--{name}", *([f"--{name.replace('-', '_')}"] if "-" in name else [])]
    return [*names, "-m"] if name == "module" else names


def _job(target: tuple[str, ...], own_launcher: bool, options: dict[str, Any]) -> Job:
    given = {name: options[name.replace("-", "_")] for name in TORCHRUN_OPTIONS}
    flags = tuple(name for name in TORCHRUN_FLAGS if options[name.replace("-", "_")])
    chosen = tuple((name, str(value)) for name, value in given.items() if value is not None)
    return Job(target=target, own_launcher=own_launcher, options=chosen, flags=flags)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="bucketlab")
def cli() -> None:
    """Where a DistributedDataParallel step's time goes, and which gradient buckets suit the job's own link."""


@cli.command(cls=_LaunchCommand, context_settings={"allow_interspersed_args": False})
@_launch_options
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("traces"),
    help="Folder of runs.",
    show_default=True,
)
@click.option(
    "--warmup",
    type=click.IntRange(2),
    default=5,
    help="Steps before anything is measured.",
    show_default=True,
)
@click.option("--steps", type=click.IntRange(2), help="Steps to time.  [default: as many as fit in 5 s, 20 to 200]")
@click.option("--traced", type=click.IntRange(1), default=8, help="Steps to trace.", show_default=True)
@click.option(
    "--link-seconds",
    type=click.FloatRange(0.5),
    default=10.0,
    help="Time box for the link; less on links that reach the whole gradient sooner.",
    show_default=True,
)
@click.option(
    "--timeout",
    type=click.FloatRange(1),
    default=1800.0,
    help="Seconds without a step before the job is stopped.",
    show_default=True,
)
@click.option("--sweep", metavar="NAME|FILE", help="Pin the link of a sweep, such as infiniband, and check NCCL's log.")
@click.option("--emulate", metavar="NAME|FILE", help="Run the job on a sweep's link that is not there.")
@click.option(
    "--compare-topologies", is_flag=True, help="Also time steps with a ring and a parameter server, on the CPU."
)
@click.option("--keep-running", is_flag=True, help="Let the script train on after the measurement.")
@click.option("--json", "as_json", is_flag=True, help="Print profile.json on stdout, and nothing else there.")
@click.argument("target", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]...")
def profile(
    target: tuple[str, ...],
    own_launcher: bool,
    out: Path,
    warmup: int,
    steps: int | None,
    traced: int,
    link_seconds: float,
    timeout: float,
    sweep: str | None,
    emulate: str | None,
    compare_topologies: bool,
    keep_running: bool,
    as_json: bool,
    **launch: Any,
) -> None:
    """Run SCRIPT once under torchrun and show where its step time goes.

    The script is not changed. It is ended after the measurement. Another launcher goes after two dashes:
    bucketlab profile -- accelerate launch train.py
    """
    from bucketlab.link.sweep import load_sweep
    from bucketlab.profiling import ProfileOptions
    from bucketlab.profiling import profile as run

    if emulate and compare_topologies:
        raise BadInput("--compare-topologies takes the real link, --emulate one that is not there: give one of them.")
    job = _job(target, own_launcher, launch)
    options = ProfileOptions(
        out=out,
        sweep=load_sweep(sweep) if sweep else None,
        emulate=load_sweep(emulate) if emulate else None,
        warmup_steps=warmup,
        timed_steps=steps,
        traced_steps=traced,
        compare_topologies=compare_topologies,
        link_seconds=link_seconds,
        timeout_seconds=timeout,
        keep_running=keep_running,
        output_to_stderr=as_json,
    )
    profiled = run(job, options)
    if profiled.remark:
        _say(profiled.remark)
    if profiled.folder is not None:
        _show_profile(profiled.folder, as_json)


def _show_profile(folder: Path, as_json: bool) -> None:
    from bucketlab.runs import PROFILE, load_profile

    if as_json:
        sys.stdout.buffer.write((folder / PROFILE).read_bytes() + b"\n")
        return
    from rich.console import Console

    from bucketlab.report.profile import print_profile

    print_profile(load_profile(folder), Console(), folder)


_STUDY_OPTIONS = [
    click.option(
        "--out",
        type=click.Path(path_type=Path, file_okay=False),
        default=Path("sweeps"),
        help="Folder of studies.",
        show_default=True,
    ),
    click.option("--study", help="Name of the study; one that exists goes on.  [default: one for each command]"),
    click.option("--storage", metavar="URL", help="Where Optuna keeps it.  [default: SQLite in the study's folder]"),
    click.option("--trials", type=click.IntRange(1), default=40, help="Layouts to try.", show_default=True),
    click.option("--steps", type=click.IntRange(50), help="Training steps to spend in a launch, at most."),
    click.option("--emulate", metavar="NAME|FILE", help="Tune on a sweep's link that is not there."),
    click.option("--no-prediction", is_flag=True, help="Do not begin with what prediction thinks best."),
    click.option(
        "--timeout",
        type=click.FloatRange(1),
        default=1800.0,
        help="Seconds without a step before the job is stopped.",
        show_default=True,
    ),
]


def _study_options(command: Any) -> Any:
    for option in reversed(_STUDY_OPTIONS):
        command = option(command)
    return command


@cli.command(cls=_LaunchCommand, context_settings={"allow_interspersed_args": False})
@_launch_options
@_study_options
@click.option("--relaunch", is_flag=True, help="Try each setting in a launch of its own: slow, for jobs that need it.")
@click.option("--sweep", "sweeps", multiple=True, metavar="NAME|FILE", help="Link and search space; one study each.")
@click.option(
    "--runs", type=click.Path(path_type=Path), default=Path("traces"), help="Folder of runs.", show_default=True
)
@click.option("--json", "as_json", is_flag=True, help="Print result.json on stdout, and nothing else there.")
@click.argument("target", nargs=-1, type=click.UNPROCESSED, metavar="[SCRIPT [ARGS]...]")
def tune(
    target: tuple[str, ...],
    own_launcher: bool,
    out: Path,
    study: str | None,
    storage: str | None,
    trials: int,
    steps: int | None,
    emulate: str | None,
    no_prediction: bool,
    timeout: float,
    relaunch: bool,
    sweeps: tuple[str, ...],
    runs: Path,
    as_json: bool,
    **launch: Any,
) -> None:
    """Find the bucket size that trains SCRIPT fastest, with a confidence interval, in one launch of it.

    The buckets are changed between training steps; the script is not, and ends when the answer is found. Without a
    SCRIPT, the one last profiled.
    """
    from bucketlab.link.sweep import load_sweep
    from bucketlab.tuning import TuneOptions
    from bucketlab.tuning import tune as run

    if emulate and sweeps:
        raise BadInput("--sweep pins a link that is here, --emulate stands in for one that is not: give one of them.")
    job = _job(target, own_launcher, launch) if target else _last_profiled(runs, launch)
    names: tuple[str | None, ...] = sweeps or (None,)
    loaded = [load_sweep(name) if name else None for name in names]
    tuned = []
    for sweep in loaded:
        options = TuneOptions(
            out=out,
            study=study if len(loaded) == 1 or not study or sweep is None else f"{study}-{sweep.name}",
            storage=storage,
            trials=trials,
            steps=steps,
            sweep=sweep,
            emulate=load_sweep(emulate) if emulate else None,
            predict=not no_prediction,
            timeout_seconds=timeout,
            relaunch=relaunch,
            output_to_stderr=as_json,
        )
        done = run(job, options)
        _say_all(done.remarks)
        if not as_json:
            _show_study(done.folder)
        if done.result is not None:
            tuned.append(done.result)
    if as_json and tuned:
        _print_json(tuned[0] if len(loaded) == 1 else tuned)


def _last_profiled(runs: Path, launch: dict[str, Any]) -> Any:
    from bucketlab.launch.command import Job
    from bucketlab.runs import find_run, load_card

    if any(launch[name.replace("-", "_")] is not None for name in TORCHRUN_OPTIONS):
        raise BadInput("launch options need a script after them. Usage: bucketlab tune [options] train.py")
    card = load_card(find_run(None, runs))
    how = card.launch
    if any(HIDDEN in word for word in card.command):
        raise BadInput(
            f"the command of run {card.run} had a secret, which is not stored. Name the script and its options."
        )
    if how.folder and how.folder != str(Path.cwd()):
        raise BadInput(f"run {card.run} was launched in {how.folder}. Go there, or name the script.")
    _say(f"tunes what was profiled last: {' '.join(card.command)}")
    return Job(tuple(card.command), how.own_launcher, tuple(how.options.items()), tuple(how.flags))


def _show_study(folder: Path | None) -> None:
    from rich.console import Console

    from bucketlab.report.tuning import print_tuning
    from bucketlab.tune.files import load_result

    if folder is not None:
        console = Console()
        print_tuning(load_result(folder), console)
        console.print(f"\nStudy: {folder}", soft_wrap=True, highlight=False)


@cli.command(cls=_LaunchCommand, context_settings={"allow_interspersed_args": False})
@_launch_options
@click.option("--autotune", is_flag=True, help="Tune in the first steps, then train on with what was found.")
@_study_options
@click.argument("target", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]...")
def run(
    target: tuple[str, ...],
    own_launcher: bool,
    autotune: bool,
    out: Path,
    study: str | None,
    storage: str | None,
    trials: int,
    steps: int | None,
    emulate: str | None,
    no_prediction: bool,
    timeout: float,
    **launch: Any,
) -> None:
    """Train SCRIPT with the bucket setting that a study found for it; the script is not changed.

    The options of studies matter to --autotune alone, but for --out and --study, which say where the setting is.
    """
    from bucketlab.tuning import TuneOptions, run_with
    from bucketlab.tuning import tune as run_study

    job = _job(target, own_launcher, launch)
    if not autotune:
        run_with(job, study, out)
        return
    if emulate:
        raise BadInput("--autotune trains on, and --emulate slows training down: give one of them.")
    done = run_study(
        job,
        TuneOptions(
            out=out,
            study=study,
            storage=storage,
            trials=trials,
            steps=steps,
            predict=not no_prediction,
            timeout_seconds=timeout,
            keep_running=True,
        ),
    )
    _say_all(done.remarks)
    _show_study(done.folder)


@cli.command()
@click.argument("run", required=False)
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("traces"), help="Folder of runs.", show_default=True
)
@click.option(
    "--link", metavar="NAME|FILE", help="What if the link were a sweep's, such as infiniband or infiniband:hdr."
)
@click.option("--ranks", metavar="N|N,N|N..N", help="What if there were so many ranks; 8..1024 is every doubling.")
@click.option("--ranks-per-node", type=click.IntRange(1), help="What if so many of them shared a node.")
@click.option(
    "--algorithm", multiple=True, help="ring, tree, two-level, in-switch, parameter-server or all; repeatable."
)
@click.option(
    "--compute-scale", type=click.FloatRange(0, min_open=True), default=1.0, help="Compute takes so many times as long."
)
@click.option("--dtype", metavar="NAME", help="Gradients travel as bf16, fp16, ...")
@click.option("--accumulate", type=click.IntRange(1), help="Micro-batches a step.")
@click.option("--straggler", metavar="PART", help="One rank's compute is slower by this part, such as 5%.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
def predict(
    run: str | None,
    out: Path,
    link: str | None,
    ranks: str | None,
    ranks_per_node: int | None,
    algorithm: tuple[str, ...],
    compute_scale: float,
    dtype: str | None,
    accumulate: int | None,
    straggler: str | None,
    as_json: bool,
) -> None:
    """Step time against bucket size from a profiled RUN (the newest, a name or a folder), and what-ifs. No launch.

    A trace of another profiler, or a folder of them, is taken for RUN too: its answer is ranges.
    """
    from bucketlab.predict import predict as predicted
    from bucketlab.predict import unsayable
    from bucketlab.predict.whatif import ask
    from bucketlab.runs import find_run, is_trace, load_profile

    what_if = (link, ranks, ranks_per_node, *algorithm, dtype, accumulate, straggler)
    asks_what_if = compute_scale != 1.0 or any(one is not None for one in what_if)
    if run is not None and is_trace(Path(run)):
        if asks_what_if:
            raise BadInput(f"{run} is a trace, and what-ifs need a profile: bucketlab profile train.py")
        _predict_from_trace(run, as_json)
        return
    profile = load_profile(find_run(run, out))
    if asks_what_if:
        answer = ask(
            profile,
            link=link,
            ranks=ranks,
            ranks_per_node=ranks_per_node,
            algorithms=algorithm,
            compute_scale=compute_scale,
            dtype=dtype,
            accumulate=accumulate,
            straggler=straggler,
        )
        if as_json:
            _print_json(answer)
            return
        from rich.console import Console

        from bucketlab.report.whatif import print_whatif

        print_whatif(answer, Console())
        return
    prediction = predicted(profile)
    if prediction is None:
        raise WorkFailed("; ".join(unsayable(profile)) + ". Profile the script again, with all its phases.")
    if as_json:
        _print_json(prediction)
        return
    from rich.console import Console

    from bucketlab.report.prediction import print_prediction

    print_prediction(prediction, profile.run, Console())


def _predict_from_trace(path: str, as_json: bool) -> None:
    from bucketlab.analysis.files import analyze_paths
    from bucketlab.predict.foreign import predict_trace

    made = predict_trace(analyze_paths([path]))
    if as_json:
        _print_json(made)
        return
    from rich.console import Console

    from bucketlab.report.foreign import print_trace_prediction

    print_trace_prediction(made, Console())


@cli.command(cls=_LaunchCommand, context_settings={"allow_interspersed_args": False})
@_launch_options
@click.option("--seconds", type=click.FloatRange(1), default=10.0, help="Time box.", show_default=True)
@click.option(
    "--max-mb", type=click.FloatRange(0.004), default=128.0, help="Largest all-reduce, MiB.", show_default=True
)
@click.option("--dtype", type=click.Choice(["float32", "bfloat16", "float16"]), default="float32", show_default=True)
@click.option(
    "--timeout", type=click.FloatRange(1), default=300.0, help="Seconds to wait for a result.", show_default=True
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
@click.argument("target", nargs=-1, type=click.UNPROCESSED, metavar="[-- LAUNCHER...]")
def link(
    target: tuple[str, ...],
    own_launcher: bool,
    seconds: float,
    max_mb: float,
    dtype: Any,
    timeout: float,
    as_json: bool,
    **launch: Any,
) -> None:
    """Measure the link between the ranks of a launch: all-reduces of growing size, in nccl-tests' terms.

    No script is needed. Another launcher goes after two dashes: bucketlab link -- torchrun --nproc-per-node 8

    `bucketlab link testbed` makes hosts on this machine and runs a script across them; see its --help.
    """
    if target[:1] == ("testbed",) and not own_launcher:
        testbed.main(list(target[1:]), prog_name="bucketlab link testbed", standalone_mode=False)
        return
    from bucketlab.linking import LinkTask, measure_link

    if target and not own_launcher:
        raise BadInput(f"{target[0]}: a link is measured without a script; a launcher goes after --")
    task = LinkTask(result="", largest_bytes=int(max_mb * 2**20), dtype=dtype, seconds=seconds)
    measured = measure_link(_job(target, own_launcher, launch), task, timeout, as_json)
    if measured is None:
        _say("rank 0 runs on another node: the figures are there.")
    elif as_json:
        _print_json(measured)
    else:
        from rich.console import Console

        from bucketlab.report.link import print_link

        print_link(measured, Console())


@click.command(context_settings={"allow_interspersed_args": False, "help_option_names": ["-h", "--help"]})
@click.option("--hosts", type=click.IntRange(2, 64), default=2, help="Network namespaces to make.", show_default=True)
@click.option("--mbit-per-s", type=click.IntRange(1), default=1000, help="Rate of each link.", show_default=True)
@click.option("--nproc-per-node", type=click.IntRange(1), default=1, help="Ranks on each host.", show_default=True)
@click.argument("target", nargs=-1, required=True, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]...")
def testbed(target: tuple[str, ...], hosts: int, mbit_per_s: int, nproc_per_node: int) -> None:
    """Run SCRIPT under torchrun across hosts made on this machine, joined by links of a chosen rate (root, Linux)."""
    from bucketlab.link.testbed import reason_unavailable, run_torchrun

    if (reason := reason_unavailable()) is not None:
        raise BadInput(f"no hosts to be had: {reason}.")
    if not Path(target[0]).is_file():
        raise BadInput(f"there is no script {target[0]}.")
    if code := run_torchrun(target, hosts, mbit_per_s, nproc_per_node):
        raise WorkFailed(f"{target[0]} ended with exit code {code}; what it printed is above.")


@cli.command()
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path), metavar="PATH...")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
@click.option("--csv", "as_csv", is_flag=True, help="Print rows for traces, steps and collectives, for spreadsheets.")
@click.option(
    "--summaries",
    type=click.Path(path_type=Path, file_okay=False),
    help="Also write each rank's summary into this folder, to be analyzed with others' elsewhere.",
)
@click.option(
    "--collectives",
    type=click.Path(path_type=Path, dir_okay=False),
    help="TOML file with further kernel names that count as communication.",
)
def analyze(
    paths: tuple[Path, ...], as_json: bool, as_csv: bool, summaries: Path | None, collectives: Path | None
) -> None:
    """Exact overlap of traces that exist already: files or folders, of any torch.profiler run, any number of ranks."""
    # numpy starts threads for linear algebra, and nothing here does any. Not for other commands: jobs would inherit it.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from bucketlab.analysis.files import analyze_paths, runs_apart, write_summaries
    from bucketlab.report.progress import files_bar
    from bucketlab.trace import classify

    if not paths:
        raise BadInput("no trace was given. Usage: bucketlab analyze PATH...")
    rules = classify.Rules.from_toml(collectives) if collectives else classify.BUILT_IN
    with files_bar("reading traces") as on_file:
        analysis = analyze_paths(paths, rules, on_file)
    gc.freeze()  # at its end Python would look through all that is left for garbage: 13 of 250 ms
    if summaries:
        write_summaries(analysis, summaries)
    if as_json:
        _print_json(analysis)
        return
    if as_csv:
        from bucketlab.report.analysis import write_csv

        write_csv(analysis, sys.stdout)
        return
    from rich.console import Console

    from bucketlab.report.analysis import print_analysis

    console = Console()
    for folder, run in runs_apart(analysis).items():
        if folder:
            console.rule(folder, align="left", characters="-" if console.options.ascii_only else "─")
        print_analysis(run, console)


@cli.command()
@click.argument("run", required=False)
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("traces"), help="Folder of runs.", show_default=True
)
@click.option("--study", metavar="FILE", help="Draw the measured trials of this result.json beside the prediction.")
@click.option("--perfetto", is_flag=True, help="Also write traces with tracks of buckets, for ui.perfetto.dev.")
@click.option("--json", "as_json", is_flag=True, help="Print the paths of the files as one JSON document on stdout.")
def report(run: str | None, out: Path, study: str | None, perfetto: bool, as_json: bool) -> None:
    """The interactive page of a profiled RUN (the newest, a name, a folder, or traces): report.html."""
    from bucketlab.reporting import make_report

    made = make_report(run, out, study, perfetto)
    if as_json:
        _print_json(made)
        return
    for path in [made.report, *made.perfetto]:
        print(path)


@cli.command()
@click.argument("a")
@click.argument("b")
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("traces"), help="Folder of runs.", show_default=True
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
def compare(a: str, b: str, out: Path, as_json: bool) -> None:
    """Two profiled runs side by side, A before and B after: every figure with its difference and interval."""
    from bucketlab.comparing import compare as compared
    from bucketlab.runs import find_run

    comparison = compared(find_run(a, out), find_run(b, out))
    if as_json:
        _print_json(comparison)
        return
    from rich.console import Console

    from bucketlab.report.compare import print_comparison

    print_comparison(comparison, Console())


@cli.command()
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("traces"), help="Folder of runs.", show_default=True
)
@click.option("--host", default="127.0.0.1", help="Address to serve at.", show_default=True)
@click.option("--port", type=click.IntRange(0, 65535), default=6006, help="Port to serve at.", show_default=True)
def view(out: Path, host: str, port: int) -> None:
    """TensorBoard on the folder of runs, until Ctrl-C."""
    if not out.is_dir():
        raise BadInput(f"there is no folder {out}. Make a run first: bucketlab profile train.py")
    arguments = ["--logdir", str(out), "--host", host, "--port", str(port)]
    os.execv(sys.executable, [sys.executable, "-m", "tensorboard.main", *arguments])


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
def doctor(as_json: bool) -> None:
    """What is installed, what was detected, and what would not work here and why."""
    from bucketlab.doctor import examine

    checks = examine()
    if as_json:
        _print_json(checks)
        return
    from rich.console import Console

    from bucketlab.report.doctor import print_checks

    print_checks(checks, Console())


def _print_json(document: object) -> None:
    import msgspec

    sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n")


def _say_all(lines: Sequence[str]) -> None:
    for line in lines:
        _say(line)


def _say(line: str) -> None:
    print(f"bucketlab: {line}", file=sys.stderr)


def main() -> NoReturn:
    """The command line. Errors of ours become one line; a closed pipe is no error."""
    try:
        cli(prog_name="bucketlab", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Exit as leaving:
        sys.exit(leaving.exit_code)
    except click.ClickException as error:
        _say(f"{error.format_message()} (bucketlab --help tells what there is)")
        sys.exit(2)
    except click.Abort:
        _say("interrupted.")
        sys.exit(1)
    except BucketlabError as error:
        _say(str(error))
        sys.exit(error.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        _say(f"{error.filename or 'the output'}: {error.strerror}.")
        sys.exit(1)
    except UnicodeEncodeError:
        _say("a name or an argument is no valid text in this locale, and cannot be passed on.")
        sys.exit(2)
    sys.exit(0)
