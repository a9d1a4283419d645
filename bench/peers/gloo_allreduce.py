"""The peer: torch.distributed over Gloo on CPU tensors. Started once a host with rank, world, address and sizes.

Prints, on rank 0, one line a size: bytes and the seconds of each repetition. Needs a Python with torch.
"""

import os
import sys
import time


def main() -> None:
    rank, world, master, interface, repeats = (
        int(sys.argv[1]),
        int(sys.argv[2]),
        sys.argv[3],
        sys.argv[4],
        int(sys.argv[5]),
    )
    os.environ.update(MASTER_ADDR=master, MASTER_PORT="29501", GLOO_SOCKET_IFNAME=interface, OMP_NUM_THREADS="1")
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    for size in map(int, sys.argv[6:]):
        tensor = torch.zeros(size // 4)
        times = []
        for _ in range(repeats + 2):
            dist.barrier()
            began = time.perf_counter()
            dist.all_reduce(tensor)
            times.append(time.perf_counter() - began)
        if rank == 0:
            print(size, *times[2:], flush=True)
    dist.destroy_process_group()


main()
