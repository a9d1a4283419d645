"""Why an iteration took as long as it did, and which component is to blame (docs/why.md).

    records     what is said, typed: `Why`, `Difference` and their parts
    explain     a run directory to a `Why`; `link_scores`, `host_scores`
    recording   events: messages with both ends, operators by rank and iteration
    network     ports, rates, the routes of flows; multipath: the kernel's choice among equal paths, computed again
    transit     what a message's time on its way consists of
    path        the critical path, walked back
    shares      what part of an iteration each cause, operator, communicator, pair, link and rank carries
    stragglers  who arrived last, and what it cost
    loads, losses, scores, hosts, suspect    evidence against ports and hosts, and whom to look at first
    difference  what part of a slowdown each part carries
    store, text, command    why.json, the text for people, ``genie why``

Called by ``genie why``, by the end of a run, by reports and by the bisect. Reads run directories and nothing else.
"""
