"""Why an iteration took as long as it did, and which component is to blame (docs/why.md).

Called by ``genie why``, by the end of a run, by reports and by the bisect. Reads run directories and nothing else.
"""
