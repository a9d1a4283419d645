// Whole jobs over libfabric's tcp and shm providers: what arrives, and how each kind of trouble is named.
#ifdef GENIE_WITH_OFI

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "ring_job.h"

namespace genie::test {
namespace {

void use_ofi(std::vector<ProgramBuilder>& builders, const std::string& provider = "tcp",
             std::uint32_t slots = 8) {
    for (ProgramBuilder& builder : builders) {
        std::memset(builder.header.transport, 0, sizeof builder.header.transport);
        std::memcpy(builder.header.transport, "ofi", 3);
        builder.settings = "provider=" + provider + "\ndomain=\nslots=" + std::to_string(slots) + "\n";
    }
}

std::vector<LocalResult> run_ofi(std::vector<ProgramBuilder> builders, const std::string& provider = "tcp",
                                 std::uint32_t slots = 8, const LocalOptions& options = {}) {
    use_ofi(builders, provider, slots);
    return run_job(builders, {}, options);
}

TEST_CASE("ring all-reduce over libfabric, with and without verification, window, spinning") {
    for (const bool verify : {false, true}) {
        for (const std::uint32_t window : {0U, 1U, 3U}) {
            for (const std::uint64_t bytes : {0ULL, 4097ULL, 1'000'001ULL}) {
                CAPTURE(verify);
                CAPTURE(window);
                CAPTURE(bytes);
                auto builders = ring_job(4, bytes, 2);
                for (ProgramBuilder& builder : builders) {
                    if (verify) builder.header.flags |= kFlagVerify;
                    builder.header.window_messages = window;
                    builder.header.spin_ns = window == 3 ? 20'000 : 0;
                }
                all_ok(run_ofi(builders, "tcp", window == 1 ? 1 : 8));
            }
        }
    }
}

TEST_CASE("shared memory, which has nothing to sleep on, carries the same") {
    for (const bool verify : {false, true}) {
        auto builders = ring_job(3, 1'000'001);
        for (ProgramBuilder& builder : builders) {
            if (verify) builder.header.flags |= kFlagVerify;
        }
        all_ok(run_ofi(builders, "shm"));
    }
}

TEST_CASE("both ends of libfabric record every message under one name") {
    const std::vector<std::string> paths = {"genie-ofi-0.evt", "genie-ofi-1.evt", "genie-ofi-2.evt"};
    auto builders = ring_job(3, 1'000'003);
    use_ofi(builders);
    all_ok(run_job(builders, paths));
    std::vector<std::array<std::uint64_t, 5>> sent;
    std::vector<std::array<std::uint64_t, 5>> received;
    for (std::uint32_t r = 0; r < 3; ++r) {
        for (const Event& event : read_events(paths[r])) {
            CHECK(event.t0_ns <= event.t1_ns);
            CHECK(event.t1_ns <= event.t2_ns);
            if (event.type == EventType::kSent)
                sent.push_back({r, event.peer, event.iteration, event.seq, event.bytes});
            if (event.type == EventType::kReceived)
                received.push_back({event.peer, r, event.iteration, event.seq, event.bytes});
        }
        std::remove(paths[r].c_str());
    }
    std::sort(sent.begin(), sent.end());
    std::sort(received.begin(), received.end());
    CHECK_FALSE(sent.empty());
    CHECK(sent == received);
}

TEST_CASE("several calls at once on one connection find their own messages") {
    std::vector<ProgramBuilder> builders;
    for (std::uint32_t r = 0; r < 3; ++r) {
        ProgramBuilder& builder = builders.emplace_back(r, 3);
        builder.header.iterations = 20;
        builder.header.flags |= kFlagVerify;
        const std::uint32_t ring = builder.make_template(ring_all_reduce(r, 3));
        const std::uint32_t tree = builder.make_template(tree_broadcast(r, 3));
        // Each rank starts them in another order.
        for (std::uint32_t i = 0; i < 6; ++i) {
            const std::uint32_t id = (i + 2 * r) % 6;
            builder.call(id, id % 2 == 0 ? ring : tree, 10'000 * (id + 1), 7'000);
        }
    }
    all_ok(run_ofi(builders));
}

TEST_CASE("many ranks, all to all, over libfabric") {
    constexpr std::uint32_t kRanks = 12;
    std::vector<ProgramBuilder> builders;
    for (std::uint32_t r = 0; r < kRanks; ++r) {
        ProgramBuilder& builder = builders.emplace_back(r, kRanks);
        builder.header.iterations = 3;
        builder.call(1, builder.make_template(all_to_all(r, kRanks)), 0, 1 << 20, {}, kNone,
                     std::vector<std::uint64_t>(2 * kRanks, 5000));
    }
    all_ok(run_ofi(builders));
}

TEST_CASE("a provider that is not here is refused with those that are") {
    const LocalResult failed = first_failed(run_ofi(ring_job(2, 1000), "efa"));
    CHECK(failed.failure.code == Code::kConnect);
    CHECK(failed.failure.text.find("provider 'efa'") != std::string::npos);
    CHECK(failed.failure.text.find("offered here: ") != std::string::npos);
    CHECK(failed.failure.text.find("tcp;ofi_rxm (") != std::string::npos);
}

TEST_CASE("an address of another host is refused by name") {
    auto builders = ring_job(2, 1000);
    for (ProgramBuilder& builder : builders) builder.header.listen_ipv4 = 0xc0000263;  // 192.0.2.99
    const LocalResult failed = first_failed(run_ofi(builders));
    CAPTURE(failed.failure.text);
    CHECK(failed.failure.code == Code::kConnect);
    CHECK(failed.failure.text.find("192.0.2.99") != std::string::npos);
}

TEST_CASE("a device that does not have the host's address is refused by name") {
    auto builders = ring_job(2, 1000);
    use_ofi(builders);
    for (ProgramBuilder& builder : builders) {
        builder.settings.replace(builder.settings.find("domain="), 7, "domain=nosuch0");
    }
    const LocalResult failed = first_failed(run_job(builders));
    CHECK(failed.failure.code == Code::kConnect);
    CHECK(failed.failure.text.find("on domain 'nosuch0'") != std::string::npos);
}

TEST_CASE("settings that libfabric's transport does not know are refused") {
    auto builders = ring_job(2, 1000);
    use_ofi(builders);
    builders[0].settings += "colour=blue\n";
    const LocalResult failed = first_failed(run_job(builders));
    CHECK(failed.failure.text.find("'colour' is not one of its settings") != std::string::npos);
}

TEST_CASE("more receives than a provider takes are refused with what to lower") {
    const LocalResult failed = first_failed(run_ofi(ring_job(2, 1000, 64), "shm", 1024));
    CAPTURE(failed.failure.text);
    CHECK(failed.failure.text.find("lower transport.slots") != std::string::npos);
}

TEST_CASE("sizes that differ are an error by name over libfabric") {
    auto builders = ring_job(2, 100'000);
    SUBCASE("shorter") { builders[1].calls[0].bytes = 99'998; }
    SUBCASE("longer than any receive") { builders[1].calls[0].bytes = 100'002; }
    const LocalResult failed = first_failed(run_ofi(builders));
    CHECK(failed.failure.code == Code::kSizeMismatch);
    CHECK(failed.failure.peer < 2);
    CHECK(failed.failure.text.find(std::to_string(failed.failure.peer)) != std::string::npos);
}

TEST_CASE("a payload that is not the pattern fails verification over libfabric") {
    auto builders = ring_job(2, 100'000);
    builders[0].header.flags |= kFlagVerify;  // the other sends zeros
    const auto results = run_ofi(builders);
    CHECK(results[0].failure.code == Code::kBadPayload);
    CHECK(results[0].failure.peer == 1);
    CHECK(results[0].failure.text.find("byte 0 of message 0 of call 1 from rank 1") != std::string::npos);
}

TEST_CASE("over libfabric a rank with another token is refused, and the other side says so") {
    std::mutex mutex;
    std::string said;
    LocalOptions options;
    options.log = [&](const std::string& text) {
        const std::lock_guard lock(mutex);
        said += text + "\n";
    };
    options.false_tokens[1].fill(1);
    auto builders = ring_job(2, 1000);
    for (ProgramBuilder& builder : builders) builder.header.connect_timeout_s = 1;
    const auto results = run_ofi(builders, "tcp", 8, options);
    for (const LocalResult& result : results) CHECK(result.ending != Ending::kOk);
    CHECK(first_failed(results).failure.code == Code::kConnect);
    CHECK(said.find("rank 0: refused a greeting for rank 1: it lacks this run's token") != std::string::npos);
}

TEST_CASE("over libfabric a connection that breaks ends the run with the name of the peer") {
    LocalOptions options;
    options.break_connection[1] = 0;
    const auto results = run_ofi(ring_job(3, 50'000'000), "tcp", 8, options);
    const LocalResult& failed = first_failed(results);
    CAPTURE(failed.failure.text);
    const bool named = failed.failure.text.find(" was broken") != std::string::npos ||
                       failed.failure.text.find("over tcp;ofi_rxm failed: ") != std::string::npos;
    CHECK(named);
    CHECK(failed.failure.peer < 3);
    for (const LocalResult& result : results) CHECK(result.ending != Ending::kOk);
}

TEST_CASE("ranks in the middle of traffic over libfabric stop at once when they are told to") {
    for (const char* provider : {"tcp", "shm"}) {
        std::vector<ProgramBuilder> builders;
        for (std::uint32_t r = 0; r < 3; ++r) {
            ProgramBuilder& builder = builders.emplace_back(r, 3);
            builder.header.iterations = 10'000'000;
            const std::uint32_t ring = builder.make_template(ring_all_reduce(r, 3));
            builder.compute(0, {builder.call(1, ring, 3'000'000, 32 << 10)});
        }
        LocalOptions options;
        options.abort_after = 200_ms;
        for (const LocalResult& result : run_ofi(builders, provider, 8, options)) {
            CAPTURE(result.rank);
            CHECK(result.ending == Ending::kAborted);
            CHECK(result.failure.text.find("the time was up") != std::string::npos);
        }
    }
}

TEST_CASE("a message of a call that this rank has not is refused over libfabric") {
    auto builders = ring_job(2, 1000);
    builders[1].calls[0].call_id = 77;
    const LocalResult failed = first_failed(run_ofi(builders));
    CHECK(failed.failure.code == Code::kProtocol);
    CHECK(failed.failure.text.find("a call this rank takes no part in") != std::string::npos);
}

}  // namespace
}  // namespace genie::test

#endif
