"""Measures the link between the ranks of a launch of its own: no training script, any launcher that gives ranks.

Started as a script by the launcher. It joins the process group that the environment describes, with NCCL where there
are GPUs and gloo otherwise, measures, and lets rank 0 leave the result where the environment says.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path

VARIABLE = "BUCKETLAB_LINK"


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parents[2]))
    import msgspec
    import torch
    import torch.distributed as dist

    from bucketlab.link.measured import measured_link
    from bucketlab.linking import LinkTask
    from bucketlab.runs import write_json
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
    hosts: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(hosts, socket.gethostname())
    if dist.get_rank() == 0:
        backend, ranks = dist.get_backend(), dist.get_world_size()
        write_json(Path(task.result), measured_link(measurement.points, task.dtype, backend, ranks, hosts))
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.1)  # for gloo's threads; see `Observer.script_ends`


if __name__ == "__main__":
    main()
