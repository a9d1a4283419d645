// The executor over a virtual clock: what it does in which order, to the nanosecond.
#include <doctest/doctest.h>

#include <string>

#include "builder.h"
#include "events.h"
#include "rank.h"
#include "sim.h"

namespace genie::test {
namespace {

SimNetwork network(std::size_t ranks, std::uint64_t rate_bps, std::int64_t latency_ns = 1000) {
    return {{latency_ns}, std::vector<std::uint64_t>(ranks, rate_bps), 0_ns};
}

std::vector<SimRank> run(const std::vector<ProgramBuilder>& builders, const SimNetwork& net) {
    std::vector<Program> programs;
    for (const ProgramBuilder& builder : builders) programs.push_back(builder.program());
    return simulate(programs, net);
}

void all_ended(const std::vector<SimRank>& results, std::size_t iterations) {
    for (const SimRank& result : results) {
        CHECK(result.failure.text == "");
        CHECK(result.iteration_end_ns.size() == iterations);
    }
}

TEST_CASE("ring all-reduce moves 2(n-1)/n of the bytes at line rate") {
    for (const std::uint32_t ranks : {2U, 3U, 4U, 8U, 17U}) {
        for (const std::uint32_t window : {0U, 1U, 4U}) {
            CAPTURE(ranks);
            CAPTURE(window);
            std::vector<ProgramBuilder> builders;
            const std::uint64_t bytes = 16'000'000;
            for (std::uint32_t r = 0; r < ranks; ++r) {
                ProgramBuilder& builder = builders.emplace_back(r, ranks);
                builder.header.iterations = 2;
                builder.header.window_messages = window;
                builder.call(5, builder.make_template(ring_all_reduce(r, ranks, 2), 2), bytes, 64 << 10);
            }
            const auto results = run(builders, network(ranks, 1'000'000'000));
            all_ended(results, 2);
            const double ideal_ns = 2.0 * (ranks - 1) / ranks * double(bytes) * 8;
            if (window != 1) {
                CHECK(double(results[0].iteration_end_ns[0]) > ideal_ns);
                CHECK(double(results[0].iteration_end_ns[0]) < ideal_ns * 1.15);
            }
        }
    }
}

TEST_CASE("simulations repeat exactly") {
    std::vector<ProgramBuilder> builders;
    for (std::uint32_t r = 0; r < 5; ++r) {
        ProgramBuilder& builder = builders.emplace_back(r, 5);
        builder.header.iterations = 3;
        builder.call(5, builder.make_template(ring_all_reduce(r, 5)), 1'000'003, 1000);
    }
    const auto first = run(builders, network(5, 0));
    const auto second = run(builders, network(5, 0));
    for (std::size_t r = 0; r < 5; ++r) CHECK(first[r].iteration_end_ns == second[r].iteration_end_ns);
}

TEST_CASE("a tree broadcast reaches every rank; messages are passed on before the last has come") {
    for (const std::uint32_t ranks : {2U, 3U, 7U, 8U, 13U}) {
        CAPTURE(ranks);
        std::vector<ProgramBuilder> builders;
        for (std::uint32_t r = 0; r < ranks; ++r) {
            ProgramBuilder& builder = builders.emplace_back(r, ranks);
            builder.header.iterations = 4;  // the root runs ahead: messages of later iterations are early
            builder.call(1, builder.make_template(tree_broadcast(r, ranks)), 1'000'000, 10'000);
        }
        const auto results = run(builders, network(ranks, 1'000'000'000, 50'000));
        all_ended(results, 4);
        CHECK(results[0].bytes_sent % 4'000'000 == 0);
    }
}

TEST_CASE("uneven all-to-all, some of it empty") {
    constexpr std::uint32_t kRanks = 6;
    const auto bytes = [](std::uint32_t from, std::uint32_t to) { return std::uint64_t{from * to} * 1000; };
    std::vector<ProgramBuilder> builders;
    for (std::uint32_t r = 0; r < kRanks; ++r) {
        ProgramBuilder& builder = builders.emplace_back(r, kRanks);
        std::vector<std::uint64_t> vector;
        for (std::uint32_t p = 0; p < kRanks; ++p) vector.push_back(bytes(r, p));
        for (std::uint32_t p = 0; p < kRanks; ++p) vector.push_back(bytes(p, r));
        builder.call(1, builder.make_template(all_to_all(r, kRanks)), 0, 512, {}, kNone, vector);
    }
    const auto results = run(builders, network(kRanks, 1'000'000'000));
    all_ended(results, 1);
    for (std::uint32_t r = 0; r < kRanks; ++r) CHECK(results[r].bytes_sent == r * (15 - r) * 1000);
}

TEST_CASE("compute and communication overlap; dependencies do not") {
    ProgramBuilder a(0, 2);
    ProgramBuilder b(1, 2);
    for (ProgramBuilder* builder : {&a, &b}) {
        const std::uint32_t rank = builder->header.rank;
        const std::uint32_t t = builder->make_template(
            {{rank == 0 ? StepKind::kSend : StepKind::kRecv, 0, 1 - rank, SizeKind::kBlock, 0, 1, {}, 0}});
        const std::uint32_t sent = builder->call(1, t, 1'000'000 - 32, 1 << 20);
        const std::uint32_t computed = builder->compute(5'000'000);
        builder->compute(1'000, {sent, computed});
    }
    const auto results = run({a, b}, network(2, 1'000'000'000, 0));
    CHECK(results[0].iteration_end_ns[0] == 8'001'000);
    CHECK(results[1].iteration_end_ns[0] == 8'001'000);
}

TEST_CASE("compute_scale stretches compute") {
    ProgramBuilder builder(0, 1);
    builder.compute(1'000'000);
    builder.header.compute_scale_ppm = 2'500'000;
    CHECK(run({builder}, network(1, 0))[0].iteration_end_ns[0] == 2'500'000);
}

TEST_CASE("a local step takes its time between receive and send") {
    ProgramBuilder a(0, 2);
    ProgramBuilder b(1, 2);
    a.call(1, a.make_template({{StepKind::kSend, 0, 1}, {StepKind::kRecv, 0, 1}}), 0);
    StepSpec local{StepKind::kLocal};
    local.local_ns = 700;
    local.needs = {{0, NeedMode::kWhole}};
    StepSpec answer{StepKind::kSend};
    answer.needs = {{1, NeedMode::kMessage}};
    b.call(1, b.make_template({{StepKind::kRecv}, local, answer}), 0);
    CHECK(run({a, b}, network(2, 0, 1000))[0].iteration_end_ns[0] == 2700);
}

// One rank against a hand-driven transport, to see order and failures.
struct HandClock {
    Nanos time{0};
    Nanos now() const { return time; }
};

struct HandTransport {
    struct Sent {
        std::uint32_t connection;
        Frame frame;
    };
    std::vector<Sent> sent;
    std::vector<std::uint64_t> credits;
    bool blocked = false;
    Nanos time{0};

    bool poll(Sink&, Nanos) { return false; }
    bool pending() const { return false; }
    bool busy(std::uint32_t) const { return blocked; }
    bool send(std::uint32_t connection, const Frame& frame, SendTimes& times) {
        sent.push_back({connection, frame});
        times = {time, time};
        return true;
    }
    void send_credit(std::uint32_t, std::uint64_t messages) { credits.push_back(messages); }
    bool drained() const { return true; }
    std::uint64_t moved() const { return sent.size(); }
};

struct Hand {
    explicit Hand(const ProgramBuilder& builder)
        : program(builder.program()),
          events("", program.header.rank, program.header.world, 1000),
          rank(program, events, clock, transport) {
        rank.begin(0_ns);
        rank.advance(0_ns);
    }

    Wait at(std::int64_t time) {
        clock.time = transport.time = {time};
        return rank.advance(clock.time);
    }

    bool receive(std::uint32_t call_id, std::uint32_t iteration, std::uint64_t message, std::uint64_t bytes,
                 std::uint32_t connection = 0) {
        Frame frame;
        frame.call_id = call_id;
        frame.iteration = iteration;
        frame.message = message;
        frame.bytes = bytes;
        if (!rank.on_header(connection, frame, clock.time)) return false;
        rank.on_message(connection, clock.time);
        rank.advance(clock.time);
        return true;
    }

    std::vector<std::uint32_t> operators_in_order() const {
        std::vector<std::uint32_t> order;
        for (std::uint64_t i = 0; i < events.committed(); ++i) {
            if (events.records()[i].type == EventType::kOperator) order.push_back(events.records()[i].op);
        }
        return order;
    }

    Program program;
    HandClock clock;
    HandTransport transport;
    EventFile events;
    Rank<HandClock, HandTransport> rank;
};

TEST_CASE("an ordered lane keeps index order even if a later operator is ready first") {
    ProgramBuilder builder(0, 1);
    const std::uint32_t lane = builder.lane(true);
    const std::uint32_t slow = builder.compute(100);
    builder.compute(10, {slow}, lane);
    builder.compute(10, {}, lane);
    Hand hand(builder);
    for (std::int64_t time = 0; time <= 200; time += 10) hand.at(time);
    CHECK(hand.operators_in_order() == std::vector<std::uint32_t>{0, 1, 2});
    CHECK(hand.rank.state() == Rank<HandClock, HandTransport>::State::kDone);
}

TEST_CASE("another lane takes the lowest operator that is ready, one at a time") {
    ProgramBuilder builder(0, 1);
    const std::uint32_t lane = builder.lane(false);
    const std::uint32_t slow = builder.compute(100);
    builder.compute(10, {slow}, lane);
    builder.compute(60, {}, lane);
    builder.compute(60, {}, lane);
    builder.compute(60, {}, lane);
    Hand hand(builder);
    for (std::int64_t time = 0; time <= 300; time += 10) hand.at(time);
    CHECK(hand.operators_in_order() == std::vector<std::uint32_t>{2, 0, 3, 1, 4});
}

ProgramBuilder receiver(std::uint32_t iterations) {
    ProgramBuilder builder(0, 2);
    builder.header.iterations = iterations;
    const std::uint32_t wait = builder.compute(100);
    builder.call(7, builder.make_template({{StepKind::kRecv, 0, 1, SizeKind::kBlock, 0, 1, {}, 0}}), 250, 100,
                 {wait});
    return builder;
}

TEST_CASE("messages may come before their operator starts, and for later iterations") {
    Hand hand(receiver(2));
    for (const std::uint32_t iteration : {0U, 1U}) {
        for (std::uint64_t message = 0; message < 3; ++message) {
            CHECK(hand.receive(7, iteration, message, message == 2 ? 50 : 100));
        }
    }
    CHECK(hand.operators_in_order().empty());
    hand.at(100);
    CHECK(hand.operators_in_order() == std::vector<std::uint32_t>{0, 1});
    hand.at(200);
    CHECK(hand.rank.state() == Rank<HandClock, HandTransport>::State::kDone);
    CHECK(hand.events.header().iterations_done.load() == 2);
    CHECK(hand.events.header().bytes_received.load() == 500);
}

TEST_CASE("wrong messages are named") {
    struct Row {
        const char* name;
        std::uint32_t call_id, iteration;
        std::uint64_t message, bytes;
        Code code;
        const char* text;
    };
    const Row rows[] = {
        {"too long", 7, 0, 0, 101, Code::kSizeMismatch,
         "call 7, message 0 of step 0 from rank 1: expected 100 bytes, found 101"},
        {"too short", 7, 0, 0, 0, Code::kSizeMismatch, "expected 100 bytes, found 0"},
        {"out of turn", 7, 0, 1, 100, Code::kProtocol,
         "message 1 of step 0 where message 0 of step 0 was due"},
        {"a step too far", 7, 0, 1ULL << 32, 100, Code::kProtocol, "message 0 of step 1 where"},
        {"an unknown call", 8, 0, 0, 100, Code::kProtocol, "takes no part in"},
        {"an iteration too far", 7, 2, 0, 100, Code::kProtocol, "was complete or never will be"},
    };
    for (const Row& row : rows) {
        CAPTURE(std::string(row.name));
        Hand hand(receiver(2));
        CHECK_FALSE(hand.receive(row.call_id, row.iteration, row.message, row.bytes));
        CHECK(hand.rank.failure().code == row.code);
        CHECK(hand.rank.failure().peer == 1);
        CHECK(hand.rank.failure().text.find(row.text) != std::string::npos);
    }
}

TEST_CASE("a message of a finished call is refused") {
    Hand hand(receiver(2));
    for (std::uint64_t message = 0; message < 3; ++message)
        hand.receive(7, 0, message, message == 2 ? 50 : 100);
    hand.at(100);
    CHECK_FALSE(hand.receive(7, 0, 0, 100));
    CHECK(hand.rank.failure().code == Code::kProtocol);
}

TEST_CASE("a stall names operator, call, peer and time; a running timer is no stall") {
    ProgramBuilder builder = receiver(1);
    builder.header.timeout_ns = 1000;
    builder.ops[0].duration_ns = 5000;
    Hand hand(builder);
    hand.at(4000);
    CHECK(hand.rank.running());
    Wait wait = hand.at(5000);
    CHECK(wait.deadline == 6000_ns);
    hand.at(5500);
    CHECK(hand.rank.running());
    hand.at(6000);
    CHECK(hand.rank.failure().code == Code::kStall);
    CHECK(hand.rank.failure().op == 1);
    CHECK(hand.rank.failure().call_id == 7);
    CHECK(hand.rank.failure().peer == 1);
    CHECK(hand.rank.failure().waited_ns == 1000);
    CHECK(hand.rank.failure().text ==
          "no progress; operator 1 in call 7 waited for message 0 of 3 of step 0 from rank 1 on channel 0");
}

TEST_CASE(
    "a window stops the sender, credits free it, and are sent by half windows and at the end of a step") {
    ProgramBuilder builder(0, 2);
    builder.header.window_messages = 4;
    builder.call(7,
                 builder.make_template({{StepKind::kSend, 0, 1, SizeKind::kBlock, 0, 1, {}, 0},
                                        {StepKind::kRecv, 0, 1, SizeKind::kBlock, 0, 1, {}, 0}}),
                 500, 100);
    Hand hand(builder);
    CHECK(hand.transport.sent.size() == 4);
    hand.rank.on_credit(0, 2, 0_ns);
    CHECK(hand.transport.sent.size() == 5);
    for (std::uint64_t message = 0; message < 5; ++message) CHECK(hand.receive(7, 0, message, 100));
    CHECK(hand.transport.credits == std::vector<std::uint64_t>{2, 4, 5});
    CHECK(hand.rank.running());
    hand.rank.on_credit(0, 5, 0_ns);
    hand.at(1);
    CHECK(hand.rank.state() == Rank<HandClock, HandTransport>::State::kDone);
}

TEST_CASE("credit for what was never sent is refused") {
    ProgramBuilder builder(0, 2);
    builder.header.window_messages = 4;
    builder.call(7, builder.make_template({{StepKind::kSend, 0, 1, SizeKind::kBlock, 0, 1, {}, 0}}), 500,
                 100);
    Hand hand(builder);
    hand.rank.on_credit(0, 5, 0_ns);
    CHECK(hand.rank.failure().code == Code::kProtocol);
}

TEST_CASE("a message is passed on when its own message has come, and records when that was") {
    ProgramBuilder builder(1, 3);
    builder.call(
        7,
        builder.make_template({{StepKind::kRecv, 0, 0, SizeKind::kBlock, 0, 1, {}, 0},
                               {StepKind::kSend, 0, 2, SizeKind::kBlock, 0, 1, {{0, NeedMode::kMessage}}, 0},
                               {StepKind::kSend, 0, 0, SizeKind::kBlock, 0, 1, {{0, NeedMode::kWhole}}, 0}}),
        250, 100);
    Hand hand(builder);
    for (std::uint64_t message = 0; message < 3; ++message) {
        hand.at(static_cast<std::int64_t>(message) * 10 + 10);
        CHECK(hand.receive(7, 0, message, message == 2 ? 50 : 100));
        if (message < 2) CHECK(hand.transport.sent.size() == message + 1);
    }
    CHECK(hand.transport.sent.size() == 6);
    std::vector<std::int64_t> allowed;
    for (std::uint64_t i = 0; i < hand.events.committed(); ++i) {
        const Event& event = hand.events.records()[i];
        if (event.type == EventType::kSent && event.peer == 2) allowed.push_back(event.t0_ns);
    }
    CHECK(allowed == std::vector<std::int64_t>{10, 20, 30});
}

TEST_CASE("an abort says what was waited for") {
    Hand hand(receiver(1));
    hand.at(100);
    hand.rank.abort("stopped");
    CHECK(hand.rank.failure().code == Code::kAborted);
    CHECK(hand.rank.failure().text.find("from rank 1") != std::string::npos);
}

TEST_CASE("records that find no room are counted") {
    ProgramBuilder builder(0, 1);
    for (int i = 0; i < 10; ++i) builder.compute(0);
    const Program program = builder.program();
    EventFile events("", 0, 1, 4);
    HandClock clock;
    HandTransport transport;
    Rank<HandClock, HandTransport> rank(program, events, clock, transport);
    rank.begin(0_ns);
    rank.advance(0_ns);
    CHECK(events.header().committed.load() == 4);
    CHECK(events.header().dropped.load() == 7);
}

}  // namespace
}  // namespace genie::test
