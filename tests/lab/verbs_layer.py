"""The machines' RDMA programs where the host has none: a layer of unpacked packages that lies under the host's files.

Called by `command.py` and the tests before a lab is started. As with the kernel, packages are downloaded with apt into
the cache and unpacked, never installed. The host's own files are seen first in a machine, so a host that has some of
this already uses its own.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from parts import LabError, locked, run, which

PACKAGES = (
    *("libibverbs1", "ibverbs-providers", "librdmacm1", "libibumad3", "libnl-3-200", "libnl-route-3-200", "libpci3"),
    *("ibverbs-utils", "perftest", "python3-pyverbs"),
    *("libfabric1", "libfabric-bin", "libpsm2-2", "libpsm-infinipath1", "libatomic1", "libnuma1"),
)
"""Verbs with Soft-RoCE's provider, perftest, pyverbs and libfabric, with the libraries of each."""

PYTHON = "/usr/bin/python3"
"""The distribution's Python, which alone has its pyverbs."""

_PROGRAMS = ("ib_write_bw", "ibv_devinfo", "rdma")


def needed() -> bool:
    """Whether the host lacks any of it."""
    if any(which(program) is None for program in _PROGRAMS) or not Path(PYTHON).exists():
        return True
    asked = subprocess.run([PYTHON, "-c", "import pyverbs.device"], stdin=subprocess.DEVNULL, capture_output=True)
    return asked.returncode != 0


def cached(cache: Path) -> Path | None:
    """The root of the layer, if it is in the cache. Touches no network."""
    folder = _folder(cache)
    return folder / "root" if (folder / "complete").exists() else None


def fetch(cache: Path) -> Path:
    """Download and unpack what is not there yet; the root of the layer.

    Raises:
        LabError: no apt here, no such packages in its lists, or the download failed.
    """
    cache.mkdir(parents=True, exist_ok=True)
    with locked(cache / "lock"):
        if found := cached(cache):
            return found
        if which("apt-get") is None or which("dpkg-deb") is None:
            raise LabError(
                f"no apt-get here, by which the lab gets {', '.join(_PROGRAMS)} and pyverbs for its machines: "
                "install them, or start the lab without RDMA (--no-rdma)"
            )
        folder = _folder(cache)
        with tempfile.TemporaryDirectory(dir=cache, prefix="fetching-") as made:
            work = Path(made)
            run(["apt-get", "download", "-qq", *PACKAGES, *_python_packages()], cwd=work)
            for package in sorted(work.glob("*.deb")):
                # Packages may have /lib or /usr/lib; where /lib is a link to it, a folder /lib would hide the host's.
                run(["dpkg-deb", "-x", package.name, "unpacked"], cwd=work)
                package.unlink()
            _merge(work / "unpacked")
            (work / "unpacked").rename(work / "root")
            (work / "complete").touch()
            shutil.rmtree(folder, ignore_errors=True)
            work.rename(folder)
            work.mkdir()  # TemporaryDirectory wants something to remove
        return folder / "root"


def ready(cache: Path) -> Path | None:
    """The root of the layer, downloaded if need be; None where the host has all of it."""
    return (cached(cache) or fetch(cache)) if needed() else None


def options(cache: Path) -> list[str]:
    """The keeper's options for machines with Soft-RoCE. Raises LabError as `fetch` does."""
    layer = ready(cache)
    return ["--rdma", *(["--layer", str(layer)] if layer else [])]


def _folder(cache: Path) -> Path:
    """One a release of the distribution and list of packages: its libraries must fit the host's."""
    release = Path("/etc/os-release")
    words = (release.read_text() if release.exists() else "") + " ".join(PACKAGES)
    return cache / f"rdma-{hashlib.sha256(words.encode()).hexdigest()[:12]}"


def _python_packages() -> list[str]:
    """The Python library that pyverbs is linked with; the whole Python where the host's is another."""
    text = run(["apt-cache", "depends", "--important", "python3-pyverbs"], cwd=Path("/"))
    found = re.search(r"Depends: libpython(3\.\d+)\b", text)
    if found is None:
        raise LabError("apt knows no python3-pyverbs. Expected Debian or Ubuntu with package lists (apt-get update)")
    packages = [f"libpython{found[1]}"]
    if not Path(PYTHON).exists():
        names = ("libpython{}-minimal", "libpython{}-stdlib", "python{}", "python{}-minimal")
        packages += ["python3", "python3-minimal", "libexpat1", *(name.format(found[1]) for name in names)]
    return packages


def _merge(root: Path) -> None:
    """Move what packages have in /bin, /lib and /sbin below /usr, where it lies on merged systems."""
    for name in ("bin", "lib", "sbin"):
        if (root / name).is_dir():
            shutil.copytree(root / name, root / "usr" / name, symlinks=True, dirs_exist_ok=True)
            shutil.rmtree(root / name)
