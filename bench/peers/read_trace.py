"""Writes a Chakra file of N nodes with five attributes each, then prints the seconds that reading it and checking it
for two ranks took.
"""

import sys
import tempfile
import time
from pathlib import Path

from genie import workload
from genie.workload.chakra.wire import FullNode, GlobalMetadata, write_frames
from genie.workload.check import check

COMP, COLL = 4, 7


def main() -> None:
    nodes = []
    for i in range(int(sys.argv[1])):
        node = FullNode(id=i, name=f"op{i}", type=COLL if i % 50 == 49 else COMP, duration_micros=10)
        node.data_deps.extend([i - 1] if i else [])
        for name, value in (("num_ops", 1000), ("tensor_size", 4096), ("comm_type", 0), ("comm_size", 65536)):
            attribute = node.attr.add(name=name)
            attribute.int64_val = value
        node.attr.add(name="is_cpu_op").bool_val = False
        nodes.append(node)
    metadata = GlobalMetadata(version="0.0.4")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "job.0.et").write_bytes(write_frames([metadata, *nodes]))
        began = time.monotonic()
        check(workload.load({"name": "chakra", "path": folder, "replicate_ranks": 2, "comm_groups": ""}))
        print(time.monotonic() - began)


main()
