// What a rank tells its peers before they connect: where its memory is and which queue pairs are whose. The
// bytes travel as the rank's card (runner.h) on the run's control connections, in the byte order of x86 and
// ARM.
//
// A *flow* is one direction of a connection, with queue pairs of its own, as NCCL's send and receive
// connections are: data go one way on them, credits the other.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "verbs_device.h"

namespace genie {

struct VerbsQueuePair {
    std::uint32_t number = 0;
    std::uint32_t psn = 0;  // of the first packet that this end sends
};

struct VerbsFlowCard {
    std::uint32_t peer = 0;
    std::uint16_t channel = 0;
    bool sends = false;  // data leave the card's owner
    // Where the peer writes: the messages' slots, or the credits' ring of one that sends.
    std::uint64_t address = 0;
    std::uint64_t stride_bytes = 0;  // between slots; 0: all messages go to the same place
    std::vector<VerbsQueuePair> queue_pairs;
};

struct VerbsCard {
    GidBytes gid{};
    std::uint16_t lid = 0;
    std::uint8_t link_layer = 0;
    std::uint8_t mtu = 0;  // ibv_mtu
    std::uint8_t mode = 0;
    bool split = false;
    bool verify = false;
    std::uint32_t queue_pairs = 0;
    std::uint32_t slots = 0;
    std::uint32_t rkey = 0;
    std::uint64_t message_bytes = 0;     // the longest that a slot takes
    std::uint64_t data_first_above = 0;  // bytes: longer messages go before their immediate
    std::vector<VerbsFlowCard> flows;

    std::vector<std::uint8_t> bytes() const;
    // Throws Failure (kProtocol, naming `rank`): these are not the bytes of a card that this version made.
    static VerbsCard parse(std::span<const std::uint8_t> bytes, std::uint32_t rank);

    // The flow of `rank` on a channel, the other end of one that sends or receives here; null if none.
    const VerbsFlowCard* find(std::uint32_t rank, std::uint16_t channel, bool sends) const;
};

}  // namespace genie
