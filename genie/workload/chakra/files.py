"""Which files make up a job: a directory, a prefix (``PREFIX.<rank>.et``) or one file.

Finds and names, never opens but for a first look. What is ambiguous is asked back with the choices; a rank without
a file is named.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from genie.errors import TraceError
from genie.workload.chakra import wire
from genie.workload.chakra.sniff import sniff

_NAME = re.compile(r"^(?P<prefix>.*?)(?P<mark>[._-])(?P<rank>[0-9]{1,7})(?P<ending>(?:\.[A-Za-z][A-Za-z0-9]*)+)$")


@dataclass(frozen=True, slots=True)
class Job:
    """The files of one job, rank by rank; ``single`` if the user named one file and not a job."""

    files: dict[int, Path]
    prefix: Path
    single: bool = False


def find(path_text: str) -> Job:
    """The files that ``path_text`` stands for.

    Raises:
        TraceError: nothing there, several jobs there, or ranks missing.
    """
    if not path_text:
        raise TraceError("no path given", hint="workload.path=DIRECTORY, PREFIX (of PREFIX.<rank>.et) or FILE")
    path = Path(path_text).expanduser()
    if path.is_file():
        match = _NAME.match(path.name)
        prefix = match["prefix"] if match else path.stem
        return Job({0: path}, path.parent / prefix, single=True)
    if path.is_dir():
        return _in_directory(path, "", str(path))
    if path.parent.is_dir() and path.name:
        return _in_directory(path.parent, path.name, str(path))
    raise TraceError("no such file or directory", file=str(path))


def _in_directory(folder: Path, wanted: str, told: str) -> Job:
    try:
        names = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise TraceError(f"cannot be listed: {error.strerror or error}", file=told) from error
    jobs: dict[str, dict[int, Path]] = {}
    for name in names:
        match = _NAME.match(name)
        if match is None or not (folder / name).is_file():
            continue
        label = match["prefix"] + match["mark"] + "<rank>" + match["ending"]
        if wanted and match["prefix"] != wanted and label != wanted:
            continue
        rank, known = int(match["rank"]), jobs.setdefault(label, {})
        if rank in known:
            raise TraceError(f"two files are rank {rank}: {known[rank].name} and {name}", file=told)
        known[rank] = folder / name
    if not jobs:
        raise _nothing(folder, wanted, told, names)
    if len(jobs) > 1:
        raise _several(jobs, told)
    label, files = next(iter(jobs.items()))
    return Job(dict(sorted(files.items())), folder / label.split("<rank>")[0][:-1])


def check_complete(job: Job) -> None:
    """Raise TraceError with the missing ranks, unless the files are those of ranks 0 to n - 1."""
    if job.single:
        return
    missing = sorted(set(range(max(job.files) + 1)) - job.files.keys())
    if missing:
        shown = ", ".join(map(str, missing[:8])) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
        found = _listed([file.name for file in job.files.values()])
        message = f"no file for rank {shown}, but there is one for rank {max(job.files)}; found {found}"
        raise TraceError(message, file=str(job.prefix))


def _listed(names: list[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "") if names else "nothing"


def _nothing(folder: Path, wanted: str, told: str, names: list[str]) -> TraceError:
    if wanted:
        near = [name for name in names if name.startswith(wanted[:3])] or names
        return TraceError(f"no file {wanted}.<rank>.et in {folder}; found {_listed(near)}", file=told)
    below = [name for name in names if (folder / name).is_dir()]
    if below:
        return TraceError(f"no trace files, but folders: {_listed(below)}", file=told, hint="name one of them")
    told_kinds = [f"{name} ({_kind(folder / name)})" for name in names[:4]]
    hint = "name one file, or call the files PREFIX.<rank>.et" if names else ""
    return TraceError(f"no files named PREFIX.<rank>.et; found {_listed(told_kinds + names[4:])}", file=told, hint=hint)


def _kind(path: Path) -> str:
    """What a file is, or why that cannot be told."""
    try:
        return sniff(wire.read_bytes(path), str(path)).kind.value
    except TraceError as error:
        return error.message.removeprefix(f"{path}: ")


def _several(jobs: dict[str, dict[int, Path]], told: str) -> TraceError:
    choices = []
    for label, files in sorted(jobs.items())[:8]:
        kind = _kind(next(iter(files.values())))
        choices.append(f"{label} ({len(files)} file{'s' if len(files) > 1 else ''}, {kind})")
    hint = "name one: workload.path=FOLDER/PREFIX, FOLDER/'PREFIX.<rank>.et', or one file"
    return TraceError(f"several jobs: {'; '.join(choices)}", file=told, hint=hint)
