"""Where the native executables are: ``genie-agent``, ``genie-port``, ``genie-warden``, ``genie-load``.

Called by fabrics, launchers, faults and doctor. A wheel has them in ``genie/bin``; a checkout also in a build folder,
of which the newest copy counts. ``GENIE_BIN_PATH`` names folders to look in first: a build with sanitizers, say, which
is never taken unasked. Never builds anything.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from genie.errors import EnvironmentUnfit

BIN_PATH_VARIABLE = "GENIE_BIN_PATH"

_PACKAGE = Path(__file__).resolve().parent.parent
_INSTRUMENTED = frozenset({"native-asan", "native-tsan", "native-fuzz"})  # slow on purpose, never measured with
_BUILD_PATTERNS = ("build/{name}", "build/*/{name}", "build/*/*/{name}", "native/build/{name}", "native/build/*/{name}")


def _candidates(name: str) -> Iterator[Path]:
    for folder in filter(None, os.environ.get(BIN_PATH_VARIABLE, "").split(os.pathsep)):
        yield Path(folder).absolute() / name
    yield _PACKAGE / "bin" / name
    checkout = _PACKAGE.parent
    if (checkout / "pyproject.toml").is_file():
        built = [path for pattern in _BUILD_PATTERNS for path in checkout.glob(pattern.format(name=name))]
        usable = [path for path in built if path.is_file() and not _INSTRUMENTED.intersection(path.parts)]
        yield from sorted(usable, key=lambda path: -path.stat().st_mtime)


def find_binary(name: str) -> Path:
    """Absolute path of executable ``name``. Raises EnvironmentUnfit if it was not built."""
    for path in _candidates(name):
        if path.is_file() and os.access(path, os.X_OK):
            return path
    raise EnvironmentUnfit(
        f"native program {name!r} was not found in {_PACKAGE / 'bin'} or a build folder of the checkout",
        hint="build it with: pip install -e . (needs cmake and a C++20 compiler)",
    )
