// What every transport must do, whatever is under it: the tests of each run these with their own way to run a
// job. What is peculiar to one stands in its own file.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "clock.h"
#include "ring_job.h"

namespace genie::test {

using RunJob = std::function<std::vector<LocalResult>(
    std::vector<ProgramBuilder>, const std::vector<std::string>& event_paths, const LocalOptions&)>;

// Ring all-reduces of each size, with and without verification, window and (of 3 messages) spinning.
inline void carries_rings(const RunJob& run, std::uint32_t ranks, const std::vector<std::uint64_t>& sizes) {
    for (const bool verify : {false, true}) {
        for (const std::uint32_t window : {0U, 1U, 3U}) {
            for (const std::uint64_t bytes : sizes) {
                CAPTURE(verify);
                CAPTURE(window);
                CAPTURE(bytes);
                auto builders = ring_job(ranks, bytes, 2);
                for (ProgramBuilder& builder : builders) {
                    if (verify) builder.header.flags |= kFlagVerify;
                    builder.header.window_messages = window;
                    builder.header.spin_ns = window == 3 ? 20'000 : 0;
                }
                all_ok(run(builders, {}, {}));
            }
        }
    }
}

// Both ends have the same messages in their event files, whose names begin with `prefix`.
inline void records_both_ends(const RunJob& run, const std::string& prefix) {
    std::vector<std::string> paths;
    for (const char* rank : {"0", "1", "2"}) paths.push_back(prefix + "-" + rank + ".evt");
    all_ok(run(ring_job(3, 1'000'003), paths, {}));
    std::vector<std::array<std::uint64_t, 5>> sent;
    std::vector<std::array<std::uint64_t, 5>> received;
    for (std::uint32_t r = 0; r < paths.size(); ++r) {
        std::uint32_t state = 0;
        for (const Event& event : read_events(paths[r], &state)) {
            CHECK(event.t0_ns <= event.t1_ns);
            CHECK(event.t1_ns <= event.t2_ns);
            if (event.type == EventType::kSent)
                sent.push_back({r, event.peer, event.iteration, event.seq, event.bytes});
            if (event.type == EventType::kReceived)
                received.push_back({event.peer, r, event.iteration, event.seq, event.bytes});
        }
        CHECK(state == static_cast<std::uint32_t>(RankState::kDone));
        std::remove(paths[r].c_str());
    }
    std::sort(sent.begin(), sent.end());
    std::sort(received.begin(), received.end());
    CHECK_FALSE(sent.empty());
    CHECK(sent == received);
}

// One rank's call has `bytes` where the other's has 100,000.
inline LocalResult refuses_other_sizes(const RunJob& run, std::uint64_t bytes) {
    auto builders = ring_job(2, 100'000);
    builders[1].calls[0].bytes = bytes;
    const LocalResult failed = first_failed(run(builders, {}, {}));
    CAPTURE(failed.failure.text);
    CHECK(failed.failure.code == Code::kSizeMismatch);
    CHECK(failed.failure.peer < 2);
    CHECK(failed.failure.text.find(std::to_string(failed.failure.peer)) != std::string::npos);
    return failed;
}

inline void refuses_other_payload(const RunJob& run) {
    auto builders = ring_job(2, 100'000);
    builders[0].header.flags |= kFlagVerify;  // the other sends zeros
    const auto results = run(builders, {}, {});
    CHECK(results[0].failure.code == Code::kBadPayload);
    CHECK(results[0].failure.peer == 1);
    CHECK(results[0].failure.text.find("byte 0 of message 0 of call 1 from rank 1") != std::string::npos);
}

// A call that only one of two ranks has, over a wire that says the iteration with each message, or does not.
inline void refuses_unknown_calls(const RunJob& run, bool wire_says_iteration) {
    auto builders = ring_job(2, 1000);
    builders[1].calls[0].call_id = 77;
    const LocalResult failed = first_failed(run(builders, {}, {}));
    CAPTURE(failed.failure.text);
    CHECK(failed.failure.code == Code::kProtocol);
    CHECK(failed.failure.text.find("a call this rank takes no part in: call ") != std::string::npos);
    CHECK((failed.failure.text.find(", iteration 0") != std::string::npos) == wire_says_iteration);
    CHECK(failed.failure.iteration == (wire_says_iteration ? 0 : kNone));
}

// Rank 1 has another token than the run's; returns what was logged.
inline std::string refuses_other_tokens(const RunJob& run, std::uint16_t timeout_s) {
    std::mutex mutex;
    std::string said;
    LocalOptions options;
    options.log = [&](const std::string& text) {
        const std::lock_guard lock(mutex);
        said += text + "\n";
    };
    options.false_tokens[1].fill(1);
    auto builders = ring_job(2, 1000);
    for (ProgramBuilder& builder : builders) builder.header.connect_timeout_s = timeout_s;
    const auto results = run(builders, {}, options);
    for (const LocalResult& result : results) CHECK(result.ending != Ending::kOk);
    CHECK(first_failed(results).failure.code == Code::kConnect);
    return said;
}

// A connection of rank 1 breaks in the middle of traffic; returns how the first rank to notice failed.
inline LocalResult notices_a_break(const RunJob& run, std::uint64_t bytes,
                                   const std::vector<std::string>& event_paths = {}) {
    LocalOptions options;
    options.break_connection[1] = 0;
    const auto results = run(ring_job(3, bytes), event_paths, options);
    for (const LocalResult& result : results) CHECK(result.ending != Ending::kOk);
    return first_failed(results);
}

// Ranks in the middle of traffic that are told to stop, one that spins too.
inline void stops_at_once(const RunJob& run, std::uint64_t spin_ns = 0, Nanos within = 5000_ms) {
    LocalOptions options;
    options.abort_after = 200_ms;
    const Nanos begin = monotonic_now();
    const auto results = run(endless_job(3, spin_ns), {}, options);
    CHECK(monotonic_now() - begin < within);
    for (const LocalResult& result : results) {
        CAPTURE(result.rank);
        CHECK(result.ending == Ending::kAborted);
        CHECK(result.failure.text.find("the time was up") != std::string::npos);
    }
}

// A setting that the transport does not have.
inline void refuses_unknown_settings(const RunJob& run, const std::string& settings) {
    auto builders = ring_job(2, 1000);
    builders[0].settings = settings + "colour=blue\n";
    const LocalResult failed = first_failed(run(builders, {}, {}));
    CHECK(failed.failure.text.find("'colour' is not one of its settings") != std::string::npos);
}

}  // namespace genie::test
