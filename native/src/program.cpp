#include "program.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>

#include "units.h"

namespace genie {
namespace {

constexpr char kMagic[8] = {'G', 'N', 'I', 'E', 'P', 'R', 'G', '1'};
constexpr std::uint64_t kMostRecords = std::numeric_limits<std::int64_t>::max() / 64 - 64;
constexpr std::uint64_t kMostMessagesAStep = 1U << 31;
constexpr std::int64_t kLongestNs = std::numeric_limits<std::int64_t>::max() / 4;

template <class... Parts>
[[noreturn]] void bad(const Parts&... parts) {
    std::string text = "program blob: ";
    const auto add = [&text](const auto& part) {
        if constexpr (std::is_arithmetic_v<std::decay_t<decltype(part)>>) {
            text += std::to_string(part);
        } else {
            text += part;
        }
    };
    (add(parts), ...);
    throw BadProgram(text);
}

class Cutter {
  public:
    explicit Cutter(std::span<const std::byte> blob) : blob_(blob), at_(sizeof(ProgramHeader)) {}

    template <class Record>
    std::vector<Record> cut(const char* section, std::uint64_t count) {
        const std::size_t left = blob_.size() - at_;
        if (count > left / sizeof(Record)) {
            bad("section ", section, " should hold ", count, " records of ", sizeof(Record), " bytes, but ",
                left, " bytes are left");
        }
        std::vector<Record> records(count);
        const std::size_t size = count * sizeof(Record);
        if (size != 0) std::memcpy(records.data(), blob_.data() + at_, size);
        at_ += size;
        if (const std::size_t over = size % 8; over != 0) {
            const std::size_t padding = 8 - over;
            if (blob_.size() - at_ < padding) bad("section ", section, " lacks its padding");
            for (std::size_t i = 0; i < padding; ++i) {
                if (blob_[at_ + i] != std::byte{0}) bad("padding of section ", section, " is not zero");
            }
            at_ += padding;
        }
        return records;
    }

    void end() const {
        if (at_ != blob_.size()) bad("expected ", at_, " bytes, found ", blob_.size());
    }

