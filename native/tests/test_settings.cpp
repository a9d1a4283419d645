// A transport's own settings, and the head that a transport without heads asks for.
#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "local_job.h"
#include "rank.h"
#include "settings.h"
#include "transports.h"

namespace genie::test {
namespace {

std::string complaint(const std::string& text, const std::function<void(Settings&)>& take) {
    try {
        Settings settings("verbs", text);
        take(settings);
        settings.done();
        return "";
    } catch (const Failure& failure) {
        return failure.what();
    }
}

TEST_CASE("settings are taken by name, each within its limits, and none is left over") {
    Settings settings("verbs", "device=mlx5_0\ntimeout=20\nsplit=1\nmode=send\nempty=\n");
    CHECK(settings.text("device") == "mlx5_0");
    CHECK(settings.number("timeout", 0, 31) == 20);
    CHECK(settings.flag("split"));
    CHECK(settings.word("mode", {"write", "send"}) == 1);
    CHECK(settings.text("empty").empty());
    settings.done();
}

TEST_CASE("settings that are wrong are named") {
    const std::string head = "settings of transport verbs: ";
    const auto nothing = [](Settings&) {};
    const auto timeout = [](Settings& s) { s.number("timeout", 0, 31); };
    const std::vector<std::tuple<std::string, std::function<void(Settings&)>, std::string>> cases = {
        {"timeout", nothing, "expected KEY=VALUE, found 'timeout'"},
        {"=1", nothing, "expected KEY=VALUE, found '=1'"},
        {"\n", nothing, "expected KEY=VALUE, found ''"},
        {"a=1\na=2\n", nothing, "'a' is there twice"},
        {"colour=red\n", nothing, "'colour' is not one of its settings"},
        {"", timeout, "'timeout' is missing"},
        {"timeout=32\n", timeout, "timeout: expected a number from 0 to 31, found '32'"},
        {"timeout=2x\n", timeout, "timeout: expected a number from 0 to 31, found '2x'"},
        {"timeout=99999999999999999999\n", timeout,
         "timeout: expected a number from 0 to 31, found '99999999999999999999'"},
        {"mode=read\n",
         [](Settings& s) {
             s.word("mode", {"write", "send"});
         },
         "mode: expected one of write, send, found 'read'"},
    };
    for (const auto& [text, take, expected] : cases) CHECK(complaint(text, take) == head + expected);
}

TEST_CASE("an unknown transport and unknown settings end the rank before it starts") {
    ProgramBuilder builder(0, 1);
    builder.compute(1);
    std::strcpy(builder.header.transport, "pigeon");
    CHECK(run_job({builder})[0].failure.text ==
          "this agent has no transport 'pigeon', it was built with " + transport_names());
    std::strcpy(builder.header.transport, "tcp");
    builder.settings = "colour=red\n";
    CHECK(run_job({builder})[0].failure.text ==
          "settings of transport tcp: 'colour' is not one of its settings");
}

// Delivers call ids that arrived, and asks for their heads.
struct Headless {
    std::vector<std::pair<std::uint32_t, std::uint32_t>> arrived;  // connection, call
    std::vector<Frame> heads;

