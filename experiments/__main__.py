"""``python -m experiments NAME [--smallest] [--out DIR]``: run a study, and write what it found into its folder."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from experiments.study import HERE, load, machine, markdown, measure, names, refusals, teller, write
from genie.errors import EXIT_UNFIT, GenieError


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code as genie's: 0, 2 for a name that is none, 3 where files cannot be written, 4 where no run may be
    believed.
    """
    parser = argparse.ArgumentParser(prog="experiments/run", description="Run a study (docs/studies.md).")
    parser.add_argument("name", help=f"one of {', '.join(names())}, or all")
    parser.add_argument("--smallest", action="store_true", help="few iterations, to see that it works; kept apart")
    parser.add_argument("--out", type=Path, default=Path("runs/studies"), help="folder of its runs (runs/studies)")
    given = parser.parse_args(arguments)
    worst = 0
    for name in names() if given.name == "all" else [given.name]:
        try:
            _run(name, given.smallest, given.out)
        except GenieError as error:
            print(f"experiments/run: {name}: {error}", file=sys.stderr)
            worst = worst or int(error.exit_code)
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            print(f"experiments/run: {name}: {where}{error.strerror}; --out DIR takes runs elsewhere", file=sys.stderr)
            worst = worst or EXIT_UNFIT
        except KeyboardInterrupt:
            return 130
    return worst


def _run(name: str, smallest: bool, out: Path) -> None:
    study = load(name, smallest=smallest)
    folder = (out / f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{name}").absolute()
    began_s = time.monotonic()
    print(f"{study.title}: {study.question}\nruns: {folder}", flush=True)
    rows = measure(study, folder, lambda words: print(f"  {words}", flush=True))
    telling = teller(name)(study, rows)
    print("\n".join((machine(rows), "", markdown(telling.table), "", *telling.said, *refusals(rows))))
    wrote = write(telling, rows, folder if smallest else HERE / name, new=smallest)
    print(f"wrote {', '.join(path.name for path in wrote)} in {wrote[0].parent} ({time.monotonic() - began_s:.0f} s)")


if __name__ == "__main__":
    sys.exit(main())
