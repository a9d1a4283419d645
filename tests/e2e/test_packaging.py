"""A wheel and an editable install, each in a fresh environment, find configuration, roles, plays and executables.

Dependencies come from this environment's folder by a .pth file, which does not activate its editable hooks.
"""

import json
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LEFT_OUT = shutil.ignore_patterns(
    ".*", "build", "dist", "runs", "mlruns", "__pycache__", "*.so", "*.egg-info", "experiments", "bench", "tests"
)
WHERE = """
import json, genie
from genie.paths import conf_dir, playbooks_dir, roles_dir
from genie.engine.binaries import find_binary
from genie.faults.config import available_faults
print(json.dumps({
    "package": genie.__file__,
    "conf": str(conf_dir()),
    "roles": sorted(p.name for p in roles_dir().iterdir() if p.is_dir()),
    "playbooks": sorted(p.name for p in playbooks_dir().glob("*.yml")),
    "agent": str(find_binary("genie-agent")),
    "faults": sorted(available_faults()),
}))
"""


def run(*argv: str | Path, cwd: Path) -> str:
    done = subprocess.run([str(a) for a in argv], cwd=cwd, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, f"{argv}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def fresh_environment(folder: Path) -> Path:
    """A virtual environment without pip whose path ends with this one's packages; returns its interpreter."""
    venv.create(folder, with_pip=False, symlinks=True)
    site = next((folder / "lib").glob("python*/site-packages"))
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout, so that nothing is built in this one."""
    copy = tmp_path_factory.mktemp("source") / "genie"
    shutil.copytree(ROOT, copy, ignore=LEFT_OUT, symlinks=True)
    return copy


@pytest.fixture(scope="module", params=["wheel", "editable"])
def python(request: pytest.FixtureRequest, source: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp(request.param)
    interpreter = fresh_environment(folder / "venv")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    if request.param == "wheel":
        run(*pip, "wheel", "--no-deps", "--no-index", "--no-build-isolation", "-w", folder, source, cwd=folder)
        (wheel,) = folder.glob("genie_fabric-*.whl")
        names = zipfile.ZipFile(wheel).namelist()
        assert not [name for name in names if name.startswith(("tests/", "bench/", "native/"))]
        run(*pip, "--python", interpreter, "install", "--no-deps", "--no-index", wheel, cwd=folder)
        source.rename(folder / "moved-away")
    else:
        run(
            *pip,
            "--python",
            interpreter,
            "install",
            "--no-deps",
            "--no-index",
            "--no-build-isolation",
            "-e",
            source,
            cwd=folder,
        )
    yield interpreter
    if not source.exists():
        (folder / "moved-away").rename(source)


def test_data_folders_and_executables_are_found(python: Path, tmp_path: Path) -> None:
    found = json.loads(run(python, "-c", WHERE, cwd=tmp_path))
    assert not found["package"].startswith(str(ROOT))
    assert not found["conf"].startswith(str(ROOT))
    assert not found["agent"].startswith(str(ROOT))
    assert found["faults"] == sorted(path.stem for path in (ROOT / "conf" / "fault").glob("*.yaml"))
    assert found["roles"] == sorted(path.name for path in (ROOT / "faults").iterdir() if path.is_dir())
    assert found["playbooks"] == sorted(path.name for path in (ROOT / "playbooks").glob("*.yml"))


def test_the_command_works_from_anywhere(python: Path, tmp_path: Path) -> None:
    genie = python.parent / "genie"
    assert "Workloads (workload=NAME)" in run(genie, "--help", cwd=tmp_path)
    assert run(genie, "version", cwd=tmp_path).startswith("genie ")
    shown = run(genie, "--cfg", "job", "+fault=link_rate_10pct", cwd=tmp_path)
    assert "link_rate_10pct:" in shown
    assert "${" not in shown.replace("${seed}", "").replace("${transport.congestion_control}", "")
    assert list(tmp_path.iterdir()) == []


def test_version_is_the_distributions(python: Path, tmp_path: Path) -> None:
    code = "import genie, importlib.metadata as m; print(genie.__version__ == m.version('genie-fabric'))"
    assert run(python, "-c", code, cwd=tmp_path).strip() == "True"
