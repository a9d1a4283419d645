"""Agents on hosts, and the controller they dial back to (docs/formats.md §4). Knows no results and no faults."""