  private:
    std::span<const std::byte> blob_;
    std::size_t at_;
};

void check_header(const ProgramHeader& header) {
    if (header.version != kProgramVersion)
        bad("version ", header.version, ", this engine knows version ", kProgramVersion);
    if ((header.flags & ~std::uint32_t{kFlagVerify | kFlagRecordMessages}) != 0)
        bad("unknown flags ", header.flags);
    if (header.world == 0 || header.rank >= header.world) bad("rank ", header.rank, " of ", header.world);
    if (header.iterations == 0) bad("iterations must be at least 1");
    if (header.iterations == kNone) bad("iterations must be below ", kNone);
    if (header.window_messages > kMostWindowMessages) {
        bad("window_messages must be at most ", kMostWindowMessages, ", found ", header.window_messages);
    }
    constexpr auto kLongest = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    if (header.timeout_ns == 0 || header.timeout_ns > kLongest) bad("timeout_ns ", header.timeout_ns);
    if (header.spin_ns > kLongest) bad("spin_ns ", header.spin_ns);
    if (header.event_capacity > kMostRecords) bad("event_capacity ", header.event_capacity);
    if (header.sndbuf_bytes > 0x7fffffff || header.rcvbuf_bytes > 0x7fffffff)
        bad("socket buffers above 2 GiB");
    if (header.congestion_control[15] != '\0') bad("congestion control name is not terminated");
    if (header.transport[15] != '\0') bad("transport name is not terminated");
    if (header.transport[0] == '\0') bad("no transport is named");
    if (header.counts[kSections - 1] > kMostSettingsBytes) {
        bad("settings must have at most ", kMostSettingsBytes, " bytes, found ",
            header.counts[kSections - 1]);
    }
    const auto* zeros =
        std::find_if(std::begin(header.zero), std::end(header.zero), [](auto b) { return b != 0; });
    if (zeros != std::end(header.zero)) bad("reserved header bytes are not zero");
}

void check_connections(const Program& program) {
    std::vector<std::pair<std::uint32_t, std::uint16_t>> seen;
    seen.reserve(program.connections.size());
    const ProgramHeader& header = program.header;
    for (std::size_t i = 0; i < program.connections.size(); ++i) {
        const Connection& connection = program.connections[i];
        if (connection.peer >= header.world || connection.peer == header.rank) {
            bad("connection ", i, " of rank ", header.rank, " to rank ", connection.peer, " of ",
                header.world);
        }
        const Role role = header.rank < connection.peer ? Role::kAccept : Role::kConnect;
        if (connection.role != role) {
            bad("connection ", i, " to rank ", connection.peer,
                ": the lower rank accepts, the higher connects");
        }
        seen.emplace_back(connection.peer, connection.channel);
    }
    std::sort(seen.begin(), seen.end());
    const auto twice = std::adjacent_find(seen.begin(), seen.end());
    if (twice != seen.end()) {
        bad("two connections to rank ", twice->first, " on channel ", twice->second);
    }
}

void check_ops(const Program& program) {
    const std::size_t count = program.ops.size();
    if (count >= kNone) bad(count, " operators");
    std::vector<std::uint32_t> needed(count, 0);
    for (std::size_t i = 0; i < count; ++i) {
        const Op& op = program.ops[i];
        if (op.duration_ns < 0 || op.duration_ns > kLongestNs)
            bad("operator ", i, " lasts ", op.duration_ns, " ns");
        if (op.lane != kNone && op.lane >= program.lanes.size()) bad("operator ", i, " is on lane ", op.lane);
        if (op.call != kNone) {
            if (op.call >= program.calls.size()) bad("operator ", i, " makes call ", op.call);
            if (program.calls[op.call].op != i) bad("operator ", i, " and its call ", op.call, " disagree");
            if (op.duration_ns != 0) bad("operator ", i, " both computes and communicates");
        }
        if (op.out_begin > op.out_end || op.out_end > program.out_edges.size()) {
            bad("operator ", i, " has edges ", op.out_begin, " to ", op.out_end, " of ",
                program.out_edges.size());
        }
    }
    // Slices of edges may not overlap, or a small blob could ask for work without end.
    std::uint64_t edges = 0;
    for (const Op& op : program.ops) edges += op.out_end - op.out_begin;
    if (edges > program.out_edges.size()) bad("operators share out edges");
    for (const Op& op : program.ops) {
        for (std::uint32_t e = op.out_begin; e < op.out_end; ++e) {
            const std::uint32_t to = program.out_edges[e];
            if (to >= count) bad("edge ", e, " leads to operator ", to, " of ", count);
            ++needed[to];
        }
    }
    for (std::size_t i = 0; i < count; ++i) {
        if (needed[i] != program.ops[i].dep_count) {
            bad("operator ", i, " says it has ", program.ops[i].dep_count, " dependencies, the edges say ",
                needed[i]);
        }
    }
    std::vector<std::uint32_t> order;
    order.reserve(count);
    for (std::uint32_t i = 0; i < count; ++i) {
        if (needed[i] == 0) order.push_back(i);
    }
    for (std::size_t head = 0; head < order.size(); ++head) {
        const Op& op = program.ops[order[head]];
        for (std::uint32_t e = op.out_begin; e < op.out_end; ++e) {
            if (--needed[program.out_edges[e]] == 0) order.push_back(program.out_edges[e]);
        }
    }
    if (order.size() != count) {
        const auto stuck = std::find_if(needed.begin(), needed.end(), [](auto n) { return n != 0; });
        bad("operators wait for one another in a circle; one of them is operator ", stuck - needed.begin());
    }
}

void check_template(const Program& program, std::size_t index) {
    const TemplateRecord& record = program.template_records[index];
    if (record.step_begin > record.step_end || record.step_end > program.steps.size()) {
        bad("template ", index, " has steps ", record.step_begin, " to ", record.step_end);
    }
    if (record.channels == 0) bad("template ", index, " has no channels");
    for (std::uint32_t s = record.step_begin; s < record.step_end; ++s) {
        const Step& step = program.steps[s];
        if (step.kind > StepKind::kLocal) bad("step ", s, " is of kind ", static_cast<int>(step.kind));
        if (step.size_kind > SizeKind::kVector)
            bad("step ", s, " has size kind ", static_cast<int>(step.size_kind));
        if (step.channel >= record.channels) {
            bad("step ", s, " is on channel ", step.channel, " of ", record.channels);
        }
        if (step.kind == StepKind::kLocal) {
            if (step.connection != kNone) bad("local step ", s, " names a connection");
            if (step.local_ns < 0 || step.local_ns > kLongestNs)
                bad("step ", s, " lasts ", step.local_ns, " ns");
        } else {
            if (step.connection >= program.connections.size())
                bad("step ", s, " uses connection ", step.connection);
            const std::uint16_t channel = program.connections[step.connection].channel;
            if (channel != step.channel) {
                bad("step ", s, " on channel ", step.channel, " uses a connection of channel ", channel);
            }
        }
        if (step.size_kind == SizeKind::kBlock && (step.size_of == 0 || step.size_index >= step.size_of)) {
            bad("step ", s, " moves block ", step.size_index, " of ", step.size_of);
        }
        if (step.need_begin > step.need_end || step.need_end > program.needs.size()) {
            bad("step ", s, " has needs ", step.need_begin, " to ", step.need_end);
        }
    }
}

TemplatePlan plan_template(const Program& program, std::size_t index) {
    const TemplateRecord& record = program.template_records[index];
    TemplatePlan plan;
    plan.step_begin = record.step_begin;
    plan.steps = record.step_end - record.step_begin;
    plan.channels = record.channels;
    plan.dependent_begin.assign(plan.steps + 1, 0);
    const Step* steps = program.steps.data() + plan.step_begin;
    for (std::uint32_t s = 0; s < plan.steps; ++s) {
        for (std::uint32_t n = steps[s].need_begin; n < steps[s].need_end; ++n) {
            const Need& need = program.needs[n];
            if (need.mode > NeedMode::kWhole)
                bad("need ", n, " has mode ", static_cast<std::uint32_t>(need.mode));
            if (need.step >= plan.steps) bad("need ", n, " of template ", index, " names step ", need.step);
            ++plan.dependent_begin[need.step + 1];
        }
    }
    for (std::uint32_t s = 0; s < plan.steps; ++s) plan.dependent_begin[s + 1] += plan.dependent_begin[s];
    plan.dependents.resize(plan.dependent_begin[plan.steps]);
    std::vector<std::uint32_t> fill(plan.dependent_begin.begin(), plan.dependent_begin.end() - 1);
    std::vector<std::uint32_t> unmet(plan.steps, 0);
    for (std::uint32_t s = 0; s < plan.steps; ++s) {
        unmet[s] = steps[s].need_end - steps[s].need_begin;
        for (std::uint32_t n = steps[s].need_begin; n < steps[s].need_end; ++n) {
            const Need& need = program.needs[n];
            plan.dependents[fill[need.step]++] = {s, need.mode};
        }
    }
    std::vector<std::uint32_t> order;
    order.reserve(plan.steps);
    for (std::uint32_t s = 0; s < plan.steps; ++s) {
        if (unmet[s] == 0) order.push_back(s);
    }
    for (std::size_t head = 0; head < order.size(); ++head) {
        const std::uint32_t s = order[head];
        for (std::uint32_t d = plan.dependent_begin[s]; d < plan.dependent_begin[s + 1]; ++d) {
            if (--unmet[plan.dependents[d].step] == 0) order.push_back(plan.dependents[d].step);
        }
    }
    if (order.size() != plan.steps) bad("steps of template ", index, " need one another in a circle");

    std::map<std::uint32_t, std::pair<std::vector<std::uint32_t>, std::vector<std::uint32_t>>> by_connection;
    for (std::uint32_t s = 0; s < plan.steps; ++s) {
        if (steps[s].kind == StepKind::kLocal) continue;
        auto& [sends, recvs] = by_connection[steps[s].connection];
        (steps[s].kind == StepKind::kSend ? sends : recvs).push_back(s);
    }
    plan.port_of_step.assign(plan.steps, kNone);
    plan.ordinal_of_step.assign(plan.steps, 0);
    for (const auto& [connection, lists] : by_connection) {
        PortPlan port{};
        port.connection = connection;
        const auto add = [&](const std::vector<std::uint32_t>& list, std::uint32_t& begin,
                             std::uint32_t& end) {
            begin = static_cast<std::uint32_t>(plan.port_steps.size());
            for (const std::uint32_t s : list) {
                plan.port_of_step[s] = static_cast<std::uint32_t>(plan.ports.size());
                plan.ordinal_of_step[s] = static_cast<std::uint32_t>(plan.port_steps.size()) - begin;
                plan.port_steps.push_back(s);
            }
            end = static_cast<std::uint32_t>(plan.port_steps.size());
        };
        add(lists.first, port.send_begin, port.send_end);
        add(lists.second, port.recv_begin, port.recv_end);
        plan.ports.push_back(port);
    }
    return plan;
}

void check_calls(const Program& program) {
    std::vector<std::uint32_t> vector_needed(program.templates.size(), 0);
    for (std::size_t t = 0; t < program.templates.size(); ++t) {
        const TemplatePlan& plan = program.templates[t];
        for (std::uint32_t s = 0; s < plan.steps; ++s) {
            const Step& step = program.steps[plan.step_begin + s];
            if (step.size_kind != SizeKind::kVector) continue;
            if (step.size_index == kNone) bad("step ", s, " of template ", t, " moves vector entry ", kNone);
            vector_needed[t] = std::max(vector_needed[t], step.size_index + 1);
        }
    }
    std::vector<std::uint32_t> ids;
    ids.reserve(program.calls.size());
    for (std::size_t c = 0; c < program.calls.size(); ++c) {
        const Call& call = program.calls[c];
        if (call.op >= program.ops.size() || program.ops[call.op].call != c) {
            bad("call ", c, " and its operator ", call.op, " disagree");
        }
        if (call.template_index >= program.templates.size())
            bad("call ", c, " uses template ", call.template_index);
        if (call.chunk_bytes == 0) bad("call ", c, " has messages of 0 bytes");
        if (call.vector_begin > program.vectors.size() ||
            call.vector_len > program.vectors.size() - call.vector_begin) {
            bad("call ", c, " has vector ", call.vector_begin, " + ", call.vector_len, " of ",
                program.vectors.size());
        }
        if (call.vector_len < vector_needed[call.template_index]) {
            bad("call ", c, " has ", call.vector_len, " vector entries, its template needs ",
                vector_needed[call.template_index]);
        }
        const auto check_size = [&](std::uint64_t bytes) {
            if (bytes > std::numeric_limits<std::int64_t>::max()) bad("call ", c, " moves ", bytes, " bytes");
            if (bytes / call.chunk_bytes >= kMostMessagesAStep) {
                bad("call ", c, " cuts ", bytes, " bytes into messages of ", call.chunk_bytes, ": too many");
            }
        };
        check_size(call.bytes);
        // Only the entries that its template uses; calls may share long vectors.
        for (std::uint32_t v = 0; v < vector_needed[call.template_index]; ++v) {
            check_size(program.vectors[call.vector_begin + v]);
        }
        ids.push_back(call.call_id);
    }
    std::sort(ids.begin(), ids.end());
    const auto twice = std::adjacent_find(ids.begin(), ids.end());
    if (twice != ids.end()) bad("two calls have the id ", *twice);
}

void index_lanes(Program& program) {
    const std::size_t lanes = program.lanes.size();
    program.lane_begin.assign(lanes + 1, 0);
    for (std::size_t lane = 0; lane < lanes; ++lane) {
        if ((program.lanes[lane] & ~1U) != 0) bad("lane ", lane, " has unknown flags ", program.lanes[lane]);
    }
    for (const Op& op : program.ops) {
        if (op.lane != kNone) ++program.lane_begin[op.lane + 1];
    }
    for (std::size_t lane = 0; lane < lanes; ++lane) program.lane_begin[lane + 1] += program.lane_begin[lane];
    program.lane_ops.resize(program.lane_begin[lanes]);
    std::vector<std::uint32_t> fill(program.lane_begin.begin(), program.lane_begin.end() - 1);
    for (std::uint32_t i = 0; i < program.ops.size(); ++i) {
        if (program.ops[i].lane != kNone) program.lane_ops[fill[program.ops[i].lane]++] = i;
    }
}

// `whole` * `i` / `n` without overflow.
std::uint64_t part(std::uint64_t whole, std::uint64_t i, std::uint64_t n) {
    return static_cast<std::uint64_t>(static_cast<Wide>(whole) * i / n);
}

std::uint64_t cut(std::uint64_t whole, std::uint64_t i, std::uint64_t n) {
    return n == 1 ? whole : part(whole, i + 1, n) - part(whole, i, n);
}

}  // namespace

std::uint64_t Program::step_bytes(const Call& call, const TemplatePlan& plan, const Step& step) const {
    switch (step.size_kind) {
        case SizeKind::kZero:
            return 0;
        case SizeKind::kVector:
            return cut(vectors[call.vector_begin + step.size_index], step.channel, plan.channels);
        case SizeKind::kBlock:
            break;
    }
    return cut(cut(call.bytes, step.channel, plan.channels), step.size_index, step.size_of);
}

void Program::index_calls() {
    std::uint32_t size = 16;
    while (size < calls.size() * 2) size *= 2;
    call_table_.assign(size, kNone);
    call_mask_ = size - 1;
    for (std::uint32_t c = 0; c < calls.size(); ++c) {
        std::uint32_t at = hash(calls[c].call_id) & call_mask_;
        while (call_table_[at] != kNone) at = (at + 1) & call_mask_;
        call_table_[at] = c;
    }
}

Program parse_program(std::span<const std::byte> blob) {
    if (blob.size() < sizeof(ProgramHeader)) bad("expected at least 256 bytes, found ", blob.size());
    Program program;
    std::memcpy(&program.header, blob.data(), sizeof(ProgramHeader));
    const ProgramHeader& header = program.header;
    if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0) bad("does not begin with GNIEPRG1");
    check_header(header);
    Cutter cutter(blob);
    program.ops = cutter.cut<Op>("ops", header.counts[0]);
    program.out_edges = cutter.cut<std::uint32_t>("out_edges", header.counts[1]);
    program.lanes = cutter.cut<std::uint32_t>("lanes", header.counts[2]);
    program.calls = cutter.cut<Call>("calls", header.counts[3]);
    program.template_records = cutter.cut<TemplateRecord>("templates", header.counts[4]);
    program.steps = cutter.cut<Step>("steps", header.counts[5]);
    program.needs = cutter.cut<Need>("needs", header.counts[6]);
    program.vectors = cutter.cut<std::uint64_t>("vectors", header.counts[7]);
    program.connections = cutter.cut<Connection>("connections", header.counts[8]);
    const std::vector<char> settings = cutter.cut<char>("settings", header.counts[9]);
    program.settings.assign(settings.begin(), settings.end());
    cutter.end();
    check_connections(program);
    check_ops(program);
    std::uint64_t steps = 0;
    for (std::size_t t = 0; t < program.template_records.size(); ++t) {
        check_template(program, t);
        steps += program.template_records[t].step_end - program.template_records[t].step_begin;
    }
    if (steps > program.steps.size()) bad("templates share steps");
    std::uint64_t needs = 0;
    for (const Step& step : program.steps) needs += std::uint64_t{step.need_end} - step.need_begin;
    for (const Step& step : program.steps) {
        if (step.need_begin > step.need_end) bad("a step outside every template has no valid needs");
    }
    if (needs > program.needs.size()) bad("steps share needs");
    for (std::size_t t = 0; t < program.template_records.size(); ++t) {
        program.templates.push_back(plan_template(program, t));
    }
    check_calls(program);
    index_lanes(program);
    program.index_calls();
    return program;
}

}  // namespace genie
