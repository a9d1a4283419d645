// Whole jobs over loopback TCP: what arrives, and how each kind of trouble is named.
#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <string>

#include "ring_job.h"

namespace genie::test {
namespace {

TEST_CASE("ring all-reduce over TCP, with and without verification, window, spinning") {
    for (const bool verify : {false, true}) {
        for (const std::uint32_t window : {0U, 1U, 3U}) {
            for (const std::uint64_t bytes : {0ULL, 1ULL, 4097ULL, 3'000'001ULL}) {
                CAPTURE(verify);
                CAPTURE(window);
                CAPTURE(bytes);
                auto builders = ring_job(4, bytes, 2);
                for (ProgramBuilder& builder : builders) {
                    if (verify) builder.header.flags |= kFlagVerify;
                    builder.header.window_messages = window;
                    builder.header.spin_ns = window == 3 ? 20'000 : 0;
                }
                all_ok(run_job(builders));
            }
        }
    }
}

TEST_CASE("both ends record every message under one name, in order of time") {
    const std::vector<std::string> paths = {"genie-test-0.evt", "genie-test-1.evt", "genie-test-2.evt"};
    all_ok(run_job(ring_job(3, 1'000'003), paths));
    std::vector<std::array<std::uint64_t, 5>> sent;
    std::vector<std::array<std::uint64_t, 5>> received;
    for (std::uint32_t r = 0; r < 3; ++r) {
        std::uint32_t state = 0;
        for (const Event& event : read_events(paths[r], &state)) {
            CHECK(event.t0_ns <= event.t1_ns);
            CHECK(event.t1_ns <= event.t2_ns);
            if (event.type == EventType::kSent)
                sent.push_back({r, event.peer, event.iteration, event.seq, event.bytes});
            if (event.type == EventType::kReceived) {
                received.push_back({event.peer, r, event.iteration, event.seq, event.bytes});
            }
        }
        CHECK(state == static_cast<std::uint32_t>(RankState::kDone));
        std::remove(paths[r].c_str());
    }
    std::sort(sent.begin(), sent.end());
    std::sort(received.begin(), received.end());
    CHECK_FALSE(sent.empty());
    CHECK(sent == received);
}

TEST_CASE("a peer that resets its connections is named; what was recorded is kept") {
    LocalOptions options;
    options.break_connection[1] = 0;
    auto builders = ring_job(3, 50'000'000);
    const auto results = run_job(builders, {"genie-test-lost.evt", "", ""}, options);
    const LocalResult& failed = first_failed(results);
    CHECK(failed.failure.code == Code::kPeerClosed);
    CHECK(failed.failure.op == 0);
    CHECK(failed.failure.call_id == 1);
    CHECK(failed.failure.text.find("operator 0 in call 1") != std::string::npos);
    for (const LocalResult& result : results) CHECK(result.ending != Ending::kOk);
    std::remove("genie-test-lost.evt");
}

TEST_CASE("a rank that never sends is a stall, named by who waited for whom") {
    ProgramBuilder a(0, 2);
    ProgramBuilder b(1, 2);
    a.call(1, a.make_template({{StepKind::kRecv, 0, 1}}), 0);
    b.compute(0);
    b.connection(0, 0);
    a.header.timeout_ns = 50'000'000;
    const auto results = run_job({a, b});
    CHECK(results[0].failure.code == Code::kStall);
    CHECK(results[0].failure.peer == 1);
    CHECK(results[0].failure.waited_ns >= 50'000'000);
    CHECK(results[1].ending == Ending::kOk);
}

TEST_CASE("sizes that differ are an error by name") {
    auto builders = ring_job(2, 100'000);
    builders[1].calls[0].bytes = 100'002;
    const auto results = run_job(builders);
    CHECK(first_failed(results).failure.code == Code::kSizeMismatch);
    CHECK(first_failed(results).failure.text.find("expected 5000") != std::string::npos);
}

TEST_CASE("a payload that is not the pattern fails verification") {
    auto builders = ring_job(2, 100'000);
    builders[0].header.flags |= kFlagVerify;  // the other sends zeros
    const auto results = run_job(builders);
    CHECK(results[0].failure.code == Code::kBadPayload);
    CHECK(results[0].failure.peer == 1);
    CHECK(results[0].failure.text.find("byte 0 of message 0 of call 1 from rank 1") != std::string::npos);
}

TEST_CASE("a rank with another token is refused, and the other side says so") {
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
    const auto results = run_job(builders, {}, options);
    for (const LocalResult& result : results) CHECK(result.ending != Ending::kOk);
    CHECK(first_failed(results).failure.code == Code::kConnect);
    CHECK(said.find("refused a connection from 127.0.0.1:") != std::string::npos);
    CHECK(said.find("it lacks this run's token") != std::string::npos);
}

TEST_CASE("an unknown congestion control is refused by name") {
    auto builders = ring_job(2, 1000);
    std::memcpy(builders[0].header.congestion_control, "nonesuch", 8);
    const auto results = run_job(builders);
    CHECK(results[0].failure.text.find("congestion control 'nonesuch'") != std::string::npos);
}

TEST_CASE("an abort stops every rank at once, with what it waited for") {
    std::vector<ProgramBuilder> builders;
    for (std::uint32_t r = 0; r < 2; ++r) {
        ProgramBuilder& builder = builders.emplace_back(r, 2);
        const std::uint32_t slow = builder.compute(r == 0 ? 60'000'000'000 : 0);
        builder.call(1, builder.make_template({{r == 0 ? StepKind::kSend : StepKind::kRecv, 0, 1 - r}}), 0, 1,
                     {slow});
    }
    LocalOptions options;
    options.abort_after = 200_ms;
    const Nanos begin = monotonic_now();
    const auto results = run_job(builders, {}, options);
    CHECK(monotonic_now() - begin < 1000_ms);
    CHECK(results[0].ending == Ending::kAborted);
    CHECK(results[0].failure.text.find("operator 0 was computing") != std::string::npos);
    CHECK(results[1].ending == Ending::kAborted);
    CHECK(results[1].failure.text.find("from rank 0") != std::string::npos);
}

TEST_CASE("ranks in the middle of traffic stop at once when they are told to") {
    for (const std::uint64_t spin_ns : {0ULL, 10'000'000'000ULL}) {  // one that spins must look up, too
        std::vector<ProgramBuilder> builders;
        for (std::uint32_t r = 0; r < 3; ++r) {
            ProgramBuilder& builder = builders.emplace_back(r, 3);
            builder.header.iterations = 10'000'000;
            builder.header.spin_ns = spin_ns;
            const std::uint32_t ring = builder.make_template(ring_all_reduce(r, 3));
            builder.compute(0, {builder.call(1, ring, 3'000'000, 32 << 10)});
        }
        LocalOptions options;
        options.abort_after = 200_ms;
        const Nanos begin = monotonic_now();
        const auto results = run_job(builders, {}, options);
        CHECK(monotonic_now() - begin < 1000_ms);
        for (const LocalResult& result : results) {
            CAPTURE(result.rank);
            CHECK(result.ending == Ending::kAborted);
            CHECK(result.failure.text.find("the time was up") != std::string::npos);
        }
    }
}

TEST_CASE("a fixed source port is used") {
    ProgramBuilder a(0, 2);
    ProgramBuilder b(1, 2);
    a.call(1, a.make_template({{StepKind::kRecv, 0, 1}}), 0);
    b.call(1, b.make_template({{StepKind::kSend, 0, 0}}), 0);
    b.connections[0].local_port = 31'234;
    all_ok(run_job({a, b}));
    all_ok(run_job({a, b}));  // again at once: TIME_WAIT is no obstacle
}

TEST_CASE("many ranks, all to all") {
    constexpr std::uint32_t kRanks = 16;
    std::vector<ProgramBuilder> builders;
    for (std::uint32_t r = 0; r < kRanks; ++r) {
        ProgramBuilder& builder = builders.emplace_back(r, kRanks);
        builder.header.iterations = 3;
        builder.call(1, builder.make_template(all_to_all(r, kRanks)), 0, 1 << 20, {}, kNone,
                     std::vector<std::uint64_t>(2 * kRanks, 5000));
    }
    all_ok(run_job(builders));
}

}  // namespace
}  // namespace genie::test
