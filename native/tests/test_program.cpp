// What `parse_program` refuses, and what it makes of what it accepts.
#include <doctest/doctest.h>

#include <functional>
#include <random>
#include <string>

#include "builder.h"

namespace genie::test {
namespace {

ProgramBuilder sound() {
    ProgramBuilder builder(0, 3);
    builder.header.iterations = 2;
    const std::uint32_t lane = builder.lane(true);
    builder.lane(false);
    const std::uint32_t compute = builder.compute(1000, {}, 1);
    const std::uint32_t ring = builder.make_template(ring_all_reduce(0, 3, 2), 2);
    const std::uint32_t pairs = builder.make_template(all_to_all(0, 3));
    builder.call(10, ring, 1 << 20, 4096, {compute}, lane);
    builder.call(11, pairs, 0, 4096, {compute}, lane, {0, 5, 6, 0, 7, 8});
    return builder;
}

std::string refusal(const std::vector<std::byte>& blob) {
    try {
        parse_program(blob);
    } catch (const BadProgram& error) {
        return error.what();
    }
    return "accepted";
}

TEST_CASE("a sound program is taken as it is") {
    const Program program = sound().program();
    CHECK(program.ops.size() == 3);
    CHECK(program.find_call(10) == 0);
    CHECK(program.find_call(11) == 1);
    CHECK(program.find_call(12) == kNone);
    CHECK(program.templates[0].ports.size() == 4);
}

TEST_CASE("an empty program is sound: a rank may have nothing to do") {
    CHECK(refusal(ProgramBuilder(0, 1).blob()) == "accepted");
}

TEST_CASE("unsound programs are refused with the reason") {
    struct Row {
        const char* name;
        std::function<void(ProgramBuilder&)> spoil;
        const char* reason;
    };
    const Row rows[] = {
        {"another version", [](auto& b) { b.header.version = 3; }, "version 3, this engine knows version 2"},
        {"another magic", [](auto& b) { b.header.magic[7] = '2'; }, "does not begin with GNIEPRG1"},
        {"an unknown flag", [](auto& b) { b.header.flags = 4; }, "unknown flags 4"},
        {"a rank outside the world", [](auto& b) { b.header.rank = 3; }, "rank 3 of 3"},
        {"no iterations", [](auto& b) { b.header.iterations = 0; }, "iterations must be at least 1"},
        {"no timeout", [](auto& b) { b.header.timeout_ns = 0; }, "timeout_ns 0"},
        {"a huge window", [](auto& b) { b.header.window_messages = 1U << 31; },
         "window_messages must be at most"},
        {"an event file of all memory", [](auto& b) { b.header.event_capacity = ~0ULL; }, "event_capacity"},
        {"a name without end", [](auto& b) { std::memset(b.header.congestion_control, 'x', 16); },
         "not terminated"},
        {"reserved bytes in use", [](auto& b) { b.header.zero[3] = 1; }, "reserved header bytes"},
        {"a negative duration", [](auto& b) { b.ops[0].duration_ns = -1; }, "operator 0 lasts -1 ns"},
        {"a lane that is not there", [](auto& b) { b.ops[0].lane = 9; }, "operator 0 is on lane 9"},
        {"a call that is not there", [](auto& b) { b.ops[1].call = 9; }, "operator 1 makes call 9"},
        {"a call of another operator", [](auto& b) { b.ops[1].call = 1; }, "disagree"},
        {"a call nobody makes", [](auto& b) { b.ops[1].call = kNone; }, "call 0 and its operator 1 disagree"},
        {"dependencies that do not add up", [](auto& b) { b.ops[1].dep_count = 2; },
         "says it has 2 dependencies"},
        {"operators in a circle",
         [](auto& b) {
             b.op_needs[0].push_back(1);
             ++b.ops[0].dep_count;
         },
         "in a circle"},
        {"an unknown lane flag", [](auto& b) { b.lanes[0] = 3; }, "lane 0 has unknown flags"},
        {"a template that is not there", [](auto& b) { b.calls[0].template_index = 5; }, "uses template 5"},
        {"messages of nothing", [](auto& b) { b.calls[0].chunk_bytes = 0; }, "messages of 0 bytes"},
        {"too many messages",
         [](auto& b) {
             b.calls[0].bytes = 1ULL << 62;
             b.calls[0].chunk_bytes = 1;
         },
         "too many"},
        {"more bytes than there are", [](auto& b) { b.calls[0].bytes = 1ULL << 63; },
         "moves 9223372036854775808"},
        {"a short vector", [](auto& b) { b.calls[1].vector_len = 5; },
         "has 5 vector entries, its template needs 6"},
        {"a vector past the end", [](auto& b) { b.calls[1].vector_begin = ~0ULL; }, "has vector"},
        {"two calls of one id", [](auto& b) { b.calls[1].call_id = 10; }, "two calls have the id 10"},
        {"no channels", [](auto& b) { b.templates[0].channels = 0; }, "template 0 has no channels"},
        {"steps past the end", [](auto& b) { b.templates[1].step_end = 1000; }, "template 1 has steps"},
        {"steps backwards", [](auto& b) { b.templates[1].step_begin = b.templates[1].step_end + 1; },
         "has steps"},
        {"steps twice", [](auto& b) { b.templates[1] = b.templates[0]; }, "templates share steps"},
        {"an unknown kind", [](auto& b) { b.steps[0].kind = StepKind{3}; }, "step 0 is of kind 3"},
        {"an unknown size", [](auto& b) { b.steps[0].size_kind = SizeKind{3}; }, "step 0 has size kind 3"},
        {"a channel too far", [](auto& b) { b.steps[0].channel = 2; }, "step 0 is on channel 2 of 2"},
        {"a connection of another channel", [](auto& b) { b.steps[0].channel = 1; },
         "uses a connection of channel 0"},
        {"a connection that is not there", [](auto& b) { b.steps[0].connection = 99; }, "uses connection 99"},
        {"a block of no parts", [](auto& b) { b.steps[0].size_of = 0; }, "moves block 0 of 0"},
        {"a block too far", [](auto& b) { b.steps[0].size_index = 3; }, "moves block 3 of 3"},
        {"a vector entry past all", [](auto& b) { b.steps.back().size_index = kNone; }, "moves vector entry"},
        {"needs past the end", [](auto& b) { b.steps[2].need_end = 1000; }, "step 2 has needs"},
        {"a need that is no step", [](auto& b) { b.needs[0].step = 1000; }, "names step 1000"},
        {"an unknown need", [](auto& b) { b.needs[0].mode = NeedMode{2}; }, "need 0 has mode 2"},
        {"a step that needs itself", [](auto& b) { b.needs[0].step = 2; }, "need one another in a circle"},
        {"a connection to itself", [](auto& b) { b.connections[0].peer = 0; }, "of rank 0 to rank 0 of 3"},
        {"a peer outside the world", [](auto& b) { b.connections[0].peer = 3; }, "to rank 3 of 3"},
        {"the wrong side dials", [](auto& b) { b.connections[0].role = Role::kConnect; },
         "the lower rank accepts"},
        {"two connections of one name", [](auto& b) { b.connections[1] = b.connections[0]; },
         "two connections"},
    };
    for (const Row& row : rows) {
        CAPTURE(std::string(row.name));
        ProgramBuilder builder = sound();
        row.spoil(builder);
        const std::string text = refusal(builder.blob());
        CAPTURE(text);
        CHECK(text.find(row.reason) != std::string::npos);
    }
}

TEST_CASE("edges may not lead outside, be shared or overlap") {
    std::vector<std::byte> blob = sound().blob();
    const std::size_t ops = sizeof(ProgramHeader);
    const std::uint32_t far = 1000;
    std::memcpy(blob.data() + ops + 3 * sizeof(Op), &far, sizeof far);  // the first edge
    CHECK(refusal(blob).find("leads to operator 1000") != std::string::npos);
    blob = sound().blob();
    const std::uint32_t all[2] = {0, 2};
    std::memcpy(blob.data() + ops + sizeof(Op) + offsetof(Op, out_begin), all, sizeof all);
    CHECK(refusal(blob).find("share out edges") != std::string::npos);
}

TEST_CASE("a blob of any other length is refused") {
    const std::vector<std::byte> blob = sound().blob();
    for (std::size_t size = 0; size < blob.size(); ++size) {
        CHECK(refusal({blob.begin(), blob.begin() + static_cast<std::ptrdiff_t>(size)}) != "accepted");
    }
    std::vector<std::byte> longer = blob;
    longer.resize(longer.size() + 8);
    CHECK(refusal(longer).find("expected") != std::string::npos);
}

TEST_CASE("section counts beyond all bounds are refused") {
    for (std::size_t section = 0; section < kSections; ++section) {
        for (const std::uint64_t count : {~0ULL, 1ULL << 61, 1ULL << 32}) {
            std::vector<std::byte> blob = sound().blob();
            std::memcpy(blob.data() + 128 + 8 * section, &count, sizeof count);
            CHECK(refusal(blob) != "accepted");
        }
    }
}

TEST_CASE("no single changed byte is more than refused") {
    const std::vector<std::byte> blob = sound().blob();
    std::mt19937 random(7);
    for (int round = 0; round < 20'000; ++round) {
        std::vector<std::byte> changed = blob;
        changed[random() % changed.size()] = static_cast<std::byte>(random());
        if (round % 2 == 0) changed[random() % changed.size()] = static_cast<std::byte>(random());
        refusal(changed);  // the sanitizers watch
    }
}

TEST_CASE("block and share sizes lose no byte, whatever the size") {
    for (const std::uint64_t bytes : {0ULL, 1ULL, 7ULL, 1000003ULL, (1ULL << 60) + 12345}) {
        ProgramBuilder builder(0, 2);
        std::vector<StepSpec> specs;
        for (std::uint16_t channel = 0; channel < 3; ++channel) {
            for (std::uint32_t block = 0; block < 5; ++block) {
                specs.push_back({StepKind::kSend, channel, 1, SizeKind::kBlock, block, 5, {}, 0});
            }
        }
        builder.call(1, builder.make_template(specs, 3), bytes, 1U << 31);
        const Program program = builder.program();
        std::uint64_t sum = 0;
        for (const Step& step : program.steps)
            sum += program.step_bytes(program.calls[0], program.templates[0], step);
        CHECK(sum == bytes);
    }
}

}  // namespace
}  // namespace genie::test
