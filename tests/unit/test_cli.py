"""The command line from argv to exit code, without running an experiment.

Texts that people read are golden files over a small configuration tree of its own, so that a new fault or workload
does not change them. GENIE_UPDATE_GOLDEN=1 rewrites them.
"""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from genie import paths
from genie.argv import parse
from genie.cli import COMMANDS, announce, main
from genie.collectives.config import CollectivesConfig
from genie.compose import Composed, compose, sweep_cells
from genie.errors import ConfigError
from genie.help import help_text, summaries
from genie.schema import DEFAULT_CHOICES, ExperimentConfig, parse_config, registry, to_mapping
from genie.sweep import sweep_directory

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "cli"
TREE = [
    "config.yaml",
    "workload/moe.yaml",
    "workload/dp.yaml",
    "topology/leaf_spine.yaml",
    "topology/ring.yaml",
    "transport/tcp.yaml",
    "fabric/netns.yaml",
    "collective/auto.yaml",
    "collective/ring.yaml",
    "fault/link_loss.yaml",
    "fault/link_rate.yaml",
    "fault/link_rate_10pct.yaml",
]


@pytest.fixture
def small_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with few choices; returns its conf/."""
    for name in TREE:
        target = tmp_path / "conf" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(_with_plain_comment(name))
    experiments = tmp_path / "conf" / "experiment"
    experiments.mkdir()
    (experiments / "lossy_dp.yaml").write_text(
        "# @package _global_\n# Data parallel over one lossy link\n"
        "defaults:\n  - override /workload: dp\n  - override /fault: link_loss\nseed: 7\n"
    )
    (experiments / "bare.yaml").write_text("# @package _global_\nseed: 8\n")
    (tmp_path / "faults").symlink_to(ROOT / "faults")
    monkeypatch.setattr(paths, "_PACKAGE", tmp_path / "nowhere")
    monkeypatch.setattr(paths, "_CHECKOUT", tmp_path)
    monkeypatch.delenv(paths.CONF_PATH_VARIABLE, raising=False)
    return tmp_path / "conf"


def _with_plain_comment(name: str) -> str:
    """GENIE's own file, its describing comments replaced by one that stays the same."""
    lines = (ROOT / "conf" / name).read_text().splitlines()
    header = [line for line in lines if line.startswith("# @")]
    return "\n".join([*header, f"# about {Path(name).stem}", *(line for line in lines if not line.startswith("#")), ""])


def golden(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("GENIE_UPDATE_GOLDEN") == "1":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


def composed(*arguments: str) -> Composed:
    (job,) = compose(parse(list(arguments)))
    return job


def config_of(*arguments: str) -> ExperimentConfig:
    job = composed(*arguments)
    return parse_config(job.mapping, job.choices)


# ---------------------------------------------------------------- help


def test_help_is_as_agreed(small_tree: Path) -> None:
    golden("help.txt", help_text() + "\n")


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "help"])
def test_help_lists_every_command(name: str) -> None:
    lines = help_text().partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
    assert name in {line.split()[0] for line in lines if line.startswith("  ") and line[2] != " "}


def test_help_lists_every_choice_with_a_line() -> None:
    text = help_text()
    for group in ("workload", "topology", "fault", "fabric", "transport"):
        found = summaries(group, [paths.conf_dir()])
        assert found
        for name, line in found.items():
            assert line, f"conf/{group}/{name}.yaml needs a first comment line"
            assert f"  {name}" in text


