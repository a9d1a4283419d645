"""``ib_write_bw`` and ``ib_write_lat`` without RDMA: the first words over TCP, the tables, and how they fail.

Source: perftest 4.5 as Debian 12 has it, run on Soft-RoCE in the lab, and its perftest_communication.c and
perftest_resources.c for the words of failures. A server prints that it waits, serves one client, and both print the
table; a client without a server, a device that is not there and a dead path end with status 1.

Not in a source: rates. They come from ``GENIE_PERFTEST_GBPS`` (a JSON object, "DEVICE-of-client>PORT" or "*" → Gb/s),
and ``GENIE_PERFTEST_DEAD`` names devices whose packets are never acknowledged.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import stat
import sys
from pathlib import Path

LINE = "-" * 87
DEVICES = ("rxe0", "rxe1", "rxe2")
BW_HEAD = " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]"
LAT_HEAD = (
    " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   "
    "99% percentile[usec]   99.9% percentile[usec] "
)


def install(folder: Path) -> Path:
    """Put both programs into ``folder``, to stand first on a PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("ib_write_bw", "ib_write_lat"):
        path = folder / name
        path.write_text(f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n"
                        f"import perftest\nsys.exit(perftest.main({name!r}, sys.argv[1:]))\n")  # fmt: skip
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return folder


def main(name: str, argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog=name)
    for short in "dixpsnquSm":
        parser.add_argument(f"-{short}", default="1")
    parser.add_argument("-F", action="store_true")
    parser.add_argument("--report_gbits", action="store_true")
    parser.add_argument("--tclass")
    parser.add_argument("server", nargs="?")
    words = parser.parse_args(argv)
    if words.d not in DEVICES:
        print(f" IB device {words.d} not found\n Unable to find the Infiniband/RoCE device")
        return 1
    return _client(name, words) if words.server else _server(name, words)


def _server(name: str, words: argparse.Namespace) -> int:
    with socket.create_server(("", int(words.p))) as listening:
        print("\n************************************\n* Waiting for client to connect... *\n"
              "************************************", flush=True)  # fmt: skip
        connection, _ = listening.accept()
        with connection:
            _head(name, words)
            connection.recv(1)
    _table(name, words)
    return 0


def _client(name: str, words: argparse.Namespace) -> int:
    try:
        connection = socket.create_connection((words.server, int(words.p)), timeout=5)
    except OSError:
        print(f"Couldn't connect to {words.server}:{words.p}\nUnable to open file descriptor for socket connection")
        print(" Unable to init the socket connection")
        return 1
    with connection:
        _head(name, words)
        if words.d in os.environ.get("GENIE_PERFTEST_DEAD", "").split(","):
            print(" Completion with error at client\n Failed status 12: wr_id 0 syndrom 0x81\nscnt=128, ccnt=0")
            return 1
        connection.sendall(b"x")
    _table(name, words)
    return 0


def _head(name: str, words: argparse.Namespace) -> None:
    kind = "BW" if name == "ib_write_bw" else "Latency"
    print(f"{LINE}\n                    RDMA_Write {kind} Test\n Dual-port       : OFF\t\tDevice         : {words.d}\n"
          f" Number of qps   : {words.q}\t\tTransport type : IB\n Connection type : RC\t\tUsing SRQ      : OFF\n"
          f" PCIe relax order: ON\n GID index       : {words.x}\n{LINE}")  # fmt: skip


def _table(name: str, words: argparse.Namespace) -> None:
    size, count = int(words.s), int(words.n)
    rates = json.loads(os.environ.get("GENIE_PERFTEST_GBPS", '{"*": 0.45}'))
    gbps = rates.get(f"{words.d}>{words.server}", rates["*"])
    if name == "ib_write_bw":
        print(f"{BW_HEAD}\n {size:<7}    {count:<10}       {gbps:<7.6f}            {gbps:<7.6f}            "
              f"{gbps * 1e3 / 8 / size:<7.6f}\n{LINE}")  # fmt: skip
    else:
        us = 30.0
        print(f"{LAT_HEAD}\n {size:<7} {count:<10}    {us / 2:<7.2f}        {us * 9:<7.2f}      {us:<7.2f}     \t  "
              f"   {us:<7.2f}     \t{1.0:<7.2f}\t\t{us * 2:<7.2f} \t\t{us * 9:<7.2f}\n{LINE}")  # fmt: skip
