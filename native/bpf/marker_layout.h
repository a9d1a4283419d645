/* What the marking program and genie-port share: the three maps' values. Keys are interface indexes, which
 * the address plan makes unique over all namespaces of a fabric. Included from C (BPF) and C++.
 *
 * Each map has one writer, so that no update can undo another's: "config" whoever decides about marking,
 * "shape" whoever follows the port's shaper (the sampler), "state" the program. Sizes are in bytes on the
 * wire, Ethernet header included, as tbf counts them. */
#pragma once

#include <linux/types.h>

/* Probabilities are fractions of 2^32. */
struct marker_config {
    __u32 enabled; /* 0: keep the phantom queue and the counters going, mark nothing */
    __u32 pmax;
    __u64 kmin_bytes;
    __u64 kmax_bytes;
};

struct marker_shape {
    __u64 rate_bytes_per_s; /* the port's own rate: the phantom queue drains at it */
    __u64 limit_bytes;      /* the phantom queue is never longer */
};

struct marker_state {
    __u64 finish_ns; /* CLOCK_MONOTONIC at which the phantom queue will be empty */
    __u64 packets;
    __u64 bytes;
    __u64 ect;          /* arrived ECN-capable, CE included */
    __u64 ce_arrived;   /* arrived already CE-marked */
    __u64 above_kmin;   /* met a queue above Kmin */
    __u64 ect_over;     /* ECN-capable and due for a mark, marked or not */
    __u64 not_ect_over; /* due for a mark but not ECN-capable: passed as they were */
    __u64 ce_marked;    /* marked here */
    __u64 peak_bytes;   /* longest queue that a packet met */
};
