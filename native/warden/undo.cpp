#include "undo.h"

#include <cstring>

namespace genie::warden {

std::string reason(const Outcome& outcome) {
    std::string text;
    if (outcome.exec_error != 0)
        text = std::string("cannot be run: ") + std::strerror(outcome.exec_error);
    else if (outcome.timed_out)
        text = "killed at its time limit";
    else if (outcome.signal != 0)
        text = "killed by signal " + std::to_string(outcome.signal);
    else
        text = "exit code " + std::to_string(outcome.exit_code);
    std::string_view said = outcome.err;
    while (!said.empty() && said.back() == '\n') said.remove_suffix(1);
    if (const auto before = said.rfind('\n'); before != std::string_view::npos)
        said.remove_prefix(before + 1);
    if (!said.empty()) text += ": " + std::string(said);
    return text;
}

Event failed_event(std::string_view phase, std::size_t number, const Argv& argv, const Outcome& outcome) {
    Event event("failed");
    event.add("phase", phase).add("number", static_cast<std::int64_t>(number));
    event.add("reason", reason(outcome)).add("rc", outcome.exit_code);
    event.add("began_mono_ns", outcome.began_ns).add("done_mono_ns", outcome.done_ns);
    return event.add("stderr", outcome.err).add("argv", argv);
}

}  // namespace genie::warden
