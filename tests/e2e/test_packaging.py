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
from genie_command import SMALL, read, run_directories

from genie.fabric.probe import probe

ROOT = Path(__file__).resolve().parents[2]
LEFT_OUT = shutil.ignore_patterns(
    ".*", "build", "dist", "runs", "mlruns", "__pycache__", "*.so", "*.egg-info", "experiments", "bench", "tests"
)
ALONE = ("--no-deps", "--no-index", "--no-build-isolation")
UNOPTIMISED = ("--config-settings", "cmake.build-type=Debug")  # half the time; what is optimised is tested elsewhere
WHERE = """
import json, genie
from genie.paths import conf_dir, playbooks_dir, roles_dir
def files(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
from genie.engine.binaries import find_binary
from genie.faults.config import available_faults
print(json.dumps({
    "package": genie.__file__,
    "conf": str(conf_dir()),
    "roles": files(roles_dir()),
    "playbooks": files(playbooks_dir()),
    "programs": [str(find_binary(name)) for name in ("genie-agent", "genie-port", "genie-warden", "genie-load")],
    "faults": sorted(available_faults()),
}))
"""


def files(folder: Path) -> list[str]:
    """Every file below ``folder`` that is kept."""
    kept = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return sorted(str(path.relative_to(folder)) for path in kept)


def run(*argv: str | Path, cwd: Path, unless: str = "") -> str:
    """What a command says that succeeds, or says ``unless``."""
    done = subprocess.run([str(a) for a in argv], cwd=cwd, capture_output=True, text=True, timeout=290)
    excused = bool(unless) and unless in done.stdout
    assert done.returncode == 0 or excused, f"{argv}\n{done.stdout}\n{done.stderr}"
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
        run(*pip, "wheel", *ALONE, *UNOPTIMISED, "-w", folder, source, cwd=folder)
        (wheel,) = folder.glob("genie_fabric-*.whl")
        names = zipfile.ZipFile(wheel).namelist()
        assert not [name for name in names if name.startswith(("tests/", "bench/", "native/"))]
        run(*pip, "--python", interpreter, "install", "--no-deps", "--no-index", wheel, cwd=folder)
        source.rename(folder / "moved-away")
    else:
        run(*pip, "--python", interpreter, "install", *ALONE, *UNOPTIMISED, "-e", source, cwd=folder)
    yield interpreter
    if not source.exists():
        (folder / "moved-away").rename(source)


def test_data_folders_and_executables_are_found(python: Path, tmp_path: Path) -> None:
    found = json.loads(run(python, "-c", WHERE, cwd=tmp_path))
    assert not found["package"].startswith(str(ROOT))
    assert not found["conf"].startswith(str(ROOT))
    assert [path for path in found["programs"] if path.startswith(str(ROOT))] == []
    assert found["faults"] == sorted(path.stem for path in (ROOT / "conf" / "fault").glob("*.yaml"))
    assert found["roles"] == files(ROOT / "faults")
    assert {Path(name).parts[1] for name in found["roles"]} >= {
        "mechanism.yml",
        "platforms",
        "meta",
        "tasks",
        "README.md",
    }
    assert found["playbooks"] == files(ROOT / "playbooks")
    assert {"fault.yml", "deploy.yml", "clean.yml"} <= set(found["playbooks"])


def test_the_command_works_from_anywhere(python: Path, tmp_path: Path) -> None:
    genie = python.parent / "genie"
    assert "Workloads (workload=NAME)" in run(genie, "--help", cwd=tmp_path)
    assert run(genie, "version", cwd=tmp_path).startswith("genie ")
    shown = run(genie, "--cfg", "job", "+fault=link_rate_10pct", cwd=tmp_path)
    assert "link_rate_10pct:" in shown
    assert "${" not in shown.replace("${seed}", "").replace("${oc.select:transport.congestion_control,cubic}", "")
    assert list(tmp_path.iterdir()) == []


def test_a_fault_is_shown_made_and_taken_back_from_anywhere(python: Path, tmp_path: Path) -> None:
    genie = python.parent / "genie"
    assert "tc qdisc change" in run(genie, "faults", "show", "link_rate_10pct", cwd=tmp_path)
    assert "tested against a stand-in, not on hardware" in run(genie, "faults", "list", "--support", cwd=tmp_path)
    assert list(tmp_path.iterdir()) == []
    if probe().unfit:
        pytest.skip(f"no namespaces: {probe().unfit}")
    words = (genie, "fault=link_rate_10pct", *SMALL, "tracking.mlflow.enabled=false", "out=runs")
    # Other tests run beside this one: what it measured may not be believed, which is none of the package's business.
    run(*words, cwd=tmp_path, unless="emulator saturated")
    (directory,) = run_directories(tmp_path / "runs")
    (fault,) = read(directory, "faults.json")["faults"]
    assert (fault["state"], fault["reverted"]) == ("in_effect", True)


def test_version_is_the_distributions(python: Path, tmp_path: Path) -> None:
    code = "import genie, importlib.metadata as m; print(genie.__version__ == m.version('genie-fabric'))"
    assert run(python, "-c", code, cwd=tmp_path).strip() == "True"
