"""Refuse skipped tests that could have run here. Used by scripts/test with pytest's JUnit file.

Every reason must match a line of `ALLOWED` whose condition holds on this machine. A reason that nobody listed, or
one that is listed but not true here, is a failure.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

from genie.fabric.probe import probe

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/lab"))
import parts
import switch
import verbs_layer

_HASH_SEED = "/proc/sys/net/ipv4/fib_multipath_hash_seed"


def _is_user() -> bool:
    return os.geteuid() != 0


def _no_lab() -> bool:
    """Root can install what the lab needs, but neither another processor nor packages where apt has none."""
    return bool(parts.missing_tools()) and (_is_user() or os.uname().machine != "x86_64")


def _no_rdma_programs() -> bool:
    return verbs_layer.needed() and verbs_layer.cached(parts.default_cache()) is None


def _no_cgroup_v1() -> bool:
    return not os.access("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", os.W_OK)


ALLOWED: tuple[tuple[str, str, Callable[[], bool]], ...] = (
    (r"no namespaces", "the kernel refuses namespaces", lambda: bool(probe().unfit)),
    (r"no BPF marker", "the BPF marker needs root", lambda: not probe().has("bpf")),
    (r"no ECN marking", "marking needs root or sch_red", lambda: not (probe().has("bpf") or probe().has("red"))),
    (r"(sch_red marks|only the BPF marker)", "this kernel marks by sch_red", lambda: probe().has("red")),
    (r"fabric cannot have the fault", "needs root or another kernel", lambda: _is_user() or not probe().has("nft")),
    (r"needs clang and llvm", "only root can install them", _is_user),
    (r"needs (libfabric|libgloo)-dev", "only root can install them", _is_user),
    (r"needs an sshd", "only root can have one", _is_user),
    (r"no fib_multipath_hash_seed", "kernel older than 6.11", lambda: not Path(_HASH_SEED).exists()),
    (r"cgroup v1 with cpu", "this kernel has cgroup v2, or only root may", _no_cgroup_v1),
    (r"no mount namespace", "only root can have one", _is_user),
    (r"no network namespaces here", "the kernel refuses namespaces", lambda: bool(probe().unfit)),
    (r"root sees every file", "this is root", lambda: not _is_user()),
    (r"chromium", "only root can install it", _is_user),
    (r"needs an sshd", "only root can install it", _is_user),
    (r"no lab: ", "QEMU is not installed, or not for this processor", _no_lab),
    (r"no lab, its kernel", "apt has no kernel package", lambda: parts.cached(parts.default_cache()) is None),
    (r"no lab behind a switch", "no taps or namespaces here", lambda: bool(switch.unfit())),
    (r"no lab with RDMA", "apt has no RDMA programs", _no_rdma_programs),
    (r"not root|needs root|as root", "needs root", _is_user),
    (r"(nobody|ordinary user|unprivileged)", "the user nobody cannot use this environment here", lambda: True),
)
"""Reason (regular expression), why that is no fault, and whether it is true here."""


def main(path: str) -> int:
    """Print the skips by reason; 1 if one is not allowed."""
    reasons: Counter[str] = Counter()
    for skipped in ElementTree.parse(path).getroot().iter("skipped"):  # noqa: S314 (pytest wrote it)
        reasons[(skipped.get("message") or "").strip()] += 1
    bad = 0
    for reason, count in sorted(reasons.items()):
        why = next((why for pattern, why, holds in ALLOWED if re.search(pattern, reason, re.I) and holds()), "")
        print(f"skipped {count}: {reason} [{why or 'NOT ALLOWED: this could run here'}]")
        bad += not why
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
