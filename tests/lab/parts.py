"""What the lab's virtual machines boot: a stock Debian kernel with its modules, and a small initial RAM disk.

Called by `command.py` and by the tests. Packages are downloaded with apt (which checks their signatures) and unpacked
into the cache folder, never installed: nothing of the machine changes. Never starts a virtual machine.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

GUEST = Path(__file__).resolve().parent / "guest"
"""Scripts that run inside a virtual machine."""

EARLY_MODULES = ("virtio_pci", "virtio_net", "9pnet_virtio", "9p", "overlay")
"""What must be loaded before the host's file system can be read; all others come from there."""

EXTRA_PACKAGES = ("busybox-static", "openssh-server", "libwrap0")
"""Programs of the machines that a host need not have: installing an SSH server would start one."""

TOOLS = {"qemu-system-x86_64": "qemu-system-x86", "ssh": "openssh-client", "ssh-keygen": "openssh-client"}
"""Programs that the host must have, and Debian's package of each."""


class LabError(Exception):
    """The lab cannot be had or has failed; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Files to boot from, all inside the cache."""

    kernel: Path
    modules: Path
    release: str
    initrd: Path
    programs: Path
    """Root of the unpacked `EXTRA_PACKAGES`."""
    layer: Path | None = None
    """Files that the machines see where the host has none (`verbs_layer.py`)."""


def default_cache() -> Path:
    """`$XDG_CACHE_HOME/genie-lab`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "genie-lab"


def missing_tools() -> str:
    """What this machine lacks to run the lab, as one sentence; empty if nothing."""
    if not sys.platform.startswith("linux") or os.uname().machine != "x86_64":
        return f"the lab boots x86-64 Linux, this machine is {sys.platform} {os.uname().machine}"
    absent = [tool for tool in TOOLS if which(tool) is None]
    if absent:
        packages = " ".join(sorted({TOOLS[tool] for tool in absent}))
        return f"{', '.join(absent)} not found: sudo apt-get install --no-install-recommends {packages}"
    return ""


def cached(cache: Path) -> Parts | None:
    """The newest kernel that is in the cache already, or None. Touches no network."""
    folders = [path.parent for path in cache.glob("linux-image-*/complete")]
    if not folders:
        return None
    return _parts(max(folders, key=_version_key))


def fetch(cache: Path, kernel_package: Path | None = None) -> Parts:
    """Download and unpack the newest kernel package, or unpack `kernel_package`; return what is there by then.

    Raises:
        LabError: no apt here, no such package in its lists, or the download failed.
    """
    cache.mkdir(parents=True, exist_ok=True)
    with locked(cache / "lock"):
        name = kernel_package.name.split("_")[0] if kernel_package else _newest_package()
        if (cache / name / "complete").exists():
            return _parts(cache / name)
        with tempfile.TemporaryDirectory(dir=cache, prefix="fetching-") as made:
            work = Path(made)
            wanted = list(EXTRA_PACKAGES) if kernel_package else [name, *EXTRA_PACKAGES]
            run(["apt-get", "download", "-qq", *wanted], cwd=work)
            image = kernel_package or next(work.glob("linux-image-*.deb"))
            run(["dpkg-deb", "-x", str(image.resolve()), "image"], cwd=work)
            for package in sorted(work.glob("*.deb")):
                if not package.name.startswith("linux-image-"):
                    run(["dpkg-deb", "-x", package.name, "programs"], cwd=work)
                package.unlink()
            _complete(work)
            shutil.rmtree(cache / name, ignore_errors=True)
            work.rename(cache / name)
            # TemporaryDirectory wants something to remove.
            work.mkdir()
        return _parts(cache / name)


def ready(cache: Path) -> Parts:
    """What is cached, else a fresh download. The initial RAM disk is made again if the guest's scripts are newer."""
    parts = cached(cache) or fetch(cache)
    source = GUEST / "init"
    if parts.initrd.stat().st_mtime_ns < source.stat().st_mtime_ns:
        fresh = parts.initrd.with_suffix(f".{os.getpid()}")
        fresh.write_bytes(initrd(parts.modules, parts.programs))
        fresh.rename(parts.initrd)
    return parts


