// Jobs for the tests of every transport, and what they look at when one is over.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "local_job.h"

namespace genie::test {

// Three ring all-reduces of `bytes` in messages of 64 KiB.
inline std::vector<ProgramBuilder> ring_job(std::uint32_t ranks, std::uint64_t bytes,
                                            std::uint16_t channels = 1) {
    std::vector<ProgramBuilder> builders;
    for (std::uint32_t r = 0; r < ranks; ++r) {
        ProgramBuilder& builder = builders.emplace_back(r, ranks);
        builder.header.iterations = 3;
        builder.call(1, builder.make_template(ring_all_reduce(r, ranks, channels), channels), bytes,
                     64 << 10);
    }
    return builders;
}

// Three exchanges of 5000 bytes between each two.
inline std::vector<ProgramBuilder> all_to_all_job(std::uint32_t ranks) {
    std::vector<ProgramBuilder> builders;
    for (std::uint32_t r = 0; r < ranks; ++r) {
        ProgramBuilder& builder = builders.emplace_back(r, ranks);
        builder.header.iterations = 3;
        builder.call(1, builder.make_template(all_to_all(r, ranks)), 0, 1 << 20, {}, kNone,
                     std::vector<std::uint64_t>(2 * ranks, 5000));
    }
    return builders;
}

// Rings without end, with something to compute between them.
inline std::vector<ProgramBuilder> endless_job(std::uint32_t ranks, std::uint64_t spin_ns = 0) {
    std::vector<ProgramBuilder> builders;
    for (std::uint32_t r = 0; r < ranks; ++r) {
        ProgramBuilder& builder = builders.emplace_back(r, ranks);
        builder.header.iterations = 10'000'000;
        builder.header.spin_ns = spin_ns;
        const std::uint32_t ring = builder.make_template(ring_all_reduce(r, ranks));
        builder.compute(0, {builder.call(1, ring, 3'000'000, 32 << 10)});
    }
    return builders;
}

inline void use_transport(std::vector<ProgramBuilder>& builders, std::string_view name,
                          const std::string& settings = {}) {
    for (ProgramBuilder& builder : builders) {
        std::memset(builder.header.transport, 0, sizeof builder.header.transport);
        std::memcpy(builder.header.transport, name.data(), name.size());
        builder.settings = settings;
    }
}

inline void all_ok(const std::vector<LocalResult>& results) {
    for (const LocalResult& result : results) {
        CHECK(result.failure.text == "");
        CHECK(result.ending == Ending::kOk);
    }
}

inline const LocalResult& first_failed(const std::vector<LocalResult>& results) {
    return *std::find_if(results.begin(), results.end(),
                         [](const auto& r) { return r.ending == Ending::kFailed; });
}

// What is committed in an event file, and its state.
inline std::vector<Event> read_events(const std::string& path, std::uint32_t* state = nullptr) {
    std::ifstream file(path, std::ios::binary);
    std::uint64_t committed = 0;
    file.seekg(64);
    file.read(reinterpret_cast<char*>(&committed), 8);
    if (state != nullptr) {
        file.seekg(84);
        file.read(reinterpret_cast<char*>(state), 4);
    }
    std::vector<Event> events(committed);
    file.seekg(4096);
    file.read(reinterpret_cast<char*>(events.data()),
              static_cast<std::streamsize>(committed * sizeof(Event)));
    return events;
}

}  // namespace genie::test
