// The verbs transport on a real RDMA device, Soft-RoCE say: what the fake device cannot prove.
// GENIE_RDMA_DEVICE names one; without it these cases say so and pass. GENIE_RDMA_EACH=n runs each nth row of
// the table: emulated machines under a sanitizer take seconds for one.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <string>

#include "verbs_job.h"

namespace genie::test {
namespace {

using Changes = std::map<std::string, std::string>;

// The device's name; empty, after saying so, where there is none.
std::string rdma_device() {
    const char* const name = std::getenv("GENIE_RDMA_DEVICE");
    if (name != nullptr && *name != '\0') return name;
    MESSAGE("skipped: GENIE_RDMA_DEVICE names no RDMA device");
    return {};
}

std::size_t rows_apart() {
    const char* const each = std::getenv("GENIE_RDMA_EACH");
    return each == nullptr ? 1 : std::max(1UL, std::strtoul(each, nullptr, 10));
}

std::vector<ProgramBuilder> ring_job(Changes settings, bool verify = true, std::uint64_t bytes = 300'001,
                                     std::uint32_t ranks = 4) {
    settings.emplace("device", rdma_device());
    std::vector<ProgramBuilder> builders;
    for (std::uint32_t r = 0; r < ranks; ++r) {
        ProgramBuilder& builder = builders.emplace_back(verbs_builder(r, ranks, settings, verify));
        builder.call(1, builder.make_template(ring_all_reduce(r, ranks)), bytes, 16 << 10);
    }
    return builders;
}

struct Case {
    const char* name;
    Changes settings;
    std::uint32_t window = 0;
    bool verify = true;
};

TEST_CASE("ring all-reduce on an RDMA device, verified") {
    if (rdma_device().empty()) return;
    const Case cases[] = {
        {"NCCL's defaults", {}},
        {"no verification", {}, 0, false},
        {"a window", {}, 3},
        {"busy", {{"completion", "busy"}}},
        {"events", {{"completion", "events"}}},
        {"four queue pairs", {{"qps_per_connection", "4"}}},
        {"four queue pairs, split", {{"qps_per_connection", "4"}, {"split", "1"}}},
        {"one slot", {{"slots", "1"}}},
        {"many slots, few credits", {{"slots", "64"}, {"credit_every", "16"}}},
        {"no inline", {{"inline_bytes", "0"}}},
        {"inline", {{"inline_bytes", "256"}}},
        {"send", {{"mode", "send"}}},
        {"send, split", {{"mode", "send"}, {"qps_per_connection", "4"}, {"split", "1"}}},
        {"a small MTU", {{"mtu", "1024"}}},
    };
    for (std::size_t row = 0; row < std::size(cases); row += rows_apart()) {
        const Case& one = cases[row];
        CAPTURE(std::string(one.name));
        auto builders = ring_job(one.settings, one.verify);
        for (ProgramBuilder& builder : builders) builder.header.window_messages = one.window;
        VerbsRanks ranks = connected_ranks(builders, verbs_library());
        for (const FailureReport& failure : run_ranks(ranks)) CHECK(failure.text == "");
    }
}

TEST_CASE("on an RDMA device a peer that fell silent is retry exceeded, by name") {
    if (rdma_device().empty()) return;
    auto builders = ring_job({{"timeout", "10"}, {"retry_cnt", "1"}}, true, 300'001, 2);
    VerbsRanks ranks = connected_ranks(builders, verbs_library());
    ranks[1]->transport().break_connection(0);
    const auto failures = run_ranks(ranks);
    CHECK(failures[0].code == Code::kTransport);
    CHECK(failures[0].peer == 1);
    CHECK(failures[0].op == 0);
    CHECK(failures[0].text.find("IBV_WC_RETRY_EXC_ERR") != std::string::npos);
    MESSAGE(failures[0].text);
}

TEST_CASE("on an RDMA device a wrong key is a remote access error, by name") {
    if (rdma_device().empty()) return;
    auto builders = ring_job({}, true, 300'001, 2);
    VerbsRanks ranks = connected_ranks(builders, verbs_library(), [](std::vector<Endpoint>& endpoints) {
        VerbsCard card = VerbsCard::parse(endpoints[1].card, 1);
        card.rkey ^= 0x5a5a00;
        endpoints[1].card = card.bytes();
    });
    const auto failures = run_ranks(ranks);
    const FailureReport& failed = failures[0].code == Code::kTransport ? failures[0] : failures[1];
    CHECK(failed.code == Code::kTransport);
    CHECK(failed.text.find("IBV_WC_REM_ACCESS_ERR") != std::string::npos);
    MESSAGE(failed.text);
}

}  // namespace
}  // namespace genie::test