def initrd(modules: Path, programs: Path) -> bytes:
    """An initial RAM disk: busybox, the early modules in the order they are loaded in, and `guest/init`."""
    order = load_order(modules / "modules.dep", EARLY_MODULES)
    entries: list[tuple[str, int, bytes]] = [
        (name, stat.S_IFDIR | 0o755, b"") for name in ("bin", "modules", "proc", "sys", "dev")
    ]
    entries.append(("bin/busybox", stat.S_IFREG | 0o755, (programs / "bin/busybox").read_bytes()))
    entries.append(("bin/sh", stat.S_IFLNK | 0o777, b"busybox"))
    for number, path in enumerate(order):
        entries.append((f"modules/{number:02}-{Path(path).name}", stat.S_IFREG | 0o644, (modules / path).read_bytes()))
    entries.append(("init", stat.S_IFREG | 0o755, (GUEST / "init").read_bytes()))
    return b"".join(_cpio(entries))


def load_order(dependencies: Path, names: Iterable[str]) -> list[str]:
    """Paths of modules and of all they need, every one after what it needs. From depmod's `modules.dep`.

    Raises:
        LabError: the kernel has no such module.
    """
    needs: dict[str, list[str]] = {}
    paths: dict[str, str] = {}
    for line in dependencies.read_text().splitlines():
        path, _, rest = line.partition(":")
        needs[path] = rest.split()
        paths[Path(path).name.removesuffix(".ko").replace("-", "_")] = path
    order: list[str] = []

    def add(path: str) -> None:
        for need in needs[path]:
            add(need)
        if path not in order:
            order.append(path)

    for name in names:
        if name not in paths:
            raise LabError(f"the kernel package has no module {name}: expected a full Debian kernel, not a cloud one")
        add(paths[name])
    return order


def _cpio(entries: Iterable[tuple[str, int, bytes]]) -> Iterator[bytes]:
    """The "newc" archive of `entries` (name, mode, content), as the kernel unpacks it."""
    for inode, (name, mode, content) in enumerate((*entries, ("TRAILER!!!", 0, b"")), start=1):
        fields = (inode, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0)
        head = b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
        yield head + b"\0" * (-len(head) % 4)
        yield content + b"\0" * (-len(content) % 4)


def _complete(folder: Path) -> None:
    """From unpacked packages to something that boots: the module index and the initial RAM disk."""
    release = next((folder / "image/lib/modules").iterdir()).name
    busybox = folder / "programs/bin/busybox"
    depmod = [tool] if (tool := which("depmod")) else [str(busybox), "depmod"]
    run([*depmod, "-b", str(folder / "image"), release], cwd=folder)
    (folder / "initrd").write_bytes(initrd(folder / "image/lib/modules" / release, folder / "programs"))
    (folder / "complete").touch()


def _parts(folder: Path) -> Parts:
    release = next((folder / "image/lib/modules").iterdir()).name
    return Parts(
        kernel=folder / f"image/boot/vmlinuz-{release}",
        modules=folder / "image/lib/modules" / release,
        release=release,
        initrd=folder / "initrd",
        programs=folder / "programs",
    )


def _newest_package() -> str:
    """The package that Debian's `linux-image-amd64` stands for at present."""
    if which("apt-get") is None or which("dpkg-deb") is None:
        raise LabError("no apt-get here, by which the lab gets a Debian kernel and an SSH server")
    text = run(["apt-cache", "depends", "linux-image-amd64"], cwd=Path("/"))
    found = re.search(r"Depends: (linux-image-\d\S*-amd64)\b", text)
    if found is None:
        raise LabError(
            "apt knows no linux-image-amd64. Expected Debian with package lists (sudo apt-get update); elsewhere give "
            "a Debian kernel package by hand: scripts/lab fetch --kernel linux-image-….deb"
        )
    return found[1]


def _version_key(folder: Path) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", folder.name))


def which(tool: str) -> str | None:
    return shutil.which(tool, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def run(argv: list[str], cwd: Path) -> str:
    done = subprocess.run(argv, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        raise LabError(f"{' '.join(argv)} ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-1000:]}")
    return done.stdout


@contextmanager
def locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
