// The parts of the verbs transport that need no device: queues, order of arrival, cards, settings, GIDs,
// texts.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "verbs_card.h"
#include "verbs_device.h"
#include "verbs_error.h"
#include "verbs_job.h"
#include "verbs_queue.h"
#include "verbs_settings.h"

namespace genie::test {
namespace {

// What reached the device, chain by chain.
struct Posted {
    std::vector<std::vector<ibv_send_wr>> sends;
    std::vector<std::vector<std::uint64_t>> receives;
    int answer = 0;
};

Posted* posted = nullptr;

struct FakePair {
    ibv_context context{};
    ibv_qp pair{};
    Posted seen;

    FakePair() {
        posted = &seen;
        context.ops.post_send = [](ibv_qp*, ibv_send_wr* request, ibv_send_wr**) {
            posted->sends.emplace_back();
            for (; request != nullptr; request = request->next) posted->sends.back().push_back(*request);
            return posted->answer;
        };
        context.ops.post_recv = [](ibv_qp*, ibv_recv_wr* request, ibv_recv_wr**) {
            posted->receives.emplace_back();
            for (; request != nullptr; request = request->next)
                posted->receives.back().push_back(request->wr_id);
            return posted->answer;
        };
        pair.context = &context;
    }
};

bool signalled(const ibv_send_wr& request) { return (request.send_flags & IBV_SEND_SIGNALED) != 0; }

TEST_CASE("sends that wait go out with one doorbell, signalled at every sixteenth and at the end") {
    FakePair fake;
    SendQueue queue;
    VerbsStats stats;
    queue.set_up(5, 64);
    for (std::uint32_t i = 0; i < 40; ++i) {
        ibv_sge* piece = nullptr;
        queue.add(piece).imm_data = i;
    }
    CHECK(fake.seen.sends.empty());
    CHECK(queue.post(&fake.pair, stats) == 0);
    REQUIRE(fake.seen.sends.size() == 1);
    const std::vector<ibv_send_wr>& chain = fake.seen.sends[0];
    REQUIRE(chain.size() == 40);
    for (std::uint32_t i = 0; i < 40; ++i) {
        CHECK(chain[i].imm_data == i);
        CHECK(signalled(chain[i]) == (i == 15 || i == 31 || i == 39));
        const WorkId id = WorkId::from(chain[i].wr_id);
        CHECK_FALSE(id.receive);
        CHECK(id.queue == 5);
        CHECK(id.sequence == i);
    }
    CHECK(stats.doorbells == 1);
    CHECK(stats.sends == 40);
    CHECK(stats.signalled == 3);
    CHECK(queue.outstanding() == 40);
    CHECK(queue.retire(31) == 32);
    CHECK(queue.outstanding() == 8);
    CHECK(queue.retired(31));
    CHECK_FALSE(queue.retired(32));
}

TEST_CASE("a send queue is full at its depth and signals at least twice within it") {
    for (const std::uint32_t depth : {2U, 3U, 8U, 100U}) {
        CAPTURE(depth);
        FakePair fake;
        SendQueue queue;
        VerbsStats stats;
        queue.set_up(0, depth);
        ibv_sge* piece = nullptr;
        while (queue.has_room(1)) {
            queue.add(piece);
            if (queue.chain_full()) queue.post(&fake.pair, stats);
        }
        if (!queue.chain_empty()) queue.post(&fake.pair, stats);
        CHECK(stats.sends == depth);
        CHECK_FALSE(queue.has_room(1));
        queue.retire(0);
        CHECK(queue.has_room(1));
        CHECK_FALSE(queue.has_room(2));
        CHECK(stats.signalled >= 2);
        CHECK(stats.doorbells == (depth + 63) / 64);
    }
}

TEST_CASE("a request is complete once it or a later one was retired") {
    FakePair fake;
    SendQueue queue;
    VerbsStats stats;
    queue.set_up(0, 4);
    for (std::uint32_t i = 0; i < 1000; ++i) {
        ibv_sge* piece = nullptr;
        queue.add(piece);
        queue.post(&fake.pair, stats);
        CHECK(queue.last() == i);
        CHECK_FALSE(queue.retired(i));
        CHECK(queue.retire(WorkId::from(fake.seen.sends.back()[0].wr_id).sequence) == 1);
        CHECK(queue.retired(i));
    }
}

TEST_CASE("receives are posted in batches, and always enough of them are there") {
    FakePair fake;
    ReceiveQueue queue;
    VerbsStats stats;
    queue.set_up(3, 8);
    CHECK(queue.depth() == 16);
    CHECK(queue.post(&fake.pair, stats) == 0);
    CHECK(stats.receives == 16);
    CHECK(stats.receive_posts == 1);
    for (std::uint32_t i = 0; i < 100; ++i) {
        CHECK(queue.take() == i % 16);
        queue.give_back();
        if (queue.due()) CHECK(queue.post(&fake.pair, stats) == 0);
        CHECK(stats.receives - (i + 1) >= 8);
    }
    CHECK(stats.receive_posts <= 1 + 100 / 8 + 1);
    for (const auto& chain : fake.seen.receives) {
        for (const std::uint64_t id : chain) CHECK(WorkId::from(id).queue == 3);
    }
}

TEST_CASE("the immediate tells calls from credits") {
    for (const std::uint32_t id : {0U, 1U, 77U, Immediate::kMostCall}) {
        for (const bool data_first : {false, true}) {
            const Immediate call = Immediate::from(Immediate::of_call(id, data_first));
            CHECK_FALSE(call.credit);
            CHECK(call.data_first == data_first);
            CHECK(call.value == id);
        }
    }
    CHECK_FALSE(Immediate::from(Immediate::of_credit(Immediate::kMostCredit)).data_first);
    CHECK(Immediate::from(Immediate::of_credit(Immediate::kMostCredit)).value == Immediate::kMostCredit);
    const Immediate credit = Immediate::from(Immediate::of_credit((std::uint64_t{1} << 40) + 5));
    CHECK(credit.credit);
    CHECK(credit.value == 5);
    const WorkId id = WorkId::from(WorkId{true, 0x7fffffff, 0xffffffff}.packed());
    CHECK(id.receive);
    CHECK(id.queue == 0x7fffffff);
    CHECK(id.sequence == 0xffffffff);
}

TEST_CASE("a split message's parts cover it once, in multiples of 128") {
    for (const std::uint64_t bytes : {0ULL, 1ULL, 127ULL, 128ULL, 129ULL, 4096ULL, 65'537ULL, 1'048'576ULL}) {
        for (const std::uint32_t count : {1U, 2U, 3U, 4U, 128U}) {
            std::uint64_t next = 0;
            for (std::uint32_t i = 0; i < count; ++i) {
                const Part part = Part::of(bytes, i, count);
                CHECK(part.offset == next);
                next += part.bytes;
                if (count > 1 && next < bytes) CHECK(part.bytes % 128 == 0);
                CHECK(part.bytes <= Part::stride(bytes, count));
            }
            CHECK(next == bytes);
        }
    }
}

TEST_CASE("messages that overtook one another are given out in order") {
    Arrivals turns;
    turns.set_up(3, 4, false);
    CHECK(turns.put(1, {11, 1, 0}));
    CHECK(turns.put(2, {12, 1, 0}));
    CHECK_FALSE(turns.ready());
    CHECK(turns.put(0, {10, 1, 0}));
    CHECK(turns.put(0, {13, 1, 0}));
    for (std::uint64_t i = 0; i < 4; ++i) {
        REQUIRE(turns.ready());
        CHECK(turns.queue_count() == 1);
        CHECK(turns.front(turns.first_queue()).call_id == 10 + i);
        turns.pop();
    }
    CHECK_FALSE(turns.ready());

    Arrivals parts;
    parts.set_up(2, 4, true);
    CHECK(parts.put(1, {7, 100, 0}));
    CHECK_FALSE(parts.ready());
    CHECK(parts.put(0, {7, 200, 0}));
    CHECK(parts.ready());
    CHECK(parts.first_queue() == 0);
    CHECK(parts.queue_count() == 2);
    parts.pop();
    CHECK_FALSE(parts.ready());
}

TEST_CASE("more messages than slots on a queue pair are refused") {
    Arrivals arrivals;
    arrivals.set_up(2, 2, false);
    CHECK(arrivals.put(1, {}));
    CHECK(arrivals.put(1, {}));
    CHECK_FALSE(arrivals.put(1, {}));
}

VerbsCard some_card() {
    VerbsCard card;
    card.gid[15] = 9;
    card.lid = 7;
    card.link_layer = 2;
    card.mtu = IBV_MTU_4096;
    card.mode = 1;
    card.split = true;
    card.queue_pairs = 2;
    card.slots = 8;
    card.rkey = 0x1234;
    card.message_bytes = 65536;
    card.data_first_above = 8192;
    card.flows = {{3, 1, true, 0xabc, 64, {{17, 1}, {18, 2}}}, {3, 1, false, 0xdef, 0, {{19, 3}, {20, 4}}}};
    return card;
}

TEST_CASE("a card arrives as it was sent") {
    const VerbsCard card = VerbsCard::parse(some_card().bytes(), 3);
    CHECK(card.bytes() == some_card().bytes());
    CHECK(card.gid[15] == 9);
    CHECK(card.split);
    CHECK_FALSE(card.verify);
    CHECK(card.data_first_above == 8192);
    REQUIRE(card.find(3, 1, false) != nullptr);
    CHECK(card.find(3, 1, false)->queue_pairs[1].number == 20);
    CHECK(card.find(3, 2, false) == nullptr);
    CHECK(card.find(4, 1, false) == nullptr);
}

TEST_CASE("bytes that are no card are refused, whatever they are") {
    const std::vector<std::uint8_t> whole = some_card().bytes();
    for (std::size_t size = 0; size < whole.size(); ++size) {
        CAPTURE(size);
        CHECK_THROWS_AS(VerbsCard::parse(std::span(whole).first(size), 3), Failure);
    }
    std::vector<std::uint8_t> longer = whole;
    longer.push_back(0);
    CHECK_THROWS_WITH_AS(VerbsCard::parse(longer, 3),
                         "the RDMA card of rank 3 cannot be read: it is too long; do all hosts run the same "
                         "version of GENIE, with transport=verbs?",
                         Failure);
    for (std::size_t at = 0; at < whole.size(); ++at) {
        for (const int bit : {0, 7}) {
            std::vector<std::uint8_t> bent = whole;
            bent[at] ^= static_cast<std::uint8_t>(1 << bit);
            bool same = false;
            try {
                same = VerbsCard::parse(bent, 3).bytes() == bent;
            } catch (const Failure& failure) {
                same = failure.report().peer == 3;
            }
            CHECK(same);
        }
    }
}

std::string refusal(const std::map<std::string, std::string>& changed, std::uint64_t spin_ns = 0) {
    ProgramBuilder builder = verbs_builder(0, 1, changed);
    builder.header.spin_ns = spin_ns;
    const Program program = builder.program();
    try {
        VerbsSettings::parse(program);
    } catch (const Failure& failure) {
        return failure.what();
    }
    return {};
}

TEST_CASE("settings: each in its range, none unknown, none missing") {
    CHECK(refusal({}) == "");
    CHECK(refusal({{"mtu", "4096"}, {"completion", "busy"}, {"mode", "send"}, {"split", "1"}}) == "");
    CHECK(refusal({{"timeout", "32"}}) ==
          "settings of transport verbs: timeout: expected a number from 0 to 31, found '32'");
    CHECK(refusal({{"mtu", "9000"}}).find("expected one of auto, 256") != std::string::npos);
    CHECK(refusal({{"credit_every", "9"}}).find("from 1 to 8") != std::string::npos);
    CHECK(refusal({{"speed", "full"}}).find("'speed' is not one of its settings") != std::string::npos);
    CHECK(refusal({{"completion", "events"}}, 20'000).find("never spins") != std::string::npos);
    CHECK(refusal({{"adaptive_routing", "yes"}}).find("expected one of auto, false, true") !=
          std::string::npos);
    CHECK(refusal({{"adaptive_routing", "true"}, {"mode", "send"}}).find("expected mode=write") !=
          std::string::npos);
    CHECK(refusal({{"adaptive_routing", "auto"}, {"mode", "send"}}) == "");
    const ProgramBuilder builder = verbs_builder(0, 1, {{"slots", "16"}, {"qps_per_connection", "4"}});
    const Program program = builder.program();
    const VerbsSettings settings = VerbsSettings::parse(program);
    CHECK(settings.slots == 16);
    CHECK(settings.queue_pairs == 4);
    CHECK(settings.timeout == 20);
    CHECK(settings.gid_index == -1);
}

VerbsGid gid_of(int index, const char* kind, GidType type) {
    VerbsGid gid;
    gid.index = index;
    gid.type = type;
    const std::string text = kind;
    if (text == "ipv4") {
        gid.bytes = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1};
    } else if (text == "local") {
        gid.bytes = {0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
    } else {
        gid.bytes = {0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
    }
    return gid;
}

TEST_CASE("the GID that a run uses") {
    struct Case {
        const char* name;
        std::vector<VerbsGid> gids;
        int chosen;
        const char* why;
    };
    const auto v1 = GidType::kRoceV1;
    const auto v2 = GidType::kRoceV2;
    const Case cases[] = {
        {"a usual port",
         {gid_of(0, "local", v1), gid_of(1, "local", v2), gid_of(2, "ipv4", v1), gid_of(3, "ipv4", v2)},
         3,
         "IPv4 address, as NCCL"},
        {"two addresses", {gid_of(3, "ipv4", v2), gid_of(5, "ipv4", v2)}, 3, "IPv4"},
        {"IPv6 only", {gid_of(0, "local", v2), gid_of(4, "global", v2)}, 4, "routable IPv6"},
        {"link-local only", {gid_of(0, "local", v1), gid_of(1, "local", v2)}, 1, "only this link"},
        {"RoCE v1 only", {gid_of(0, "local", v1), gid_of(2, "ipv4", v1)}, 2, "not routed"},
        {"none", {}, -1, "no GID"},
    };
    for (const Case& one : cases) {
        CAPTURE(std::string(one.name));
        VerbsPort port;
        port.attributes.link_layer = IBV_LINK_LAYER_ETHERNET;
        port.gids = one.gids;
        const GidChoice choice = choose_gid(port);
        CHECK(choice.index == one.chosen);
        CHECK(choice.why.find(one.why) != std::string::npos);
    }
    VerbsPort infiniband;
    infiniband.attributes.link_layer = IBV_LINK_LAYER_INFINIBAND;
    infiniband.gids = {gid_of(0, "local", GidType::kInfiniBand), gid_of(1, "global", GidType::kInfiniBand)};
    CHECK(choose_gid(infiniband).index == 0);
    CHECK(gid_text(gid_of(0, "ipv4", v2).bytes) == "::ffff:10.0.0.1");
    CHECK(gid_ipv4(gid_of(0, "ipv4", v2).bytes) == 0x0a000001);
    CHECK(gid_ipv4(gid_of(0, "local", v2).bytes) == 0);
}

TEST_CASE("failed completions have names and causes") {
    CHECK(completion_status_name(IBV_WC_RETRY_EXC_ERR) == "IBV_WC_RETRY_EXC_ERR");
    CHECK(completion_status_name(static_cast<ibv_wc_status>(99)) == "status 99");
    CHECK(device_event_name(IBV_EVENT_PORT_ERR) == "IBV_EVENT_PORT_ERR");
    CHECK(completion_cause(IBV_WC_RETRY_EXC_ERR, 20, 7, 7).find("8 attempts of 4.29 s each") !=
          std::string::npos);
    CHECK(completion_cause(IBV_WC_RNR_RETRY_EXC_ERR, 20, 7, 3).find("after 3 retries") != std::string::npos);
    CHECK(completion_cause(IBV_WC_REM_ACCESS_ERR, 20, 7, 7).find("key") != std::string::npos);
    CHECK(ack_timeout_text(14) == "67.1 ms");
    CHECK(ack_timeout_text(0) == "no limit");
    CHECK(seconds_text(retries_exhausted_s(20, 7)) == "34.4 s");
    CHECK(seconds_text(retries_exhausted_s(14, 0)) == "67.1 ms");
    for (int status = 0; status <= IBV_WC_TM_RNDV_INCOMPLETE; ++status)
        CHECK_FALSE(completion_cause(static_cast<ibv_wc_status>(status), 20, 7, 7).empty());
}

}  // namespace
}  // namespace genie::test