def test_help_imports_nothing_heavy() -> None:
    code = "import sys, genie.cli; genie.cli.main(['--help']); print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert not loaded & {
        "hydra",
        "omegaconf",
        "numpy",
        "networkx",
        "yaml",
        "mlflow",
        "rich",
        "pyroute2",
        "ansible_runner",
    }


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["run", "--help"], ["help"], ["seed=1", "--help"]])
def test_help_in_every_place(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    assert "Workloads (workload=NAME)" in capsys.readouterr().out


# ---------------------------------------------------------------- errors

MISTAKES = """\
+fualt=ecn_off
fualt=ecn_off
sede=3
iterations=1
hosts=4
chunk_bytes=1
workload.seed=-1
baseline=
baseline=nope
fault=link_los
+fault=link_rate_10
workload=mo
transport=rdma
experiment=nope
~fault
~seed
fault=null
fault=
fault
fault=link_loss,link_rate
fault=[link_loss] +fault=[link_rate]
fault=link_loss fault=link_rate
fault=[link_loss,link_loss]
fault={a:1}
fault.link_loss.count=2
fault=link_loss fault.link_loss.cuont=2
fault=link_loss fault.link_loss.count=0
workload=[moe,dp]
workload=moe,dp
workload=null
workload=../moe
workload@x=moe
workload/x=moe
workload.layer=3
+workload.layer=3
workload.layers=three
workload.layers=2.5
workload.layers=null
workload.layers=true
workload.name=dp
topology.ecn=maybe
seed=abc
seed=1.5
seed=-1
seed=1,2
seed=choice(1,2)
seed=1 seed=2
timeout=30
timeout=0
expect=okk
record=false
record.message=false
tracking.mlflow.enabled=yes
transport.base_port=80
transport.spin=often
name=a/b
out=
name=${nope}
name=${seed
workload._target_=os.system
+hydra.callbacks.x={_target_:os.system}
hydra/launcher=joblib
hydra.nope=3
hydra.sweep.dir=x
=3
[1]
docter
--cfg jobb
--cfgg job
--cfg
--config-name x
--config-dir /nonexistent
-m --cfg job
-m workload=moe,mo
-m seed=1,x
-m experiment=lossy_dp,bare
trace
trace inf x
report
report --lg x
report a b
report /nonexistent
revert a b
revert --all
revert /nonexistent
doctor x
version x
"""


def test_every_mistake_is_one_clear_sentence(small_tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = []
    for words in MISTAKES.splitlines():
        code = main(shlex.split(words))
        text = capsys.readouterr()
        blocks.append(f"$ genie {words}\n{text.out}{text.err}[exit {code}]\n")
    golden("errors.txt", "\n".join(blocks))
    assert all(block.endswith("[exit 2]\n") for block in blocks)
    assert not any("Traceback" in block or "++" in block for block in blocks)


def test_debug_keeps_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GENIE_DEBUG", "1")
    with pytest.raises(ConfigError):
        main(["fualt=x"])


def test_interrupt_ends_with_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(arguments: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("genie.cli._run", interrupted)
    assert main(["seed=1"]) == 130
    assert capsys.readouterr().err == "genie: interrupted\n"


def test_revert_says_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["revert", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"no run below {tmp_path} injected a fault\n"
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "faults.journal").write_text("")
    assert main(["revert", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/a: nothing was left open\n"


def test_trace_check_and_info(capsys: pytest.CaptureFixture[str]) -> None:
    folder = sorted(path.parent for path in (ROOT / "tests" / "data" / "traces").rglob("*.et"))[0]
    assert main(["trace", "info", str(folder)]) == 0
    assert "operators" in capsys.readouterr().out
    assert main(["trace", "info", str(folder / "nothing")]) == 2
    assert capsys.readouterr().err.startswith("genie: ")


# ---------------------------------------------------------------- composition


@pytest.mark.parametrize(
    "spellings",
    [
        ["fault=link_loss", "+fault=link_loss", "fault=[link_loss]", "+fault=[link_loss]"],
        ["fault=[link_loss,link_rate]", "+fault=[link_loss,link_rate]"],
        ["workload=dp", "+workload=dp"],
        ["topology=ring", "+topology=ring"],
        ["", "workload=moe", "+workload=moe topology=leaf_spine", "fault=[]", "+fault=[]"],
        ["workload.layers=3", "+workload.layers=3", "++workload.layers=3", "workload=moe workload.layers=3"],
        ["fault=link_loss fault.link_loss.count=2", "fault.link_loss.count=2 +fault=[link_loss]"],
        ["--config-dir . seed=3", "seed=3 -cd ."],
        ["experiment=lossy_dp", "+experiment=lossy_dp"],
        ["experiment=lossy_dp fault=link_rate", "+experiment=lossy_dp +fault=link_rate"],
    ],
    ids=lambda spellings: spellings[0] or "nothing",
)
def test_spellings_compose_alike(
    spellings: list[str], small_tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)
    first, *others = [composed(*shlex.split(words)).mapping for words in spellings]
    for other in others:
        assert other == first


def test_defaults_are_named_as_defaults(small_tree: Path) -> None:
    assert announce(config_of("workload=dp", "fault=link_loss")) == (
        "genie: workload=dp  topology=leaf_spine (default)  transport=tcp (default)  fabric=netns (default)  "
        "fault=[link_loss]"
    )


def test_experiment_files_set_what_the_command_line_does_not(small_tree: Path) -> None:
    config = config_of("experiment=lossy_dp")
    assert (config.choices["workload"].name, list(config.fault), config.seed) == ("dp", ["link_loss"], 7)
    config = config_of("experiment=lossy_dp", "workload=moe", "fault=[]", "seed=9")
    assert (config.choices["workload"].name, list(config.fault), config.seed) == ("moe", [], 9)
    assert config_of("experiment=bare").choices["workload"].name == "moe"


def test_one_seed_for_all_parts(small_tree: Path) -> None:
    config = config_of("seed=11")
    assert (config.workload.seed, config.fabric.seed) == (11, 11)
    assert config_of("seed=11", "fabric.seed=3").fabric.seed == 3


def test_sweep_is_the_product_in_order(small_tree: Path) -> None:
    cells = sweep_cells(parse(["-m", "+fault=[],link_loss", "workload=moe,dp", "seed=3"]))
    assert [(list(c.mapping.get("fault") or []), c.choices["workload"].name) for c, _ in cells] == [
        ([], "moe"),
        ([], "dp"),
        (["link_loss"], "moe"),
        (["link_loss"], "dp"),
    ]
    assert [factors for _, factors in cells][1:3] == [
        {"fault": "none", "workload": "dp"},
        {"fault": "link_loss", "workload": "moe"},
    ]


def test_user_folders_add_choices(small_tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = tmp_path / "mine"
    (mine / "workload").mkdir(parents=True)
    (mine / "workload" / "big.yaml").write_text("# my big model\nname: moe\nlayers: 9\n")
    monkeypatch.setenv(paths.CONF_PATH_VARIABLE, str(mine))
    config = config_of("workload=big")
    assert (config.choices["workload"].kind, config.choices["workload"].name, config.workload.layers) == (
        "moe",
        "big",
        9,
    )
    assert "  big            my big model" in help_text()
    (mine / "workload" / "moe.yaml").write_text("name: moe\n")
    with pytest.raises(ConfigError, match="has the name of GENIE's own"):
        config_of("workload=big")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("name: [moe\n", "big.yaml, line 2: not valid YAML"),
        ("name: moe\nname: dp\n", "big.yaml, line 2: not valid YAML: found duplicate key name"),
        ("- moe\n", "workload: expected keys and values, found a list"),
        ("name: mo\n", "workload.name: there is no workload 'mo'; did you mean 'moe'?"),
        ("layers: 3\n", "workload.name: file workload/big.yaml must say which kind it is; choose one of:"),
        ("name: moe\nlayer: 3\n", "workload.layer: there is no such key; did you mean 'layers'?"),
        ("defaults: [nothing]\n", "nothing"),
        ("name: moe\ndevice: ${device}\n", "workload.device: interpolation key 'device' not found"),
    ],
    ids=["broken", "a key twice", "a list", "no such kind", "no kind", "no key", "no default", "interpolation"],
)  # fmt: skip
def test_mistakes_in_user_files_are_named(small_tree: Path, tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "mine" / "workload").mkdir(parents=True)
    (tmp_path / "mine" / "workload" / "big.yaml").write_text(content)
    with pytest.raises(ConfigError) as caught:
        config_of("--config-dir", str(tmp_path / "mine"), "workload=big")
    assert said in str(caught.value)


def test_user_files_never_name_code(small_tree: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    (mine / "workload").mkdir(parents=True)
    (mine / "experiment").mkdir(parents=True)
    (mine / "workload" / "evil.yaml").write_text("name: moe\ndevice: {_target_: os.system}\n")
    (mine / "experiment" / "hook.yaml").write_text(
        "# @package _global_\nhydra: {callbacks: {x: {_target_: os.system, command: 'exit 1'}}}\n"
    )
    for arguments, compose_ in (
        (["workload=evil"], compose),
        (["experiment=hook"], compose),
        (["-m", "experiment=hook", "seed=1,2"], sweep_cells),
    ):
        with pytest.raises(ConfigError, match="never names code"):
            compose_(parse(["--config-dir", str(mine), *arguments]))
    assert main(["--cfg", "job", "--config-dir", str(mine), "experiment=hook"]) == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the file fault/mine.yaml makes no fault of its own"),
        ("# @package safety\nmax_ttl: 2h\n", "the file fault/mine.yaml makes no fault of its own"),
        ("# @package fault.link_rate\nrole: port_rate\ntargets: [h0]\nparameters: {rate: 1%}\n", "makes no fault of"),
        ("# @package fault.mine\nrole: port_rate\ntargets: &a [*a]\n", "contains itself"),
    ],
    ids=["empty", "of another group", "of another's name", "within itself"],
)
def test_a_file_that_makes_no_fault_is_refused_not_ignored(tmp_path, text, words):
    (tmp_path / "fault").mkdir()
    (tmp_path / "fault" / "mine.yaml").write_text(text)
    with pytest.raises(ConfigError, match=words):
        compose(parse(["--config-dir", str(tmp_path), "fault=[link_rate,mine]"]))


@pytest.mark.parametrize(
    ("group", "name"),
    [(group, path.stem) for group in (*DEFAULT_CHOICES, "fault", "collective", "experiment")
     for path in sorted((ROOT / "conf" / group).glob("*.yaml"))],
)  # fmt: skip
def test_every_choice_composes_and_validates(group: str, name: str) -> None:
    config = config_of(f"{group}={name}")
    if group in DEFAULT_CHOICES:
        assert config.choices[group].name == name
    if group == "fault":
        assert name in config.fault


@pytest.mark.parametrize("group", [*DEFAULT_CHOICES])
def test_every_kind_has_its_file(group: str) -> None:
    assert set(registry(group)) == {path.stem for path in (ROOT / "conf" / group).glob("*.yaml")}


@pytest.mark.parametrize("group", [*DEFAULT_CHOICES])
def test_files_and_dataclasses_agree_on_every_default(group: str) -> None:
    """A run from a file and a run from the dataclass alone are the same run."""
    assert config_of().collective == CollectivesConfig()
    for name, (cls, _) in registry(group).items():
        made = getattr(config_of(f"{group}={name}"), group)
        assert made == cls()


@pytest.mark.parametrize(
    "words", ["", "fault=[link_loss,link_rate]", "workload=dp name=x expect=ok", "workload.bucket=1MiB seed=5"]
)
def test_config_yaml_reads_back_equal(words: str, small_tree: Path) -> None:
    config = config_of(*shlex.split(words))
    again = parse_config(yaml.safe_load(yaml.safe_dump(to_mapping(config))))
    for field in (
        "workload",
        "topology",
        "transport",
        "fabric",
        "fault",
        "collective",
        "seed",
        "name",
        "expect",
        "record",
    ):
        assert getattr(again, field) == getattr(config, field)


# ---------------------------------------------------------------- what Hydra shows


def test_cfg_job_prints_the_configuration(small_tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["+fault=link_loss", "--cfg", "job", "workload.layers=3"]) == 0
    shown = OmegaConf.create(capsys.readouterr().out)
    assert shown.workload.layers == 3
    assert list(shown.fault) == ["link_loss"]


def test_info_and_completion_work(small_tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--info", "defaults", "workload=dp"]) == 0
    assert "workload/dp" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main(["--hydra-help"])
    assert ended.value.code == 0
    assert "Hydra" in capsys.readouterr().out
    assert main(["-sc", "install=bash"]) == 0
    assert "complete -o nospace -o default -F hydra_bash_completion" in capsys.readouterr().out


def test_sweep_directories_do_not_meet(tmp_path: Path) -> None:
    first = sweep_directory(str(tmp_path))
    first.mkdir(parents=True)
    second = sweep_directory(str(tmp_path))
    assert second != first
    assert first.parent == second.parent == tmp_path / "sweeps"
    assert not second.exists()
