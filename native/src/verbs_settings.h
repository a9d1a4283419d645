// How a rank shall use RDMA: the settings of its program (genie/transport/verbs.py writes them), checked.
#pragma once

#include <cstdint>
#include <string>

#include "program.h"

namespace genie {

enum class VerbsMode : std::uint8_t { kWrite, kSend };                    // which operation carries a message
enum class VerbsCompletion : std::uint8_t { kBusy, kAdaptive, kEvents };  // how a rank waits for one
enum class VerbsChoice : std::uint8_t { kAuto, kNo, kYes };

constexpr std::uint32_t kMostQueuePairs = 128;  // of one connection and direction, as NCCL allows
constexpr std::uint32_t kMostSlots = 1024;
constexpr std::int64_t kMostArThresholdBytes = (std::int64_t{1} << 32) - 1;  // no message is longer

struct VerbsSettings {
    std::string device;  // "": the one that has the rank's address, or the only one
    std::uint8_t port = 1;
    int gid_index = -1;           // -1: choose_gid
    std::uint32_t mtu_bytes = 0;  // 0: the port's active one
    std::uint8_t timeout = 20;
    std::uint8_t retry_count = 7;
    std::uint8_t rnr_retry = 7;
    std::uint8_t min_rnr_timer = 12;
    std::uint8_t traffic_class = 0;
    std::uint8_t service_level = 0;
    std::uint8_t hop_limit = 255;
    std::uint16_t pkey_index = 0;
    std::uint32_t queue_pairs = 1;  // of a connection, in each direction
    bool split = false;
    VerbsMode mode = VerbsMode::kWrite;
    VerbsCompletion completion = VerbsCompletion::kAdaptive;
    std::uint32_t slots = 8;         // messages a receiver lets come before it has seen any
    std::uint32_t credit_every = 1;  // messages for one credit
    std::uint32_t inline_bytes = 64;
    // Whether data go first, as a plain write, and then an empty write with the immediate (auto: on
    // InfiniBand), and the messages that are longer than this only.
    VerbsChoice adaptive_routing = VerbsChoice::kAuto;
    std::uint64_t ar_threshold_bytes = 8192;
    // Whether the device's writes to memory may overtake one another on PCI Express (auto: where libibverbs
    // can ask for it).
    VerbsChoice pci_relaxed_ordering = VerbsChoice::kAuto;

    // Throws Failure (kProtocol): a key is missing, unknown or out of its range.
    static VerbsSettings parse(const Program& program);
};

}  // namespace genie
