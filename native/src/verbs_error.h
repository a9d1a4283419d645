// What a failed RDMA operation is called, what usually causes it, and what an event of the device means.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <string>

namespace genie {

// IBV_WC_RETRY_EXC_ERR.
std::string completion_status_name(ibv_wc_status status);

// What usually causes it and where to look; `timeout` and the counts are the queue pair's.
std::string completion_cause(ibv_wc_status status, std::uint8_t timeout, std::uint8_t retry_count,
                             std::uint8_t rnr_retry);

// IBV_EVENT_PORT_ERR.
std::string device_event_name(ibv_event_type type);

// How long a queue pair waits for an acknowledgement before it sends again: 4.096 us times 2^timeout.
std::string ack_timeout_text(std::uint8_t timeout);

// Of a request that is never acknowledged, the least time after which the device gives up; with a `timeout`
// of 0 it never does. A device may take up to four times as long (InfiniBand, volume 1, 9.7.6.1.3).
double retries_exhausted_s(std::uint8_t timeout, std::uint8_t retry_count);

// 34.4 s, 67.1 ms.
std::string seconds_text(double seconds);

}  // namespace genie
