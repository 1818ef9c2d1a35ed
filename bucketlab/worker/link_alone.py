"""Measures the link between the ranks of a launch of its own: no training script, any launcher that gives ranks.

Started as a script by the launcher. It joins the process group that the environment describes, with NCCL where there
are GPUs and gloo otherwise, measures, asks each host what joins ranks there and NCCL's log what was used of it, and
lets rank 0 leave the result where the environment says.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

VARIABLE = "BUCKETLAB_LINK"


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from bucketlab.launch.scratch import scratch_folder
    from bucketlab.link.nccl_log import debug_environment

    with scratch_folder() as folder:
        os.environ.update(debug_environment(folder, os.environ))
        _measure(folder)
    sys.stdout.flush()
    sys.stderr.flush()
    # All is written and every rank has left the group. At interpreter exit gloo of torch 2.13 now and then aborts
    # ("terminate called without an active exception"), and a launcher takes that for a failed launch.
    os._exit(0)


def _measure(folder: Path) -> None:
    """Args:
    folder: that NCCL writes this process's log to.
    """
    import msgspec
    import torch
    import torch.distributed as dist

    from bucketlab.documents import write_json
    from bucketlab.link import detect
    from bucketlab.link.measured import measured_link
    from bucketlab.link.nccl_log import Used, in_words, joined, logs_of_process, what_was_used
    from bucketlab.linking import LinkTask
    from bucketlab.worker.link import LinkMeter

    task = msgspec.json.decode(os.environ[VARIABLE], type=LinkTask)
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if on_gpu else "gloo")
    device = torch.device("cuda" if on_gpu else "cpu")
    group = dist.group.WORLD
    assert group is not None
    dtype = getattr(torch, task.dtype)
    measurement = LinkMeter(group, dtype, device, task.seconds).measure(task.largest_bytes)
    logs = logs_of_process(folder, os.getpid())
    mine = socket.gethostname(), detect.in_words(detect.find_links()), what_was_used(logs) if logs else None
    told: list[tuple[str, list[tuple[str, str]], Used | None]] = [mine] * dist.get_world_size()
    dist.all_gather_object(told, mine)
    if dist.get_rank() == 0:
        backend, ranks = dist.get_backend(), dist.get_world_size()
        link = measured_link(measurement.points, task.dtype, backend, ranks, [host for host, _, _ in told])
        link.found = {host: [f"{name}: {what}" for name, what in found] for host, found, _ in told}
        used = [one for _, _, one in told if one is not None]
        link.used = in_words(joined(used)) if used else ""
        write_json(Path(task.result), link)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
