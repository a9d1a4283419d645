// Builds program blobs for tests and benchmarks, byte for byte as docs/formats.md §1 says. The product's own
// are made by genie/engine/encode.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "program.h"

namespace genie::test {

struct StepSpec {
    StepKind kind = StepKind::kSend;
    std::uint16_t channel = 0;
    std::uint32_t peer = 0;
    SizeKind size_kind = SizeKind::kZero;
    std::uint32_t index = 0;
    std::uint32_t of = 1;
    std::vector<Need> needs;
    std::int64_t local_ns = 0;
};

class ProgramBuilder {
  public:
    ProgramBuilder(std::uint32_t rank, std::uint32_t world) {
        std::memcpy(header.magic, "GNIEPRG1", 8);
        header.version = kProgramVersion;
        std::strcpy(header.transport, "tcp");
        header.flags = kFlagRecordMessages;
        header.rank = rank;
        header.world = world;
        header.iterations = 1;
        header.timeout_ns = 20'000'000'000;
        header.event_capacity = 1 << 16;
        header.listen_ipv4 = 0x7f000001;
        header.connect_timeout_s = 10;
        std::memset(header.run_id, 7, 16);
        header.compute_scale_ppm = 1'000'000;
    }

    std::uint32_t lane(bool ordered) {
        lanes.push_back(ordered ? 1 : 0);
        return static_cast<std::uint32_t>(lanes.size() - 1);
    }

    std::uint32_t compute(std::int64_t duration_ns, const std::vector<std::uint32_t>& needs = {},
                          std::uint32_t lane = kNone) {
        ops.push_back(
            {duration_ns, kNone, lane, static_cast<std::uint32_t>(needs.size()), 0, 0, 0, ops.size()});
        op_needs.push_back(needs);
        return static_cast<std::uint32_t>(ops.size() - 1);
    }

    std::uint32_t make_template(const std::vector<StepSpec>& specs, std::uint32_t channels = 1) {
        TemplateRecord record{static_cast<std::uint32_t>(steps.size()), 0, channels, 0};
        for (const StepSpec& spec : specs) {
            Step step{};
            step.kind = spec.kind;
            step.size_kind = spec.size_kind;
            step.channel = spec.channel;
            step.connection = spec.kind == StepKind::kLocal ? kNone : connection(spec.peer, spec.channel);
            step.size_index = spec.index;
            step.size_of = spec.of;
            step.need_begin = static_cast<std::uint32_t>(needs.size());
            needs.insert(needs.end(), spec.needs.begin(), spec.needs.end());
            step.need_end = static_cast<std::uint32_t>(needs.size());
            step.local_ns = spec.local_ns;
            steps.push_back(step);
        }
        record.step_end = static_cast<std::uint32_t>(steps.size());
        templates.push_back(record);
        return static_cast<std::uint32_t>(templates.size() - 1);
    }

    // An operator that makes a call.
    std::uint32_t call(std::uint32_t call_id, std::uint32_t template_index, std::uint64_t bytes,
                       std::uint32_t chunk_bytes = 256 << 10,
                       const std::vector<std::uint32_t>& op_needs_ = {}, std::uint32_t lane = kNone,
                       const std::vector<std::uint64_t>& vector = {}) {
        const std::uint32_t op = compute(0, op_needs_, lane);
        ops[op].call = static_cast<std::uint32_t>(calls.size());
        calls.push_back({call_id, op, template_index, 0, bytes, vectors.size(),
                         static_cast<std::uint32_t>(vector.size()), chunk_bytes, 0});
        vectors.insert(vectors.end(), vector.begin(), vector.end());
        return op;
    }

    std::vector<std::byte> blob() const {
        ProgramHeader head = header;
        std::vector<Op> all = ops;
        std::vector<std::uint32_t> edges;
        for (std::uint32_t from = 0; from < all.size(); ++from) {
            all[from].out_begin = static_cast<std::uint32_t>(edges.size());
            const auto found = successors().find(from);
            if (found != cache_.end()) edges.insert(edges.end(), found->second.begin(), found->second.end());
            all[from].out_end = static_cast<std::uint32_t>(edges.size());
        }
        const std::uint64_t counts[kSections] = {
            all.size(),   edges.size(), lanes.size(),   calls.size(),       templates.size(),
            steps.size(), needs.size(), vectors.size(), connections.size(), settings.size()};
        std::copy(std::begin(counts), std::end(counts), head.counts);
        std::vector<std::byte> out;
        append(out, &head, sizeof head);
        section(out, all);
        section(out, edges);
        section(out, lanes);
        section(out, calls);
        section(out, templates);
        section(out, steps);
        section(out, needs);
        section(out, vectors);
        section(out, connections);
        section(out, std::vector<char>(settings.begin(), settings.end()));
        return out;
    }

    Program program() const { return parse_program(blob()); }

