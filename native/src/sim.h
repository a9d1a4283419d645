// Ranks over a virtual clock: the same state machine as over TCP, in one thread, with the same result every
// time.
//
// Each rank sends and receives at its own rate, one frame after another in each direction, `latency` apart;
// switches and queues in between are taken to be as fast as needed. What comes out is the time of a healthy
// network.
#pragma once

#include <cstdint>
#include <vector>

#include "failure.h"
#include "program.h"
#include "units.h"

namespace genie {

struct SimNetwork {
    Nanos latency;
    std::vector<std::uint64_t> rank_rate_bps;  // of each rank, both ways; 0 = infinitely fast
    Nanos overhead{0};                         // of each frame, added to its serialization
};

struct SimRank {
    std::vector<std::int64_t> iteration_end_ns;  // since the start
    std::uint64_t bytes_sent = 0;
    FailureReport failure;  // code kNone: it reached its end
};

// `programs[r]` is rank r's, all of one job. Throws BadProgram if they do not fit together.
std::vector<SimRank> simulate(const std::vector<Program>& programs, const SimNetwork& network);

}  // namespace genie
