/* ECN marking for a port whose kernel has no sch_red: a phantom queue at clsact egress.
 *
 * The queue is one number, the time at which it will be empty, so that packets on several CPUs can update it
 * with a single compare-and-swap. It drains at exactly the rate of the port's tbf and is capped at the port's
 * limit (an uncapped one keeps marking for seconds after an overload). Packets are marked as DCQCN's switches
 * do it: with a probability that rises from 0 at Kmin to Pmax at Kmax, and always above. Packets that are not
 * ECN-capable pass.
 *
 * Loaded and configured by genie-port, attached by tc. It never drops, and lets later filters run. */

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/pkt_cls.h>

#include "marker_layout.h"

#define SEC(name) __attribute__((section(name), used))
#define NS_PER_S 1000000000ULL
#define CAS_ATTEMPTS 8

struct map_definition {
    __u32 type, key_size, value_size, max_entries, flags;
};

struct map_definition config SEC("maps") = {
    .type = BPF_MAP_TYPE_HASH,
    .key_size = sizeof(__u32),
    .value_size = sizeof(struct marker_config),
    .max_entries = 1 << 17,
    .flags = BPF_F_NO_PREALLOC,
};

struct map_definition shape SEC("maps") = {
    .type = BPF_MAP_TYPE_HASH,
    .key_size = sizeof(__u32),
    .value_size = sizeof(struct marker_shape),
    .max_entries = 1 << 17,
    .flags = BPF_F_NO_PREALLOC,
};

struct map_definition state SEC("maps") = {
    .type = BPF_MAP_TYPE_HASH,
    .key_size = sizeof(__u32),
    .value_size = sizeof(struct marker_state),
    .max_entries = 1 << 17,
    .flags = BPF_F_NO_PREALLOC,
};

static void *(*const map_lookup)(void *map, const void *key) = (void *)BPF_FUNC_map_lookup_elem;
static __u64 (*const ktime_get_ns)(void) = (void *)BPF_FUNC_ktime_get_ns;
static __u32 (*const random_u32)(void) = (void *)BPF_FUNC_get_prandom_u32;
static long (*const store_bytes)(void *skb, __u32 offset, const void *from, __u32 size,
                                 __u64 flags) = (void *)BPF_FUNC_skb_store_bytes;
static long (*const replace_checksum)(void *skb, __u32 offset, __u64 from, __u64 to,
                                      __u64 size) = (void *)BPF_FUNC_l3_csum_replace;

static __u16 to_network(__u16 value) { return __builtin_bswap16(value); }

/* Put a packet into the phantom queue; the bytes that were in it before. */
static __attribute__((always_inline)) __u64 enqueue(struct marker_state *port,
                                                    const struct marker_shape *shaper, __u64 size_bytes) {
    __u64 now = ktime_get_ns();
    __u64 cost = size_bytes * NS_PER_S / shaper->rate_bytes_per_s;
    __u64 latest = now + shaper->limit_bytes * NS_PER_S / shaper->rate_bytes_per_s;
    __u64 seen = *(volatile __u64 *)&port->finish_ns;
    __u64 begin = now;
#pragma unroll
    for (int attempt = 0; attempt < CAS_ATTEMPTS; attempt++) {
        begin = seen > now ? seen : now;
        __u64 end = begin + cost;
        if (end > latest) end = latest;
        __u64 found = __sync_val_compare_and_swap(&port->finish_ns, seen, end);
        if (found == seen) break;
        seen = found;
    }
    if (begin > latest) begin = latest;
    return (begin - now) * shaper->rate_bytes_per_s / NS_PER_S;
}

static __attribute__((always_inline)) int is_due(const struct marker_config *model, __u64 queue_bytes) {
    if (queue_bytes <= model->kmin_bytes) return 0;
    if (queue_bytes >= model->kmax_bytes) return 1;
    __u64 chance = model->pmax * (queue_bytes - model->kmin_bytes) / (model->kmax_bytes - model->kmin_bytes);
    return random_u32() < chance;
}

SEC("tc") int mark(struct __sk_buff *skb) {
    __u32 key = skb->ifindex;
    struct marker_config *model = map_lookup(&config, &key);
    struct marker_shape *shaper = map_lookup(&shape, &key);
    struct marker_state *port = map_lookup(&state, &key);
    if (!model || !shaper || !port || !shaper->rate_bytes_per_s) return TC_ACT_UNSPEC;

    __u64 size = skb->wire_len ? skb->wire_len : skb->len;
    __u64 queue = enqueue(port, shaper, size);
    __sync_fetch_and_add(&port->packets, 1);
    __sync_fetch_and_add(&port->bytes, size);
    if (queue > model->kmin_bytes) __sync_fetch_and_add(&port->above_kmin, 1);
    if (queue > port->peak_bytes) port->peak_bytes = queue;

    if (skb->protocol != to_network(ETH_P_IP)) return TC_ACT_UNSPEC;
    __u8 *packet = (void *)(long)skb->data;
    if (packet + ETH_HLEN + 20 > (__u8 *)(long)skb->data_end) return TC_ACT_UNSPEC;
    /* The header's first 16-bit word: version and length, then DSCP and ECN. */
    __u8 before[2] = {packet[ETH_HLEN], packet[ETH_HLEN + 1]};
    __u8 ecn = before[1] & 3;
    if (ecn) __sync_fetch_and_add(&port->ect, 1);
    if (ecn == 3) __sync_fetch_and_add(&port->ce_arrived, 1);

    if (!is_due(model, queue)) return TC_ACT_UNSPEC;
    if (!ecn) {
        __sync_fetch_and_add(&port->not_ect_over, 1);
        return TC_ACT_UNSPEC;
    }
    __sync_fetch_and_add(&port->ect_over, 1);
    if (ecn == 3 || !model->enabled) return TC_ACT_UNSPEC;

    __u8 after[2] = {before[0], before[1] | 3};
    __u16 from, to; /* as they lie in memory */
    __builtin_memcpy(&from, before, 2);
    __builtin_memcpy(&to, after, 2);
    if (replace_checksum(skb, ETH_HLEN + 10, from, to, 2) == 0 &&
        store_bytes(skb, ETH_HLEN + 1, &after[1], 1, 0) == 0)
        __sync_fetch_and_add(&port->ce_marked, 1);
    return TC_ACT_UNSPEC;
}

/* Kernel helpers such as the clock are for GPL-compatible programs; this one may be used under either
 * licence. */
char marker_license[] SEC("license") = "Dual MIT/GPL";

/* Whoever rebuilds the object can tell whether a difference comes from another compiler. */
char marker_compiler[] SEC("genie.compiler") = __VERSION__;
