"""Bisect: which component of a fabric, or which change of a configuration, makes a job slow.

Three layers. Pure search, which touches nothing: `suspects`, `belief`, `choice` (components), `sprt`, `ddmin`
(changes). Probes, which turn a choice into a run and a run into answers: `paths`, `probes`, `changes`. The story:
`command`, `search`, `journal`, `record`, `report`. docs/bisect.md explains the mathematics.
"""
