// Whole jobs over the verbs transport on the fake device, which is stricter than a real one: what arrives,
// how many requests it takes, and how each kind of trouble is named.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "clock.h"
#include "verbs_fake.h"
#include "verbs_job.h"

namespace genie::test {

std::uint64_t allocations_made();  // test_steady_state.cpp

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
    bool infiniband = false;
};

// As on InfiniBand, but for every message that is longer than 100 bytes.
Changes data_first(Changes also = {}) {
    also["adaptive_routing"] = "true";
    also["ar_threshold_bytes"] = "100";
    return also;
}

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
        {"data first", data_first()},
        {"data first, one slot", data_first({{"slots", "1"}})},
        {"data first, however short", {{"adaptive_routing", "true"}, {"ar_threshold_bytes", "0"}}},
        {"data first, many slots", data_first({{"slots", "100"}, {"credit_every", "30"}})},
        {"data first, in turns",
         data_first({{"qps_per_connection", "3"}, {"slots", "7"}, {"completion", "busy"}}), 2, 0, true},
        {"data first, split",
         data_first({{"qps_per_connection", "4"}, {"split", "1"}, {"completion", "busy"}}), 0, 0, true},
        {"InfiniBand", {{"ar_threshold_bytes", "5000"}}, 0, 0, false, true},
        {"InfiniBand, send", {{"mode", "send"}}, 0, 0, false, true},
        {"strict ordering", {{"pci_relaxed_ordering", "false"}}},
    };
    for (const Case& one : cases) {
        for (const std::uint64_t bytes : {0ULL, 1ULL, 4097ULL, 300'001ULL}) {
            for (const bool verify : {true, false}) {
                CAPTURE(std::string(one.name));
                CAPTURE(bytes);
                CAPTURE(verify);
                FakeDevice::get().reset();
                FakeDevice::get().shuffled = one.shuffled;
                if (one.infiniband) FakeDevice::get().port.link_layer = IBV_LINK_LAYER_INFINIBAND;
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

// Takes all that comes, as a rank that has nothing else to do would.
class Taker final : public Sink {
  public:
    bool expect(std::uint32_t, std::uint32_t call_id, Nanos, Frame& frame) override {
        frame = {};
        frame.call_id = call_id;
        frame.bytes = 64;
        return true;
    }
    bool on_header(std::uint32_t, const Frame&, Nanos) override { return false; }
    void on_wrong_size(std::uint32_t, const Frame&) override { lost = "another size"; }
    void on_message(std::uint32_t, Nanos) override { ++messages; }
    void on_sent(std::uint32_t, SendTimes) override {}
    void on_free(std::uint32_t) override { ++freed; }
    void on_credit(std::uint32_t, std::uint64_t, Nanos) override {}
    void on_lost(std::uint32_t, Code, const std::string& reason) override { lost = reason; }

    int messages = 0;
    int freed = 0;
    std::string lost;
};

std::vector<ProgramBuilder> one_way(const Changes& settings, std::uint64_t bytes = 64) {
    std::vector<ProgramBuilder> builders;
    for (std::uint32_t r = 0; r < 2; ++r) {
        ProgramBuilder& builder = builders.emplace_back(verbs_builder(r, 2, settings, false));
        const StepKind kind = r == 0 ? StepKind::kSend : StepKind::kRecv;
        builder.call(1, builder.make_template({{kind, 0, 1 - r, SizeKind::kBlock, 0, 1, {}, 0}}), bytes);
    }
    return builders;
}

TEST_CASE("sixteen messages take one doorbell, their credits another, and the sender then goes on") {
    FakeDevice::get().reset();
    VerbsRanks ranks = connected_ranks(one_way({{"slots", "16"}}), FakeDevice::library());
    VerbsTransport& sender = ranks[0]->transport();
    VerbsTransport& receiver = ranks[1]->transport();
    Taker at_sender;
    Taker at_receiver;
    const Nanos now = monotonic_now();
    for (int round = 1; round <= 10; ++round) {
        CAPTURE(round);
        Frame frame;
        frame.call_id = 1;
        frame.bytes = 64;
        SendTimes times{};
        for (int i = 0; i < 16; ++i) {
            REQUIRE_FALSE(sender.busy(0));
            CHECK(sender.send(0, frame, times));
        }
        CHECK(sender.busy(0));
        CHECK_FALSE(sender.drained());
        CHECK(receiver.stats().completions == static_cast<std::uint64_t>(16 * (round - 1) + (round - 1)));
        sender.gather(now, now);
        CHECK(sender.stats().doorbells == static_cast<std::uint64_t>(round));
        CHECK(sender.stats().signalled == static_cast<std::uint64_t>(round));
        receiver.gather(now, now);
        CHECK(receiver.gathered());
        CHECK(receiver.poll(at_receiver, now));
        CHECK(at_receiver.messages == 16 * round);
        receiver.gather(now, now);
        CHECK(receiver.stats().credits == static_cast<std::uint64_t>(16 * round));
        CHECK(receiver.stats().doorbells == static_cast<std::uint64_t>(round));
        receiver.poll(at_receiver, now);
        CHECK(receiver.drained());
        sender.poll(at_sender, now);  // its own completion, found when it posted
        sender.poll(at_sender, now);
        CHECK(at_sender.lost == "");
        CHECK(at_sender.freed == round);
        CHECK(sender.drained());
    }
    CHECK(at_sender.lost == "");
    CHECK(at_receiver.lost == "");
    CHECK(FakeDevice::get().complaint == "");
}

struct Split {
    const char* name;
    Changes settings;
    bool infiniband;
    std::uint64_t bytes;
    std::uint64_t requests, data_first;  // of the sender
};

TEST_CASE("data go first where NCCL sends them first") {
    const Split cases[] = {
        {"Ethernet", {}, false, 100'000, 1, 0},
        {"Ethernet, told", {{"adaptive_routing", "true"}}, false, 100'000, 2, 1},
        {"InfiniBand", {}, true, 100'000, 2, 1},
        {"InfiniBand, told not", {{"adaptive_routing", "false"}}, true, 100'000, 1, 0},
        {"InfiniBand, send", {{"mode", "send"}}, true, 100'000, 1, 0},
        {"as long as the threshold", {}, true, 8192, 1, 0},
        {"a byte longer", {}, true, 8193, 2, 1},
        {"the threshold is of messages, not of parts",
         {{"qps_per_connection", "4"}, {"split", "1"}},
         true,
         8193,
         8,
         4},
        {"parts of no bytes",
         {{"qps_per_connection", "4"}, {"split", "1"}, {"ar_threshold_bytes", "0"}},
         true,
         1,
         8,
         4},
    };
    for (const Split& one : cases) {
        CAPTURE(std::string(one.name));
        FakeDevice::get().reset();
        if (one.infiniband) FakeDevice::get().port.link_layer = IBV_LINK_LAYER_INFINIBAND;
        auto builders = one_way(one.settings, one.bytes);
        for (ProgramBuilder& builder : builders) builder.header.iterations = 1;
        VerbsRanks ranks = connected_ranks(builders, FakeDevice::library());
        all_ok(run_ranks(ranks));
        CHECK(ranks[0]->transport().stats().sends == one.requests);
        CHECK(ranks[0]->transport().stats().data_first == one.data_first);
        CHECK(ranks[1]->events().header().bytes_received.load() == one.bytes);
        const bool said = ranks[0]->used().find("\"data_first_above_bytes\": null") == std::string::npos;
        CHECK(said == (one.data_first > 0 || one.bytes == 8192));
    }
}

TEST_CASE("data that came first where a short message was due are a size that differs") {
    FakeDevice::get().reset();
    auto builders = one_way(data_first(), 200);
    for (ProgramBuilder& builder : builders) builder.call(2, 0, 200);  // so that it has room for that much
    builders[1].calls[0].bytes = 100;
    VerbsRanks ranks = connected_ranks(builders, FakeDevice::library());
    const auto failures = run_ranks(ranks);
    CHECK(failures[1].code == Code::kSizeMismatch);
    CHECK(failures[1].text.find("longer than transport.ar_threshold_bytes=100 do") != std::string::npos);
    CHECK(failures[1].text.find("expected 100 bytes") != std::string::npos);
}

struct Ordering {
    const char* name;
    const char* setting;
    bool library_can;
    bool relaxed;
};

TEST_CASE("memory is registered with relaxed ordering as NCCL does") {
    const Ordering cases[] = {
        {"auto", "auto", true, true},
        {"told", "true", true, true},
        {"told not", "false", true, false},
        {"auto with an old library", "auto", false, false},
    };
    for (const Ordering& one : cases) {
        CAPTURE(std::string(one.name));
        FakeDevice::get().reset();
        VerbsLibrary library = FakeDevice::library();
        if (!one.library_can) library.reg_mr_iova2 = nullptr;
        VerbsRanks ranks = connected_ranks(one_way({{"pci_relaxed_ordering", one.setting}}), library);
        CHECK(((FakeDevice::get().access & IBV_ACCESS_RELAXED_ORDERING) != 0) == one.relaxed);
        const char* const said = one.relaxed ? "\"relaxed_ordering\": true" : "\"relaxed_ordering\": false";
        CHECK(ranks[0]->used().find(said) != std::string::npos);
        all_ok(run_ranks(ranks));
    }
    FakeDevice::get().reset();
    VerbsLibrary old = FakeDevice::library();
    old.reg_mr_iova2 = nullptr;
    CHECK_THROWS_WITH_AS(connected_ranks(one_way({{"pci_relaxed_ordering", "true"}}), old),
                         "transport.pci_relaxed_ordering=true, but libibverbs on this host has no "
                         "ibv_reg_mr_iova2: expected rdma-core 28 or newer; update it, or set this to auto",
                         Failure);
}

TEST_CASE("a rank says what it uses, for the run's record") {
    FakeDevice::get().reset();
    FakeDevice::get().most_inline = 20;
    const VerbsRanks ranks = connected_ranks(one_way({{"qps_per_connection", "2"}}), FakeDevice::library());
    CHECK(ranks[0]->used() ==
          "{\"device\": \"fake0\", \"firmware\": \"1.2.3\", \"port\": 1, \"link_layer\": \"Ethernet\", "
          "\"gid_index\": 1, \"gid\": \"::ffff:127.0.0.1\", \"gid_type\": \"RoCE v2\", \"gid_why\": \"the "
          "first RoCE v2 GID with an IPv4 address, as NCCL takes\", \"interface\": \"\", \"lid\": 0, "
          "\"mtu_bytes\": 4096, \"queue_pairs\": 2, \"inline_bytes\": 16, \"relaxed_ordering\": true, "
          "\"data_first_above_bytes\": null}");
}

TEST_CASE("fewer credits where they are asked for") {
    FakeDevice::get().reset();
    auto builders = one_way({{"slots", "16"}, {"credit_every", "8"}}, 1000 * 64);
    for (ProgramBuilder& builder : builders) builder.calls[0].chunk_bytes = 64;
    VerbsRanks ranks = connected_ranks(builders, FakeDevice::library());
    all_ok(run_ranks(ranks));
    CHECK(ranks[0]->events().header().messages_sent.load() == 3000);
    CHECK(ranks[1]->transport().stats().credits == 3000 / 8);
}

TEST_CASE("neither side of a connection overruns what the device holds, whatever the depth") {
    for (const char* slots : {"1", "2", "3", "17"}) {
        for (const char* queues : {"1", "2", "5"}) {
            CAPTURE(slots);
            CAPTURE(queues);
            FakeDevice::get().reset();
            FakeDevice::get().shuffled = true;
            auto builders =
                ring_job({{"slots", slots}, {"qps_per_connection", queues}, {"completion", "busy"}});
            VerbsRanks ranks = connected_ranks(builders, FakeDevice::library());
            all_ok(run_ranks(ranks));
        }
    }
}

const FailureReport& first_failed(const std::vector<FailureReport>& failures) {
    return *std::find_if(failures.begin(), failures.end(), [](const FailureReport& failure) {
        return failure.code != Code::kNone && failure.code != Code::kAborted;
    });
}

void names(const FailureReport& failure, Code code, std::initializer_list<const char*> parts) {
    CHECK(failure.code == code);
    for (const char* part : parts) {
        CAPTURE(part);
        CAPTURE(failure.text);
        CHECK(failure.text.find(part) != std::string::npos);
    }
}

TEST_CASE("a message of a call that this rank has not is refused without an iteration that nobody said") {
    FakeDevice::get().reset();
    auto builders = one_way({});
    builders[1].calls[0].call_id = 77;
    VerbsRanks ranks = connected_ranks(builders, FakeDevice::library());
    const auto failures = run_ranks(ranks);
    CHECK(failures[1].code == Code::kProtocol);
    CHECK(failures[1].text == "rank 0 sent a message of a call this rank takes no part in: call 1");
    CHECK(failures[1].iteration == kNone);
}

TEST_CASE("a peer that fell silent is named, with the operator, the peer and the likely cause") {
    FakeDevice::get().reset();
    VerbsRanks ranks = connected_ranks(ring_job({}, true, 300'001, 2, 1), FakeDevice::library());
    ranks[1]->transport().break_connection(0);
    const auto failures = run_ranks(ranks);
    names(failures[0], Code::kTransport,
          {"IBV_WC_RETRY_EXC_ERR", "(fake0 port 1) to rank 1 (GID ::ffff:127.0.0.1", "8 attempts of 4.29 s",
           "operator 0 in call 1"});
    CHECK(failures[0].peer == 1);
    CHECK(failures[0].op == 0);
}

struct Stall {
    const char* name;
    Changes settings;
    const char* text;
    const char* absent;
};

// The fake's network drops what a silent queue pair would send, and never says so.
TEST_CASE("a stall says what was not acknowledged, and where the device would have told too late") {
    const Stall cases[] = {
        {"NCCL's defaults", {}, "the device gives up after 34.4 s at the earliest", "without end"},
        {"a device that would have told", {{"timeout", "8"}}, "requests are not acknowledged", "gives up"},
        {"no timeout", {{"timeout", "0"}}, "without end (transport.timeout=0)", "gives up"},
    };
    for (const Stall& one : cases) {
        CAPTURE(std::string(one.name));
        FakeDevice::get().reset();
        auto builders = one_way(one.settings);
        builders[0].header.timeout_ns = 50'000'000;
        VerbsRanks ranks = connected_ranks(builders, FakeDevice::library());
        ranks[0]->transport().break_connection(0);
        const FailureReport failure = ranks[0]->run();
        CAPTURE(failure.text);
        CHECK(failure.code == Code::kStall);
        CHECK(failure.text.find("no progress; 3 requests are not acknowledged, the first on queue pair") ==
              0);
        CHECK(failure.text.find("to rank 1 (GID ::ffff:127.0.0.1") != std::string::npos);
        CHECK(failure.text.find(one.text) != std::string::npos);
        CHECK(failure.text.find(one.absent) == std::string::npos);
    }
}

TEST_CASE("a wrong key is a remote access error") {
    FakeDevice::get().reset();
    VerbsRanks ranks = connected_ranks(ring_job({}, true, 300'001, 2, 1), FakeDevice::library(),
                                       [](std::vector<Endpoint>& endpoints) {
                                           VerbsCard card = VerbsCard::parse(endpoints[1].card, 1);
                                           card.rkey += 1000;
                                           endpoints[1].card = card.bytes();
                                       });
    names(first_failed(run_ranks(ranks)), Code::kTransport, {"IBV_WC_REM_ACCESS_ERR", "rank 1", "key"});
}

TEST_CASE("payload that changed on its way is named") {
    for (const char* mode : {"write", "send"}) {
        FakeDevice::get().reset();
        FakeDevice::get().corrupt = true;
        VerbsRanks ranks =
            connected_ranks(ring_job({{"mode", mode}}, true, 4000, 2, 1), FakeDevice::library());
        names(first_failed(run_ranks(ranks)), Code::kBadPayload,
              {"byte 1000 of message 0 of call 1 from rank"});
    }
}

TEST_CASE("events of the device: a port that went down is remembered, a broken queue pair ends the run") {
    FakeDevice::get().reset();
    VerbsRanks ranks = connected_ranks(one_way({}), FakeDevice::library());
    VerbsTransport& receiver = ranks[1]->transport();
    const std::uint32_t number = VerbsCard::parse(ranks[1]->card(), 1).flows[0].queue_pairs[0].number;
    Taker taker;
    FakeDevice::get().raise(IBV_EVENT_PORT_ERR, 0);
    const Nanos now = monotonic_now();
    receiver.gather(now, now);
    CHECK_FALSE(receiver.gathered());
    CHECK(ranks[1]->logged().find("IBV_EVENT_PORT_ERR on fake0 port 1") != std::string::npos);
    FakeDevice::get().raise(IBV_EVENT_QP_FATAL, number);
    receiver.gather(now + 1000_ms, now + 1000_ms);
    CHECK(receiver.gathered());
    receiver.poll(taker, now);
    CHECK(taker.lost.find("IBV_EVENT_QP_FATAL on queue pair " + std::to_string(number)) != std::string::npos);
    CHECK(taker.lost.find("from rank 0") != std::string::npos);

    Taker other;
    FakeDevice::get().raise(IBV_EVENT_DEVICE_FATAL, 0);
    ranks[0]->transport().gather(now + 2000_ms, now + 2000_ms);
    ranks[0]->transport().poll(other, now);
    CHECK(other.lost.find("IBV_EVENT_DEVICE_FATAL on fake0 port 1") != std::string::npos);
}

TEST_CASE("an event wakes a rank that sleeps, as does its owner") {
    for (const bool by_event : {true, false}) {
        FakeDevice::get().reset();
        VerbsRanks ranks = connected_ranks(one_way({{"completion", "events"}}), FakeDevice::library());
        std::thread sleeper([&] { ranks[1]->transport().gather(monotonic_now(), Nanos::never()); });
        if (by_event) {
            FakeDevice::get().raise(IBV_EVENT_DEVICE_FATAL, 0);
        } else {
            ranks[1]->stop();
        }
        sleeper.join();
        CHECK(ranks[1]->transport().gathered() == by_event);
    }
}

struct Refused {
    const char* name;
    Changes settings;
    void (*device)(FakeDevice&);
    const char* text;
};

TEST_CASE("what cannot be is refused when a rank opens, with the limit and the cure") {
    const Refused cases[] = {
        {"no device", {}, [](FakeDevice& fake) { fake.absent = true; }, "this host has no RDMA device"},
        {"iWARP", {}, [](FakeDevice& fake) { fake.iwarp = true; }, "fake0 speaks iWARP"},
        {"another name", {{"device", "mlx5_9"}}, nullptr, "has no RDMA device mlx5_9, but fake0"},
        {"no such port", {{"port", "2"}}, nullptr, "fake0 has 1 port(s), found transport.port=2"},
        {"port down",
         {},
         [](FakeDevice& fake) { fake.port.state = IBV_PORT_DOWN; },
         "fake0 port 1 is not active: is its interface up"},
        {"no such GID", {{"gid_index", "3"}}, nullptr, "no GID at index 3 (transport.gid_index)"},
        {"MTU above the port's",
         {{"mtu", "4096"}},
         [](FakeDevice& fake) { fake.port.active_mtu = IBV_MTU_1024; },
         "active MTU of 1024 bytes, found transport.mtu=4096"},
        {"message too long", {}, [](FakeDevice& fake) { fake.port.max_msg_sz = 1000; }, "max_msg_sz"},
        {"completion queue too short",
         {},
         [](FakeDevice& fake) { fake.limits.max_cqe = 20; },
         "fake0 allows 20 (max_cqe) but this rank needs"},
        {"queue pair too short",
         {},
         [](FakeDevice& fake) { fake.limits.max_qp_wr = 10; },
         "fake0 allows 10 (max_qp_wr) but this rank needs 16: lower transport.slots"},
        {"memory refused",
         {},
         [](FakeDevice& fake) { fake.refuse_memory = true; },
         "MiB of memory with fake0: Cannot allocate memory"},
    };
    for (const Refused& one : cases) {
        CAPTURE(std::string(one.name));
        FakeDevice::get().reset();
        if (one.device != nullptr) one.device(FakeDevice::get());
        std::string text;
        try {
            const VerbsRanks ranks = connected_ranks(ring_job(one.settings), FakeDevice::library());
        } catch (const Failure& failure) {
            text = failure.what();
        }
        CAPTURE(text);
        CHECK(text.find(one.text) != std::string::npos);
        CHECK(FakeDevice::get().objects() == 0);
    }
}

TEST_CASE("ranks whose settings differ are told which") {
    struct Pair {
        Changes mine, theirs;
        const char* text;
    };
    const Pair cases[] = {
        {{}, {{"slots", "4"}}, "rank 1 has slots 4, this rank 8"},
        {{}, {{"qps_per_connection", "2"}}, "rank 1 has queue pairs of a connection 2, this rank 1"},
        {{}, {{"mode", "send"}}, "rank 1 has mode (0 write, 1 send) 1, this rank 0"},
        {{}, data_first(), "rank 1 has adaptive routing above 100, this rank off"},
    };
    for (const Pair& one : cases) {
        FakeDevice::get().reset();
        auto builders = one_way(one.mine);
        builders[1].settings = verbs_settings(one.theirs);
        CHECK_THROWS_WITH_AS(connected_ranks(builders, FakeDevice::library()),
                             (std::string(one.text) + ": expected the same on all ranks").c_str(), Failure);
    }
    FakeDevice::get().reset();
    auto builders = one_way({});
    ProgramBuilder other = verbs_builder(1, 2, {}, false);
    other.compute(0);
    other.connection(0, 0);
    builders[1] = other;
    CHECK_THROWS_WITH_AS(
        connected_ranks(builders, FakeDevice::library()),
        "rank 1 has no end for what this rank sends to it on channel 0: their programs do not "
        "fit together",
        Failure);
}

TEST_CASE("a call id that does not fit the immediate is refused") {
    FakeDevice::get().reset();
    auto builders = one_way({});
    builders[0].calls[0].call_id = 1U << 30;
    CHECK_THROWS_AS(connected_ranks(builders, FakeDevice::library()), Failure);
}

TEST_CASE("a device that takes less inline gets less") {
    FakeDevice::get().reset();
    FakeDevice::get().most_inline = 20;
    VerbsRanks ranks = connected_ranks(ring_job({}), FakeDevice::library());
    all_ok(run_ranks(ranks));
    CHECK(ranks[0]->logged().find("the device takes 16 bytes inline, not 64") != std::string::npos);
}

TEST_CASE("after its warm-up a rank over verbs allocates nothing at all") {
    const Changes settings[] = {{{"slots", "4"}},
                                {{"slots", "4"}, {"qps_per_connection", "3"}},
                                data_first({{"slots", "4"}, {"qps_per_connection", "3"}})};
    for (const Changes& one : settings) {
        for (const bool verify : {false, true}) {
            FakeDevice::get().reset();
            auto builders = ring_job(one, verify, 100'001, 3, 1);
            for (ProgramBuilder& builder : builders) builder.header.iterations = 100;
            VerbsRanks ranks = connected_ranks(builders, FakeDevice::library());
            for (const auto& rank : ranks) rank->begin();
            const auto run_until = [&](std::uint32_t iteration) {
                for (bool on = true; on;) {
                    on = false;
                    for (const auto& rank : ranks) on |= rank->step() && rank->iteration() < iteration;
                }
            };
            run_until(20);
            const std::uint64_t before = allocations_made();
            run_until(90);
            CHECK(allocations_made() == before);
            run_until(101);
            for (const auto& rank : ranks) CHECK(rank->failure().text == "");
            CHECK(ranks[0]->iteration() == 100);
        }
    }
}

}  // namespace
}  // namespace genie::test
