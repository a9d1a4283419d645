// How long the messages of a program can be: what transports make room for that cannot cut them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "program.h"

namespace genie {

// Bytes of the longest message that the rank sends, or receives.
inline std::size_t longest_message(const Program& program, StepKind kind) {
    std::uint64_t longest = 0;
    for (const Call& call : program.calls) {
        if (longest >= call.chunk_bytes) continue;
        const TemplatePlan& plan = program.templates[call.template_index];
        for (std::uint32_t s = 0; s < plan.steps; ++s) {
            const Step& step = program.steps[plan.step_begin + s];
            if (step.kind != kind) continue;
            longest = std::max<std::uint64_t>(
                longest, std::min<std::uint64_t>(call.chunk_bytes, program.step_bytes(call, plan, step)));
        }
    }
    return longest;
}

}  // namespace genie
