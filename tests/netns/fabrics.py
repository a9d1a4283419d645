"""What the fabric's tests share: a fabric that is always taken down, servers awaited by their own words."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from genie.fabric import NetnsConfig
from genie.fabric.netns import NetnsFabric
from genie.topology import LeafSpineConfig, TopologyConfig, build

TRAFFIC = str(Path(__file__).with_name("traffic.py"))
PYTHON = sys.executable
PORT = "5000"


@contextmanager
def running(
    directory: Path, topology: TopologyConfig | None = None, config: NetnsConfig | None = None
) -> Iterator[NetnsFabric]:
    """A built fabric; the default is a leaf-spine of 8 hosts."""
    fabric = NetnsFabric(config or NetnsConfig(), build(topology or LeafSpineConfig()), directory)
    fabric.build()
    try:
        yield fabric
    finally:
        fabric.destroy()


def wait_until(condition: Callable[[], Any], what: str, timeout_s: float = 15.0) -> Any:
    """The first true answer of ``condition``."""
    deadline = time.monotonic() + timeout_s
    while True:
        answer = condition()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"{what} did not happen within {timeout_s} s"
        time.sleep(0.005)


def serve(fabric: NetnsFabric, host: str, log: Path) -> None:
    """A traffic server on ``host``, listening when this returns."""
    process = fabric.spawn(host, [PYTHON, "-I", "-S", TRAFFIC, "serve", "0.0.0.0", PORT], stdin=b"", log=log)
    wait_until(lambda: process.poll() is not None or "listening" in log.read_text(), "the server's start")
    assert process.poll() is None, log.read_text()


def send(fabric: NetnsFabric, source: str, target: str, size: int, flows: int = 1) -> None:
    """Bytes over flows at once from one host to another's server, to their end."""
    argv = [PYTHON, "-I", "-S", TRAFFIC, "send", fabric.address(target), PORT, str(size), str(flows)]
    done = fabric.run(source, argv)
    assert done.returncode == 0, done.stderr


def difference(before: dict[str, dict[str, int]], after: dict[str, dict[str, int]], who: str, counter: str) -> int:
    """Growth of one counter."""
    return after[who].get(counter, 0) - before[who].get(counter, 0)


def tagged_processes(tag: str) -> list[int]:
    """Live processes whose environment carries ``tag``: everything that a tagged runner started."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environment = (entry / "environ").read_bytes()
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if tag.encode() in environment and state != "Z":
            found.append(int(entry.name))
    return found
