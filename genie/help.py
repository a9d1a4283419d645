"""The text of ``genie --help``: what can be run, with a line about each.

It reads the first comment line of each file below ``conf/`` and nothing else: no YAML, no Hydra, so that help
answers at once. A file without such a line is listed bare. Called by `genie.cli` only.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

from genie.paths import conf_dir, user_conf_dirs
from genie.schema import DEFAULT_FILES

_WIDTH = 110
_SECTIONS = (
    ("workload", "Workloads (workload=NAME)"),
    ("topology", "Topologies (topology=NAME)"),
    ("fault", "Faults (fault=NAME, fault=[A,B], fault=[] for none)"),
    ("fabric", "Fabrics (fabric=NAME)"),
    ("transport", "Transports (transport=NAME)"),
    ("collective", "Collective algorithms (collective=NAME)"),
    ("experiment", "Ready-made experiments (experiment=NAME)"),
)
_COMMANDS = (
    ("run", "run an experiment (the default, may be left out)"),
    ("doctor", "what this machine can do, and what to do about each no"),
    ("preflight", "measure each pair of hosts: bandwidth, latency, what is out of line"),
    ("bisect", "find the guilty host, NIC, link, switch or change; --resume DIR goes on with a killed search"),
    ("trace info|check PATH", "what a Chakra trace holds, and whether it can be replayed"),
    ("report RUN_DIR", "show a run again: text, page, or for parsers (see its --help); --log sends it to MLflow"),
    ("why RUN [--against RUN]", "what its iterations waited for, and which link or host is to blame"),
    ("resume SWEEP_DIR", "run what a sweep that was cut short still lacks"),
    ("revert [DIR]", "undo what killed runs below DIR (default runs) left behind, by their journals"),
    ("faults list|show NAME", "every fault there is; all about one of them"),
    ("faults apply|status|revert", "put faults on real hosts under any workload, look at them, put them back"),
    ("version", "print the version"),
)
_KEYS = (
    ("workload.iterations=N", "how often the training step is repeated"),
    ("workload.path=PATH", "the trace that workload=chakra replays"),
    ("topology.hosts=N", "how many hosts there are; topology.host_rate=200Mbps how fast their links are"),
    ("fabric.time_dilation=K", "slow workload and links by K, report in model time"),
    ("dry_run=true", "print the plan and touch nothing"),
    ("protocol=aba", "baseline, fault, baseline on one fabric: slowdown and recovery"),
    ("allow_risk=low|medium|high", "the highest risk of a fault; safety.* limits more (docs/safety.md)"),
    ("baseline=auto|none|RUN_DIR", "what to compare with"),
    ("expect=ok|degraded", "exit 1 if the verdict is another one"),
    ("seed=N name=TEXT out=DIR", "random choices, name of the run, folder of runs"),
    ("verify=true", "check every byte that arrives"),
    ("tracking.mlflow.enabled=false", "do not log to MLflow"),
)
_EXAMPLES = (
    ("genie", "the default workload on a healthy network"),
    ("genie +fault=ecn_off +workload=moe", "the same without ECN marking, compared with it"),
    ("genie -m fault=[],ecn_off,link_rate_10pct workload=moe,dp", "a sweep: six runs and one table"),
    ("genie workload=chakra workload.path=traces/ dry_run=true", "the plan for your own traces"),
)


def summary_line(path: Path) -> str:
    """The first comment line of a configuration file, without markers; "" where there is none."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if line.strip() and not line.startswith("#"):
                break
            text = line.lstrip("#").strip()
            if text and not text.startswith("@"):
                return text
    return ""


def summaries(group: str, folders: Sequence[Path]) -> dict[str, str]:
    """Choice → its line, for one group, sorted."""
    found = {path.stem: summary_line(path) for folder in folders for path in (folder / group).glob("*.yaml")}
    return dict(sorted(found.items()))


def help_text() -> str:
    """The whole text."""
    folders = (conf_dir(), *user_conf_dirs())
    parts = [
        "GENIE: what does this network do to my training job? Replays ML workloads as real traffic, no GPU needed.\n",
        "usage: genie [run] [-m] [key=value ...]     genie COMMAND ...\n",
        _section("Commands", _COMMANDS),
    ]
    for group, title in _SECTIONS:
        rows = [
            (f"{name} (default)" if DEFAULT_FILES.get(group) == name else name, line)
            for name, line in summaries(group, folders).items()
        ]
        if rows:
            parts.append(_section(title, rows))
    parts.append(_section("Main keys", _KEYS))
    parts.append(_section("Examples", _EXAMPLES))
    parts.append(
        textwrap.dedent("""\
        Options:
          -m                             one run for each of the comma-separated values
          --cfg job, --info              print the configuration, and where it comes from
          --config-dir DIR               your own files (or the folders of GENIE_CONF_PATH)
          eval "$(genie -sc install=bash)"   completion in this shell

        Exit codes: 0 done, 1 expect= not met, 2 bad input, 3 this machine cannot, 4 run invalid or aborted""")
    )
    return "\n".join(parts)


def _section(title: str, rows: Sequence[tuple[str, str]]) -> str:
    width = max(len(name) for name, _ in rows)
    lines = [f"{title}:"]
    for name, text in rows:
        wrapped = textwrap.wrap(text, max(40, _WIDTH - width - 4)) or [""]
        lines.append(f"  {name:<{width}}  {wrapped[0]}".rstrip())
        lines += [f"  {'':<{width}}  {more}" for more in wrapped[1:]]
    return "\n".join(lines) + "\n"
