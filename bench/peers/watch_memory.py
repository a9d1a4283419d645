"""Prints, again and again, the mean proportional set size in MB of all genie-agent processes it can see."""

from pathlib import Path


def pss_mb(process: Path) -> float | None:
    try:
        if (process / "comm").read_text().strip() != "genie-agent":
            return None
        lines = (process / "smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    return next(int(line.split()[1]) / 1000 for line in lines if line.startswith("Pss:"))


while True:
    sizes = [size for p in Path("/proc").iterdir() if p.name.isdigit() and (size := pss_mb(p)) is not None]
    if len(sizes) >= 64:
        print(sum(sizes) / len(sizes), flush=True)
