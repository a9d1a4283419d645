"""Fuzzes the trace readers: whatever the bytes, the end is a trace or a TraceError.

    python tests/fuzz/fuzz_chakra.py --seconds 20 [--seed 1]     mutations of the traces in tests/data/traces
    python tests/fuzz/fuzz_chakra.py --atheris [libFuzzer options]   coverage-guided, where atheris is installed

A failing input is written to the current directory as ``crash-<hash>`` and its name printed; exit code 1.
"""

import argparse
import gzip
import hashlib
import random
import sys
import tempfile
import time
import traceback
from pathlib import Path

from genie.errors import TraceError
from genie.workload import load
from genie.workload.chakra import wire
from genie.workload.check import check

DATA = Path(__file__).parent.parent / "data" / "traces"
INTERESTING = (b"\x00", b"\x7f", b"\x80", b"\xff", b"\x0a", b"\x12", b"{", b"}", b"[", b'"', b"\x1f\x8b", b"\xff" * 10)


LINKED = b"""{"schema": "1.1.1-chakra.0.0.4", "nodes": [
{"id": 1, "name": "aten::mm", "ctrl_deps": 1, "ts": 10.5, "exclusive_dur": 2, "attrs": [{"name": "tid", "value": 1}]},
{"id": 2, "name": "ncclDevKernel_AllReduce(x)", "cat": "kernel", "ctrl_deps": 1, "ts": 12, "exclusive_dur": 3,
 "stream": 7, "pg_name": "0", "sync_dep": [1],
 "inputs": {"values": [[1, 2, 0, 8, 2, "cuda:0"]], "types": ["Tensor(float)"]}}
]}"""


def corpus() -> list[bytes]:
    """The collected traces, unpacked, without the README."""
    files = sorted(path for path in DATA.rglob("*") if path.is_file() and path.suffix != ".md")
    return [LINKED, *(wire.unpack(path.read_bytes(), str(path)) for path in files)]


def mutate(data: bytes, draw: random.Random, others: list[bytes]) -> bytes:
    """One to eight small changes: bytes set, removed, repeated, spliced in from another trace, or a cut."""
    out = bytearray(data)
    for _ in range(draw.randint(1, 8)):
        place = draw.randrange(len(out) + 1)
        match draw.randrange(6):
            case 0 if out:
                out[place % len(out)] = draw.randrange(256)
            case 1:
                del out[place : place + draw.randint(1, 16)]
            case 2:
                out[place:place] = draw.choice(INTERESTING)
            case 3:
                out[place:place] = out[place : place + draw.randint(1, 64)]
            case 4:
                other = draw.choice(others)
                start = draw.randrange(len(other))
                out[place : place + draw.randint(0, 32)] = other[start : start + draw.randint(1, 64)]
            case 5 if draw.random() < 0.2:
                del out[place:]
    return gzip.compress(bytes(out), 1) if draw.random() < 0.03 else bytes(out)


def try_bytes(data: bytes, path: Path) -> bool:
    """Read and check ``data`` as the only rank of a job and as one of copies. True if it is a trace."""
    path.write_bytes(data)
    accepted = False
    for replicate in (0, 3):
        try:
            check(load({"name": "chakra", "path": str(path), "replicate_ranks": replicate, "device": "a100"}))
            accepted = True
        except TraceError:
            continue
    return accepted


def loop(seconds: float, seed: int) -> int:
    draw, others = random.Random(seed), corpus()
    end = time.monotonic() + seconds
    tried = accepted = 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fuzz.0.et"
        while time.monotonic() < end:
            data = mutate(draw.choice(others), draw, others)
            tried += 1
            try:
                accepted += try_bytes(data, path)
            except Exception:
                traceback.print_exc()
                name = Path(f"crash-{hashlib.sha256(data).hexdigest()[:16]}")
                name.write_bytes(data)
                print(f"seed {seed}, input {tried}: kept in {name.absolute()}")
                return 1
    print(f"seed {seed}: {tried} inputs, {accepted} accepted, the others refused by name")
    return 0


def coverage_guided(arguments: list[str]) -> None:
    import atheris

    folder = tempfile.TemporaryDirectory()
    path = Path(folder.name) / "fuzz.0.et"
    atheris.instrument_all()
    atheris.Setup([sys.argv[0], *arguments], lambda data: try_bytes(data, path))
    atheris.Fuzz()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--atheris", action="store_true")
    options, rest = parser.parse_known_args()
    if options.atheris:
        coverage_guided(rest)
        return 0
    return loop(options.seconds, options.seed)


if __name__ == "__main__":
    sys.exit(main())
