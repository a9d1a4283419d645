#include "verbs_error.h"

#include <array>
#include <cstdio>

namespace genie {
namespace {

struct Named {
    int value;
    const char* name;
};

#define GENIE_NAMED(value) \
    { value, #value }
constexpr std::array kStatuses =
    std::to_array<Named>({GENIE_NAMED(IBV_WC_SUCCESS),           GENIE_NAMED(IBV_WC_LOC_LEN_ERR),
                          GENIE_NAMED(IBV_WC_LOC_QP_OP_ERR),     GENIE_NAMED(IBV_WC_LOC_EEC_OP_ERR),
                          GENIE_NAMED(IBV_WC_LOC_PROT_ERR),      GENIE_NAMED(IBV_WC_WR_FLUSH_ERR),
                          GENIE_NAMED(IBV_WC_MW_BIND_ERR),       GENIE_NAMED(IBV_WC_BAD_RESP_ERR),
                          GENIE_NAMED(IBV_WC_LOC_ACCESS_ERR),    GENIE_NAMED(IBV_WC_REM_INV_REQ_ERR),
                          GENIE_NAMED(IBV_WC_REM_ACCESS_ERR),    GENIE_NAMED(IBV_WC_REM_OP_ERR),
                          GENIE_NAMED(IBV_WC_RETRY_EXC_ERR),     GENIE_NAMED(IBV_WC_RNR_RETRY_EXC_ERR),
                          GENIE_NAMED(IBV_WC_LOC_RDD_VIOL_ERR),  GENIE_NAMED(IBV_WC_REM_INV_RD_REQ_ERR),
                          GENIE_NAMED(IBV_WC_REM_ABORT_ERR),     GENIE_NAMED(IBV_WC_INV_EECN_ERR),
                          GENIE_NAMED(IBV_WC_INV_EEC_STATE_ERR), GENIE_NAMED(IBV_WC_FATAL_ERR),
                          GENIE_NAMED(IBV_WC_RESP_TIMEOUT_ERR),  GENIE_NAMED(IBV_WC_GENERAL_ERR)});
constexpr std::array kEvents = std::to_array<Named>({GENIE_NAMED(IBV_EVENT_CQ_ERR),
                                                     GENIE_NAMED(IBV_EVENT_QP_FATAL),
                                                     GENIE_NAMED(IBV_EVENT_QP_REQ_ERR),
                                                     GENIE_NAMED(IBV_EVENT_QP_ACCESS_ERR),
                                                     GENIE_NAMED(IBV_EVENT_COMM_EST),
                                                     GENIE_NAMED(IBV_EVENT_SQ_DRAINED),
                                                     GENIE_NAMED(IBV_EVENT_PATH_MIG),
                                                     GENIE_NAMED(IBV_EVENT_PATH_MIG_ERR),
                                                     GENIE_NAMED(IBV_EVENT_DEVICE_FATAL),
                                                     GENIE_NAMED(IBV_EVENT_PORT_ACTIVE),
                                                     GENIE_NAMED(IBV_EVENT_PORT_ERR),
                                                     GENIE_NAMED(IBV_EVENT_LID_CHANGE),
                                                     GENIE_NAMED(IBV_EVENT_PKEY_CHANGE),
                                                     GENIE_NAMED(IBV_EVENT_SM_CHANGE),
                                                     GENIE_NAMED(IBV_EVENT_SRQ_ERR),
                                                     GENIE_NAMED(IBV_EVENT_SRQ_LIMIT_REACHED),
                                                     GENIE_NAMED(IBV_EVENT_QP_LAST_WQE_REACHED),
                                                     GENIE_NAMED(IBV_EVENT_CLIENT_REREGISTER),
                                                     GENIE_NAMED(IBV_EVENT_GID_CHANGE),
                                                     GENIE_NAMED(IBV_EVENT_WQ_FATAL)});
#undef GENIE_NAMED

template <std::size_t kCount>
std::string name_of(const std::array<Named, kCount>& all, int value, const char* kind) {
    for (const Named& one : all) {
        if (one.value == value) return one.name;
    }
    return std::string(kind) + " " + std::to_string(value);
}

}  // namespace

std::string completion_status_name(ibv_wc_status status) { return name_of(kStatuses, status, "status"); }
std::string device_event_name(ibv_event_type type) { return name_of(kEvents, type, "event"); }

std::string ack_timeout_text(std::uint8_t timeout) {
    return timeout == 0 ? "no limit" : seconds_text(retries_exhausted_s(timeout, 0));
}

double retries_exhausted_s(std::uint8_t timeout, std::uint8_t retry_count) {
    return 4.096e-6 * static_cast<double>(std::uint64_t{1} << timeout) * (retry_count + 1);
}

std::string seconds_text(double seconds) {
    char text[32];
    if (seconds < 0.1) {
        std::snprintf(text, sizeof text, "%.3g ms", seconds * 1e3);
    } else {
        std::snprintf(text, sizeof text, "%.3g s", seconds);
    }
    return text;
}

std::string completion_cause(ibv_wc_status status, std::uint8_t timeout, std::uint8_t retry_count,
                             std::uint8_t rnr_retry) {
    switch (status) {
        case IBV_WC_RETRY_EXC_ERR:
            return "the peer acknowledged nothing in " + std::to_string(retry_count + 1) + " attempts of " +
                   ack_timeout_text(timeout) +
                   " each: look for a path that is down, a link or host that failed, loss of packets, "
                   "PFC that is missing or stuck, or a peer that is gone";
        case IBV_WC_RNR_RETRY_EXC_ERR:
            return "the receiver had posted no receive for the message after " + std::to_string(rnr_retry) +
                   " retries: a receiver that is too slow or stopped (its credits should prevent this: same "
                   "version and settings on both ends?)";
        case IBV_WC_REM_ACCESS_ERR:
            return "the peer's memory refused the access: a wrong or stale key or address, as different "
                   "versions of GENIE on the two hosts would have, or its memory is gone";
        case IBV_WC_REM_INV_REQ_ERR:
            return "the peer's NIC found the request invalid: longer than its buffer or of a kind it does "
                   "not "
                   "allow; different versions or settings (mode) on the two hosts";
        case IBV_WC_REM_OP_ERR:
            return "the peer's NIC could not carry out the request: an error on its side, look at its log";
        case IBV_WC_LOC_PROT_ERR:
        case IBV_WC_LOC_LEN_ERR:
        case IBV_WC_LOC_QP_OP_ERR:
        case IBV_WC_LOC_ACCESS_ERR:
            return "the request was wrong on this side, before any packet: a message longer than its buffer, "
                   "or "
                   "a fault of GENIE or of the driver";
        case IBV_WC_WR_FLUSH_ERR:
            return "the queue pair had gone into the error state before; no request reported why (the peer's "
                   "or the device's log may)";
        case IBV_WC_FATAL_ERR:
            return "the device failed: look at the kernel's log";
        default:
            return "see the documentation of the device";
    }
}

}  // namespace genie
