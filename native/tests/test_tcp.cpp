// Whole jobs over loopback TCP: what arrives, and how each kind of trouble is named.
#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <sys/socket.h>

#include <cstdio>
#include <string>

#include "clock.h"
#include "transport_checks.h"

namespace genie::test {
namespace {

const RunJob kRunTcp = [](const std::vector<ProgramBuilder>& builders, const std::vector<std::string>& paths,
                          const LocalOptions& options) { return run_job(builders, paths, options); };

TEST_CASE("ring all-reduce over TCP, with and without verification, window, spinning") {
    carries_rings(kRunTcp, 4, {0, 1, 4097, 3'000'001});
}

TEST_CASE("both ends record every message under one name, in order of time") {
    records_both_ends(kRunTcp, "genie-test");
}

TEST_CASE("a peer that resets its connections is named; what was recorded is kept") {
    const LocalResult failed = notices_a_break(kRunTcp, 50'000'000, {"genie-test-lost.evt", "", ""});
    CHECK(failed.failure.code == Code::kPeerClosed);
    CHECK(failed.failure.op == 0);
    CHECK(failed.failure.call_id == 1);
    CHECK(failed.failure.text.find("operator 0 in call 1") != std::string::npos);
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
    CHECK(refuses_other_sizes(kRunTcp, 100'002).failure.text.find("expected 5000") != std::string::npos);
}

TEST_CASE("a message of a call that this rank has not is refused with its iteration") {
    refuses_unknown_calls(kRunTcp, true);
}

TEST_CASE("a payload that is not the pattern fails verification") { refuses_other_payload(kRunTcp); }

TEST_CASE("a rank with another token is refused, and the other side says so") {
    const std::string said = refuses_other_tokens(kRunTcp, 1);
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
    stops_at_once(kRunTcp, 0, 1000_ms);
    stops_at_once(kRunTcp, 10'000'000'000, 1000_ms);  // one that spins must look up, too
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

TEST_CASE("many ranks, all to all") { all_ok(run_job(all_to_all_job(16))); }

}  // namespace
}  // namespace genie::test
