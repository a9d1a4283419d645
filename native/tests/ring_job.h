// A job for the tests of every transport, and what they look at when it is over.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <string>
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
