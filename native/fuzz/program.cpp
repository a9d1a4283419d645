// libFuzzer: any bytes whatever are refused or make a program that can be walked.
#include "program.h"

#include <algorithm>
#include <cstdint>
#include <span>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    try {
        const genie::Program program = genie::parse_program(std::as_bytes(std::span(data, size)));
        for (const genie::Call& call : program.calls) {
            const genie::TemplatePlan& plan = program.templates[call.template_index];
            const std::uint32_t steps = std::min<std::uint32_t>(plan.steps, 1000);
            for (std::uint32_t s = 0; s < steps; ++s) {
                const genie::Step& step = program.steps[plan.step_begin + s];
                if (step.kind != genie::StepKind::kLocal) (void)program.step_bytes(call, plan, step);
            }
            (void)program.find_call(call.call_id + 1);
        }
    } catch (const genie::BadProgram&) {
        return 0;
    }
    return 0;
}
