"""Studies: questions about networks under training jobs, answered by `genie -m` and put beside closed forms.

``experiments/run NAME`` runs one. A study is a folder with ``study.yaml`` (the question and the lines that are run),
``study.py`` (what the runs tell) and what came out: README.md, table.csv, figure.svg. docs/studies.md lists them.
"""
