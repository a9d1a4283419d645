"""A bisect in words: its plan before, its final statement after. Pure text; a leaf."""

from __future__ import annotations

import textwrap
from pathlib import Path

from genie.bisect.record import BisectRecord, Culprit

WIDTH = 100
PAGE = "report.html"


def render(record: BisectRecord) -> str:
    """The final statement: who, how sure, why, after how many probes, and what to type to see for oneself."""
    parts = [_headline(record), ""]
    for culprit in record.culprits:
        parts += _culprit(culprit)
    if record.alternatives:
        parts.append("not ruled out" if record.culprits else "most suspected")
        for other in record.alternatives[:5]:
            parts.append(f"  {other.chance:6.1%}  {' and '.join(other.culprits) or 'nobody'}")
        parts.append("")
    if record.others:
        parts.append(f"cleared    {record.clear} of {record.others} measurements that touched no culprit were well")
    parts.append(f"probes     {_probes(record)}")
    if record.beyond_reach:
        parts.append(f"not probed {', '.join(record.beyond_reach)}: no probe could touch them")
    if record.hidden:
        parts.append(f"hidden     {'; '.join(record.hidden)} (put there for this search, which was not told)")
    parts += [f"note       {note}" for note in record.notes]
    parts.append(f"folder     {record.path}")
    if (Path(record.path) / PAGE).is_file():
        parts.append(f"page       {Path(record.path) / PAGE}")
    if look := record.tracking.get("look"):
        parts.append(f"MLflow     {look}")
    parts.append(f"again      {record.reproduce}")
    return "\n".join(parts) + "\n"


def _headline(record: BisectRecord) -> str:
    if record.word == "found":
        names = " and ".join(_say(culprit) for culprit in record.culprits)
        text = f"FOUND  {names}; confidence {record.confidence:.1%}"
        if record.duty < 1:
            text += f"; intermittent, about {record.duty:.0%} of the time"
    elif record.word == "none":
        what = "change" if record.mode == "changes" else "component"
        text = f"NONE  no {what} is guilty of anything that the probes could see; confidence {record.confidence:.1%}"
    else:
        text = f"INCONCLUSIVE  {record.why}"
    return "\n".join(textwrap.wrap(text, WIDTH, subsequent_indent="  "))


def _say(culprit: Culprit) -> str:
    return f"{culprit.name} ({culprit.says})"


def _culprit(culprit: Culprit) -> list[str]:
    lines = [culprit.name, f"  {culprit.bad} of {culprit.asked} measurements that touched it were bad"]
    lines += [f"    {text}" for text in culprit.evidence]
    if culprit.confirm:
        lines.append("  to confirm")
        lines += [f"    {command}" for command in culprit.confirm]
    return [*lines, ""]


def _probes(record: BisectRecord) -> str:
    text = f"{len(record.probes)} for {record.suspects} suspects, {record.duration_s:.0f} s"
    spoilt = sum(bool(probe.spoilt) for probe in record.probes)
    busy = sum(probe.busy for probe in record.probes)
    if spoilt:
        text += f"; {spoilt} said nothing"
    if busy and record.mode == "changes":
        text += (
            f"; {busy} of them may not be believed (genie report RUN says why): the changes may not be what was slow"
        )
    elif busy:
        text += f"; during {busy} the emulating machine was saturated, so what was slow then counts less"
    return text


def markdown(record: BisectRecord) -> str:
    """For MLflow and tickets."""
    return f"**{record.word.upper()}**\n\n```text\n{render(record)}```\n"
