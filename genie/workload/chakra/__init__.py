"""Reader of Chakra execution traces in every form seen in public: see docs/workloads.md.

`genie.workload.load` imports `genie.workload.chakra.read` when a trace is asked for; nothing is imported here, so that
the command line's help does not pay for protobuf.
"""
