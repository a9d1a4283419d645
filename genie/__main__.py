"""``python -m genie``: the command line, as the console script has it."""

from genie.cli import entry

if __name__ == "__main__":
    entry()
