// Whole jobs over libfabric's tcp and shm providers: what arrives, and how each kind of trouble is named.
#ifdef GENIE_WITH_OFI

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

#include "transport_checks.h"

namespace genie::test {
namespace {

std::string ofi_settings(const std::string& provider = "tcp", std::uint32_t slots = 8,
                         const std::string& domain = "") {
    return "provider=" + provider + "\ndomain=" + domain + "\nslots=" + std::to_string(slots) + "\n";
}

RunJob by_provider(const std::string& provider, std::uint32_t slots = 8) {
    return [=](std::vector<ProgramBuilder> builders, const std::vector<std::string>& paths,
               const LocalOptions& options) {
        use_transport(builders, "ofi", ofi_settings(provider, slots));
        return run_job(builders, paths, options);
    };
}

const RunJob kRunOfi = by_provider("tcp");

std::vector<LocalResult> run_ofi(const std::vector<ProgramBuilder>& builders,
                                 const std::string& provider = "tcp", std::uint32_t slots = 8) {
    return by_provider(provider, slots)(builders, {}, {});
}

TEST_CASE("ring all-reduce over libfabric, with and without verification, window, spinning") {
    carries_rings(kRunOfi, 4, {0, 4097, 1'000'001});
}

TEST_CASE("a slot is enough for libfabric") {
    auto builders = ring_job(4, 1'000'001, 2);
    for (ProgramBuilder& builder : builders) builder.header.window_messages = 1;
    all_ok(run_ofi(builders, "tcp", 1));
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
    records_both_ends(kRunOfi, "genie-ofi");
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

TEST_CASE("many ranks, all to all, over libfabric") { all_ok(run_ofi(all_to_all_job(12))); }

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
    use_transport(builders, "ofi", ofi_settings("tcp", 8, "nosuch0"));
    const LocalResult failed = first_failed(run_job(builders));
    CHECK(failed.failure.code == Code::kConnect);
    CHECK(failed.failure.text.find("on domain 'nosuch0'") != std::string::npos);
}

TEST_CASE("settings that libfabric's transport does not know are refused") {
    refuses_unknown_settings(
        [](std::vector<ProgramBuilder> builders, const std::vector<std::string>& paths,
           const LocalOptions& options) {
            use_transport(builders, "ofi", builders[0].settings);
            return run_job(builders, paths, options);
        },
        ofi_settings());
}

TEST_CASE("more receives than a provider takes are refused with what to lower") {
    const LocalResult failed = first_failed(run_ofi(ring_job(2, 1000, 64), "shm", 1024));
    CAPTURE(failed.failure.text);
    CHECK(failed.failure.text.find("lower transport.slots") != std::string::npos);
}

TEST_CASE("sizes that differ are an error by name over libfabric") {
    SUBCASE("shorter") { refuses_other_sizes(kRunOfi, 99'998); }
    SUBCASE("longer than any receive") { refuses_other_sizes(kRunOfi, 100'002); }
}

TEST_CASE("a payload that is not the pattern fails verification over libfabric") {
    refuses_other_payload(kRunOfi);
}

TEST_CASE("over libfabric a rank with another token is refused, and the other side says so") {
    const std::string said = refuses_other_tokens(kRunOfi, 1);
    CHECK(said.find("rank 0: refused a greeting for rank 1: it lacks this run's token") != std::string::npos);
}

TEST_CASE("over libfabric a connection that breaks ends the run with the name of the peer") {
    const LocalResult failed = notices_a_break(kRunOfi, 50'000'000);
    CAPTURE(failed.failure.text);
    const bool named = failed.failure.text.find(" was broken") != std::string::npos ||
                       failed.failure.text.find("over tcp;ofi_rxm failed: ") != std::string::npos;
    CHECK(named);
    CHECK(failed.failure.peer < 3);
}

TEST_CASE("ranks in the middle of traffic over libfabric stop at once when they are told to") {
    for (const char* provider : {"tcp", "shm"}) stops_at_once(by_provider(provider));
}

TEST_CASE("a message of a call that this rank has not is refused over libfabric") {
    refuses_unknown_calls(kRunOfi, false);
}

}  // namespace
}  // namespace genie::test

#endif
