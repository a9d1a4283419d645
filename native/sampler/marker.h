// The marking program of native/bpf/marker.c from user space: load it, configure its ports, read its
// counters.
//
// Plain bpf(2), because neither bpftool nor libbpf is everywhere. The program and its three maps are pinned
// in one directory of a bpf file system as "marker", "config" and "state".
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "../bpf/marker_layout.h"
#include "descriptor.h"

namespace genie {

using MarkerConfig = marker_config;
using MarkerShape = marker_shape;
using MarkerState = marker_state;

class Marker {
  public:
    // Loads object file `object` and pins everything in `directory`. Throws Failure with the verifier's last
    // words.
    static Marker load(const std::string& object, const std::string& directory);

    // Opens what `load` pinned.
    static Marker open(const std::string& directory);

    std::optional<MarkerConfig> config(std::uint32_t ifindex) const;
    std::optional<MarkerShape> shape(std::uint32_t ifindex) const;
    std::optional<MarkerState> state(std::uint32_t ifindex) const;

    // Makes an interface known to the program, with zeroed counters.
    void add(std::uint32_t ifindex, const MarkerConfig& config, const MarkerShape& shape) const;

    void configure(std::uint32_t ifindex, const MarkerConfig& config) const;
    void follow(std::uint32_t ifindex, const MarkerShape& shape) const;

  private:
    Marker(Descriptor config, Descriptor shape, Descriptor state)
        : config_(std::move(config)), shape_(std::move(shape)), state_(std::move(state)) {}

    Descriptor config_;
    Descriptor shape_;
    Descriptor state_;
};

// Bytes in the phantom queue at `now_ns` (CLOCK_MONOTONIC).
std::uint64_t queue_bytes(const MarkerShape& shape, const MarkerState& state, std::uint64_t now_ns);

// Probability as the program wants it, a fraction of 2^32, and back.
std::uint32_t to_fraction(double probability);
double to_probability(std::uint32_t fraction);

}  // namespace genie
