// A rank's answer to "what are you waiting for?", for a stall, a lost peer or an abort. The cold path: it
// reads the rank's schedule and its running calls, and never changes them.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "failure.h"
#include "instance.h"
#include "program.h"
#include "schedule.h"

namespace genie {

// What a rank waits for: the first running operator, and in it the first step that only a peer can move.
inline FailureReport describe_waiting(const Program& program, const Schedule& schedule,
                                      const Instances& instances, std::uint32_t iteration) {
    FailureReport report;
    report.iteration = std::min(iteration, program.header.iterations - 1);
    const std::vector<OpState>& ops = schedule.ops();
    const auto is_running = [](const OpState& op) { return op.phase == OpPhase::kRunning; };
    auto found = std::find_if(ops.begin(), ops.end(), [&](const OpState& op) {
        const std::uint32_t call = program.ops[static_cast<std::size_t>(&op - ops.data())].call;
        return is_running(op) && call != kNone;
    });
    if (found == ops.end()) found = std::find_if(ops.begin(), ops.end(), is_running);
    if (found == ops.end()) {
        report.text = iteration == program.header.iterations
                          ? "all operators were done, handing over the last bytes"
                          : "no operator was running";
        return report;
    }
    report.op = static_cast<std::uint32_t>(found - ops.begin());
    report.text = "operator " + std::to_string(report.op);
    const std::uint32_t call = program.ops[report.op].call;
    if (call == kNone) {
        report.text += " was computing";
        return report;
    }
    report.call_id = program.calls[call].call_id;
    report.text += " in call " + std::to_string(report.call_id);
    const Instance* instance = instances.first(call);
    if (instance == nullptr || !instance->started) return report;
    for (const StepKind kind : {StepKind::kRecv, StepKind::kSend}) {
        for (std::uint32_t s = 0; s < instance->plan->steps; ++s) {
            const Step& step = program.steps[instance->plan->step_begin + s];
            const StepState& state = instance->steps[s];
            const std::uint32_t moved = kind == StepKind::kRecv ? state.arrived : state.done;
            if (step.kind != kind || state.complete || moved == state.messages || state.allowed <= moved)
                continue;
            report.peer = program.connections[step.connection].peer;
            report.text += (kind == StepKind::kRecv ? " waited for message " : " waited to send message ") +
                           std::to_string(moved) + " of " + std::to_string(state.messages) + " of step " +
                           std::to_string(s) + (kind == StepKind::kRecv ? " from rank " : " to rank ") +
                           std::to_string(report.peer) + " on channel " + std::to_string(step.channel);
            return report;
        }
    }
    return report;
}

}  // namespace genie
