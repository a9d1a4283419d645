"""Faults: what to break, exactly how, the written undo, and the proof that it happened.

`config` is what the user says, `plan` decides (pure), `session` acts through Ansible inside a fabric, `evidence`
judges, `journal` and `revert` see to it that nothing is left. The device commands themselves are Ansible roles in
the top-level ``faults/``; docs/faults.md has the whole story.
"""
