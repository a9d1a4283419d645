"""What a run left behind, and what it means. Knows no namespaces, no sockets, no printing.

    rundir      the run directory: every file of docs/run-directory.md, written atomically, read back typed
    records     the typed content of those files (plan, operators, faults) and the JSON codec they share
    ports       reader of `ports.smp`, the queue depth of every port over time
    statistics  percentiles, block bootstrap, the margin between runs; pure numpy
    metrics     `measure(rundir) -> Metrics`: docs/metrics.md as code
    collectives the rows by kind, bytes and communicator; bus bandwidth as nccl-tests counts it
    messages    send and receive records paired: completion times of messages
    compare     the baseline of a run, slowdowns with confidence, the verdict
    timeline    the Perfetto/Chrome trace

The order of a run: `RunDir.create` → its ``write_*`` methods → `measure` → `compare.judge` → `write_results` →
`timeline.write_timeline`. Reports and tracking read the directory and nothing else.
"""
