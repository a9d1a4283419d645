// Whole jobs over Gloo's point-to-point API: what arrives, and how each kind of trouble is named.
#ifdef GENIE_WITH_GLOO

#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <vector>

#include "ring_job.h"

namespace genie::test {
namespace {

std::vector<LocalResult> run_gloo(std::vector<ProgramBuilder> builders, const LocalOptions& options = {}) {
    for (ProgramBuilder& builder : builders) {
        std::memset(builder.header.transport, 0, sizeof builder.header.transport);
        std::memcpy(builder.header.transport, "gloo", 4);
    }
    return run_job(builders, {}, options);
}

TEST_CASE("ring all-reduce over Gloo, with and without verification and window") {
    for (const bool verify : {false, true}) {
        for (const std::uint32_t window : {0U, 1U, 3U}) {
            for (const std::uint64_t bytes : {0ULL, 4097ULL, 1'000'001ULL}) {
                CAPTURE(verify);
                CAPTURE(window);
                CAPTURE(bytes);
                auto builders = ring_job(3, bytes, 2);
                for (ProgramBuilder& builder : builders) {
                    if (verify) builder.header.flags |= kFlagVerify;
                    builder.header.window_messages = window;
                }
                all_ok(run_gloo(builders));
            }
        }
    }
}

TEST_CASE("several ranks, all to all, over Gloo") {
    constexpr std::uint32_t kRanks = 5;
    std::vector<ProgramBuilder> builders;
    for (std::uint32_t r = 0; r < kRanks; ++r) {
        ProgramBuilder& builder = builders.emplace_back(r, kRanks);
        builder.header.iterations = 3;
        builder.call(1, builder.make_template(all_to_all(r, kRanks)), 0, 1 << 20, {}, kNone,
                     std::vector<std::uint64_t>(2 * kRanks, 5000));
    }
    all_ok(run_gloo(builders));
}

TEST_CASE("over Gloo sizes that differ are an error by name") {
    auto builders = ring_job(2, 100'000);
    builders[1].calls[0].bytes = 100'002;
    const LocalResult failed = first_failed(run_gloo(builders));
    CHECK(failed.failure.code == Code::kSizeMismatch);
}

TEST_CASE("over Gloo a payload that is not the pattern fails verification") {
    auto builders = ring_job(2, 100'000);
    builders[0].header.flags |= kFlagVerify;  // the other sends zeros
    const auto results = run_gloo(builders);
    CHECK(results[0].failure.code == Code::kBadPayload);
    CHECK(results[0].failure.peer == 1);
    CHECK(results[0].failure.text.find("byte 0 of message 0 of call 1 from rank 1") != std::string::npos);
}

TEST_CASE("over Gloo a rank with another token is refused") {
    LocalOptions options;
    options.false_tokens[1].fill(1);
    auto builders = ring_job(2, 1000);
    for (ProgramBuilder& builder : builders) builder.header.connect_timeout_s = 2;
    const auto results = run_gloo(builders, options);
    for (const LocalResult& result : results) CHECK(result.ending != Ending::kOk);
    CHECK(first_failed(results).failure.code == Code::kConnect);
}

TEST_CASE("a pair of Gloo that breaks ends the run with the name of the peer") {
    LocalOptions options;
    options.break_connection[1] = 0;
    const auto results = run_gloo(ring_job(3, 20'000'000), options);
    const LocalResult& failed = first_failed(results);
    CAPTURE(failed.failure.text);
    CHECK(failed.failure.code == Code::kPeerClosed);
    CHECK(failed.failure.text.find("over gloo failed: ") != std::string::npos);
    for (const LocalResult& result : results) CHECK(result.ending != Ending::kOk);
}

TEST_CASE("ranks in the middle of traffic over Gloo stop at once when they are told to") {
    std::vector<ProgramBuilder> builders;
    for (std::uint32_t r = 0; r < 3; ++r) {
        ProgramBuilder& builder = builders.emplace_back(r, 3);
        builder.header.iterations = 10'000'000;
        const std::uint32_t ring = builder.make_template(ring_all_reduce(r, 3));
        builder.compute(0, {builder.call(1, ring, 3'000'000, 32 << 10)});
    }
    LocalOptions options;
    options.abort_after = 200_ms;
    for (const LocalResult& result : run_gloo(builders, options)) {
        CAPTURE(result.rank);
        CHECK(result.ending == Ending::kAborted);
        CHECK(result.failure.text.find("the time was up") != std::string::npos);
    }
}

TEST_CASE("settings are refused over Gloo, which has none") {
    auto builders = ring_job(2, 1000);
    builders[0].settings = "colour=blue\n";
    const LocalResult failed = first_failed(run_gloo(builders));
    CHECK(failed.failure.text.find("'colour' is not one of its settings") != std::string::npos);
}

}  // namespace
}  // namespace genie::test

#endif