    bool poll(Sink& sink, Nanos /*now*/) {
        const bool any = !arrived.empty();
        for (const auto& [connection, call] : arrived) {
            Frame frame;
            if (!sink.expect(connection, call, {1}, frame)) break;
            heads.push_back(frame);
            sink.on_message(connection, {1});
        }
        arrived.clear();
        return any;
    }
    bool pending() const { return false; }
    bool busy(std::uint32_t) const { return false; }
    bool send(std::uint32_t, const Frame&, SendTimes& times) {
        times = {};
        return true;
    }
    void send_credit(std::uint32_t, std::uint64_t) {}
    bool drained() const { return true; }
    std::uint64_t moved() const { return 0; }
};

struct StillClock {
    Nanos now() const { return {1}; }
};

struct Receiver {
    explicit Receiver(std::uint32_t iterations, int calls = 1)
        : program(make(iterations, calls)), events("", 0, 3, 1000) {
        rank.begin({1});
        rank.advance({1});
    }
    static Program make(std::uint32_t iterations, int calls) {
        ProgramBuilder builder(0, 3);
        builder.header.iterations = iterations;
        // From each peer two messages of 100 and 50 bytes, and with two calls 30, 30 and 10; all must be
        // there before the next iteration.
        const auto both = builder.make_template({{StepKind::kRecv, 0, 1, SizeKind::kBlock, 0, 1, {}, 0},
                                                 {StepKind::kRecv, 0, 2, SizeKind::kBlock, 0, 1, {}, 0}});
        builder.call(7, both, 150, 100);
        if (calls == 2) builder.call(9, both, 70, 30);
        return builder.program();
    }

    Program program;
    EventFile events;
    StillClock clock;
    Headless transport;
    Rank<StillClock, Headless> rank{program, events, clock, transport};
};

TEST_CASE("the head that is due follows from the call alone, also when a peer is iterations ahead") {
    Receiver receiver(3);
    for (int i = 0; i < 6; ++i) receiver.transport.arrived.emplace_back(0, 7);
    receiver.rank.advance({1});
    REQUIRE(receiver.rank.running());
    REQUIRE(receiver.transport.heads.size() == 6);
    for (std::uint32_t i = 0; i < 6; ++i) {
        const Frame& head = receiver.transport.heads[i];
        CHECK(head.call_id == 7);
        CHECK(head.iteration == i / 2);
        CHECK(head.message == i % 2);
        CHECK(head.bytes == (i % 2 == 0 ? 100 : 50));
    }
    for (int i = 0; i < 6; ++i) receiver.transport.arrived.emplace_back(1, 7);
    receiver.rank.advance({1});
    CHECK(receiver.rank.state() == decltype(receiver.rank)::State::kDone);
}

TEST_CASE("messages of calls that run side by side are told apart, however they alternate") {
    Receiver receiver(2, 2);
    const std::vector<std::tuple<std::uint32_t, std::uint32_t, std::uint64_t, std::uint64_t>> due = {
        // call, iteration, message, bytes
        {7, 0, 0, 100}, {9, 0, 0, 30}, {7, 0, 1, 50}, {9, 0, 1, 30}, {7, 1, 0, 100},
        {9, 0, 2, 10},  {9, 1, 0, 30}, {9, 1, 1, 30}, {7, 1, 1, 50}, {9, 1, 2, 10},
    };
    for (const std::uint32_t connection : {0U, 1U}) {
        receiver.transport.heads.clear();
        for (const auto& one : due) receiver.transport.arrived.emplace_back(connection, std::get<0>(one));
        receiver.rank.advance({1});
        CHECK(receiver.rank.failure().text.empty());
        REQUIRE(receiver.transport.heads.size() == due.size());
        for (std::size_t i = 0; i < due.size(); ++i) {
            const Frame& head = receiver.transport.heads[i];
            CHECK(std::tuple{head.call_id, head.iteration, head.message, head.bytes} == due[i]);
        }
    }
    CHECK(receiver.rank.state() == decltype(receiver.rank)::State::kDone);
}

TEST_CASE("a message that is due nowhere fails the rank by name") {
    const std::vector<std::tuple<int, std::uint32_t, std::string>> cases = {
        {1, 8, "rank 1 sent a message of a call this rank takes no part in: call 8"},
        {5, 7, "rank 1 sent a message of a call that was complete or never will be: call 7"},
    };
    for (const auto& [count, call, expected] : cases) {
        Receiver receiver(2);
        for (int i = 0; i < count; ++i) receiver.transport.arrived.emplace_back(0, call);
        receiver.rank.advance({1});
        CHECK(receiver.rank.failure().code == Code::kProtocol);
        CHECK(receiver.rank.failure().text == expected);
    }
}

}  // namespace
}  // namespace genie::test
