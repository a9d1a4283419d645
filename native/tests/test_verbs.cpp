// Whole jobs over the verbs transport on the fake device, which is stricter than a real one: what arrives,
// how many requests it takes, and how each kind of trouble is named.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "verbs_fake.h"
#include "verbs_job.h"

namespace genie::test {
namespace {

using Changes = std::map<std::string, std::string>;

std::vector<ProgramBuilder> ring_job(const Changes& settings, bool verify = true,
                                     std::uint64_t bytes = 300'001, std::uint32_t ranks = 4,
                                     std::uint16_t channels = 2) {
    std::vector<ProgramBuilder> builders;
    for (std::uint32_t r = 0; r < ranks; ++r) {
        ProgramBuilder& builder = builders.emplace_back(verbs_builder(r, ranks, settings, verify));
        builder.call(1, builder.make_template(ring_all_reduce(r, ranks, channels), channels), bytes, 8 << 10);
    }
    return builders;
}

void all_ok(const std::vector<FailureReport>& failures) {
    for (const FailureReport& failure : failures) CHECK(failure.text == "");
    CHECK(FakeDevice::get().complaint == "");
}

struct Case {
    const char* name;
    Changes settings;
    std::uint32_t window = 0;
    std::uint64_t spin_ns = 0;
    bool shuffled = false;
};

TEST_CASE("ring all-reduce on the fake device, verified") {
    const Case cases[] = {
        {"NCCL's defaults", {}},
        {"spinning", {}, 0, 20'000},
        {"a window", {}, 3},
        {"a window of one", {{"credit_every", "8"}}, 1},
        {"busy", {{"completion", "busy"}}},
        {"events", {{"completion", "events"}}},
        {"one slot", {{"slots", "1"}}},
        {"many slots", {{"slots", "100"}, {"credit_every", "30"}}},
        {"no inline", {{"inline_bytes", "0"}}},
        {"all inline", {{"inline_bytes", "4096"}}},
        {"four queue pairs", {{"qps_per_connection", "4"}, {"completion", "busy"}}, 0, 0, true},
        {"four queue pairs, split",
         {{"qps_per_connection", "4"}, {"split", "1"}, {"completion", "busy"}},
         0,
         0,
         true},
        {"three queue pairs, seven slots",
         {{"qps_per_connection", "3"}, {"slots", "7"}, {"completion", "busy"}},
         2,
         0,
         true},
        {"send", {{"mode", "send"}}},
        {"send, split",
         {{"mode", "send"}, {"qps_per_connection", "4"}, {"split", "1"}, {"completion", "busy"}},
         0,
         0,
         true},
        {"send, round robin",
         {{"mode", "send"}, {"qps_per_connection", "3"}, {"completion", "busy"}},
         2,
         0,
         true},
    };
    for (const Case& one : cases) {
        for (const std::uint64_t bytes : {0ULL, 1ULL, 4097ULL, 300'001ULL}) {
            for (const bool verify : {true, false}) {
                CAPTURE(one.name);
                CAPTURE(bytes);
                CAPTURE(verify);
                FakeDevice::get().reset();
                FakeDevice::get().shuffled = one.shuffled;
                auto builders = ring_job(one.settings, verify, bytes);
                for (ProgramBuilder& builder : builders) {
                    builder.header.window_messages = one.window;
                    builder.header.spin_ns = one.spin_ns;
                }
                VerbsRanks ranks = connected_ranks(builders, FakeDevice::library());
                all_ok(run_ranks(ranks));
                ranks.clear();
                CHECK(FakeDevice::get().objects() == 0);
            }
        }
    }
}

}  // namespace
}  // namespace genie::test