    ProgramHeader header{};
    std::vector<Op> ops;
    std::vector<std::vector<std::uint32_t>> op_needs;
    std::vector<std::uint32_t> lanes;
    std::vector<Call> calls;
    std::vector<TemplateRecord> templates;
    std::vector<Step> steps;
    std::vector<Need> needs;
    std::vector<std::uint64_t> vectors;
    std::vector<Connection> connections;
    std::string settings;

    std::uint32_t connection(std::uint32_t peer, std::uint16_t channel) {
        const auto [found, made] =
            known_.emplace(std::pair(peer, channel), static_cast<std::uint32_t>(connections.size()));
        if (made) {
            const Role role = header.rank < peer ? Role::kAccept : Role::kConnect;
            connections.push_back({peer, channel, role, 0x7f000001, 0, 0, 0});
        }
        return found->second;
    }

  private:
    const std::map<std::uint32_t, std::vector<std::uint32_t>>& successors() const {
        if (cached_ops_ != ops.size()) {
            cache_.clear();
            for (std::uint32_t to = 0; to < op_needs.size(); ++to) {
                for (const std::uint32_t from : op_needs[to]) cache_[from].push_back(to);
            }
            cached_ops_ = ops.size();
        }
        return cache_;
    }

    static void append(std::vector<std::byte>& out, const void* data, std::size_t size) {
        if (size == 0) return;
        out.resize(out.size() + size);
        std::memcpy(out.data() + out.size() - size, data, size);
    }

    template <class Record>
    static void section(std::vector<std::byte>& out, const std::vector<Record>& records) {
        append(out, records.data(), records.size() * sizeof(Record));
        out.resize((out.size() + 7) / 8 * 8);
    }

    std::map<std::pair<std::uint32_t, std::uint16_t>, std::uint32_t> known_;
    mutable std::map<std::uint32_t, std::vector<std::uint32_t>> cache_;
    mutable std::size_t cached_ops_ = 0;
};

// Ring all-reduce of one rank, `channels` rings side by side.
inline std::vector<StepSpec> ring_all_reduce(std::uint32_t rank, std::uint32_t ranks,
                                             std::uint16_t channels = 1) {
    std::vector<StepSpec> steps;
    const std::uint32_t next = (rank + 1) % ranks;
    const std::uint32_t previous = (rank + ranks - 1) % ranks;
    for (std::uint16_t channel = 0; channel < channels; ++channel) {
        std::uint32_t last_recv = kNone;
        for (std::uint32_t hop = 0; hop < 2 * (ranks - 1); ++hop) {
            StepSpec send{StepKind::kSend, channel, next, SizeKind::kBlock, (rank + 2 * ranks - hop) % ranks,
                          ranks,           {},      0};
            if (last_recv != kNone) send.needs.push_back({last_recv, NeedMode::kMessage});
            steps.push_back(send);
            last_recv = static_cast<std::uint32_t>(steps.size());
            steps.push_back({StepKind::kRecv,
                             channel,
                             previous,
                             SizeKind::kBlock,
                             (rank + 2 * ranks - hop - 1) % ranks,
                             ranks,
                             {},
                             0});
        }
    }
    return steps;
}

// Binomial tree from rank 0: receive the whole from the parent, then send it on, message by message.
inline std::vector<StepSpec> tree_broadcast(std::uint32_t rank, std::uint32_t ranks) {
    std::vector<StepSpec> steps;
    std::vector<Need> needs;
    std::uint32_t low = 1;
    while (rank != 0 && (rank & low) == 0) low *= 2;
    if (rank != 0) {
        steps.push_back({StepKind::kRecv, 0, rank - low, SizeKind::kBlock, 0, 1, {}, 0});
        needs.push_back({0, NeedMode::kMessage});
    } else {
        while (low < ranks) low *= 2;
    }
    for (std::uint32_t bit = low / 2; bit > 0; bit /= 2) {
        if (rank + bit < ranks)
            steps.push_back({StepKind::kSend, 0, rank + bit, SizeKind::kBlock, 0, 1, needs, 0});
    }
    return steps;
}

// Every rank sends entry `peer` of its vector to each peer; what it receives from p is entry ranks + p.
inline std::vector<StepSpec> all_to_all(std::uint32_t rank, std::uint32_t ranks) {
    std::vector<StepSpec> steps;
    for (std::uint32_t distance = 1; distance < ranks; ++distance) {
        const std::uint32_t to = (rank + distance) % ranks;
        const std::uint32_t from = (rank + ranks - distance) % ranks;
        steps.push_back({StepKind::kSend, 0, to, SizeKind::kVector, to, 1, {}, 0});
        steps.push_back({StepKind::kRecv, 0, from, SizeKind::kVector, ranks + from, 1, {}, 0});
    }
    return steps;
}

}  // namespace genie::test
