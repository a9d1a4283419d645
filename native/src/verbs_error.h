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

}  // namespace genie
